// The job file as a value: one member per key, named as in the file. core/job_keys.h holds the table of keys
// (ranges, meaning, who reads them; the defaults are those of the members); docs/job.md is checked against it.
// std::nullopt stands for "auto".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

template <typename T>
using Auto = std::optional<T>;  // nullopt: "auto"

struct Job {
    std::string job_type = "training";
    std::string model_name;
    std::string output_dir;
    std::string device = "auto";
    std::int64_t seed = 42;
    bool full_determinism = false;
    Auto<std::int64_t> train_batch_size;
    Auto<std::int64_t> train_micro_batch_size_per_gpu = 1;
    Auto<std::int64_t> gradient_accumulation_steps = 1;
    double gradient_clipping = 1.0;
    std::string communication_data_type = "fp32";
    bool wall_clock_breakdown = false;

    struct Model {
        std::string init = "pretrained";
        std::string attn_implementation = "flash";
        Auto<bool> enable_gradient_checkpointing = true;
        bool fused_kernels = true;
        std::string logits_optimization = "auto";
        double logits_optimization_peak_mem_size_in_gib = 1.0;
    } model;

    struct Data {
        std::vector<std::string> train;
        std::vector<std::string> eval;
        std::string format = "auto";
        std::int64_t sequence_length = 0;
        std::string packing = "auto";
        std::string too_long = "error";
        bool shuffle = true;
    } data;

    struct Training {
        std::int64_t max_steps = 0;
        std::int64_t num_epochs = 1;
        std::int64_t max_skipped_steps = 50;
        std::int64_t training_horizon = 0;
        std::int64_t eval_interval = 0;
        std::string loss = "cross_entropy";

        struct Optimizer {
            std::string type = "AdamW";
            double lr = 1e-5;
            std::array<double, 2> betas = {0.9, 0.999};
            double eps = 1e-8;
            double weight_decay = 0.0;
            std::vector<std::string> no_decay;
        } optimizer;

        struct Scheduler {
            std::string type = "constant";
            double warmup_ratio = 0.0;
            std::int64_t warmup_steps = 0;
            std::string warmup_type = "linear";
            double min_lr_ratio = 0.0;
            std::string convention = "standard";
        } lr_scheduler;
    } training;

    struct LogProb {
        std::vector<std::string> data;
        std::int64_t window = 0;
        std::int64_t stride = 0;
        std::string output = "log_probs.h5";
        double temperature = 1.0;
        bool entropy = false;
        std::int64_t train_micro_batch_size_per_gpu = 1;
        std::int64_t max_token_len = 8192;
    } log_prob;

    struct Rl {
        double eps_clip = 0.2;
        double eps_clip_higher = 0.0;
        double c_clip = 0.0;
        std::string importance_sampling_level = "token";
        std::int64_t response_length = 0;
        std::string loss_agg_mode = "token-mean";
        double entropy_coeff = 0.0;
        double kl_loss_coef = 0.0;
        std::string kl_loss_type = "k3";
        double temperature = 1.0;
    } rl;

    struct Zorro {
        bool enable = false;
        std::int64_t rollout_n = 0;
        std::int64_t max_token_len = 0;
    } zorro;

    struct Zero {
        Auto<std::int64_t> stage = 1;
        bool overlap_comm = true;
        Auto<std::int64_t> reduce_bucket_size;
        Auto<std::int64_t> allgather_bucket_size;
        bool contiguous_gradients = true;
        bool reduce_scatter = true;
        bool round_robin_gradients = false;
        std::int64_t sub_group_size = 1'000'000'000;
        Auto<std::int64_t> stage3_prefetch_bucket_size;
        Auto<std::int64_t> stage3_param_persistence_threshold;
        Auto<std::int64_t> stage3_max_live_parameters;
        Auto<std::int64_t> stage3_max_reuse_distance;
        bool stage3_gather_16bit_weights_on_model_save = true;

        struct OffloadOptimizer {
            std::string device = "none";
            std::string nvme_path;
            bool pin_memory = true;
            double ratio = 1.0;
        } offload_optimizer;

        struct OffloadParam {
            std::string device = "none";
            std::string nvme_path;
            bool pin_memory = true;
            std::int64_t buffer_count = 5;
            std::int64_t max_in_cpu = 1'000'000'000;
        } offload_param;
    } zero_optimization;

    struct Bf16 {
        Auto<bool> enabled;
    } bf16;

    struct Fp16 {
        bool enabled = false;
        double loss_scale = 0;
        std::int64_t initial_scale_power = 16;
        std::int64_t loss_scale_window = 1000;
        std::int64_t hysteresis = 2;
        bool consecutive_hysteresis = false;
        double min_loss_scale = 1;
    } fp16;

    struct Aio {
        std::int64_t block_size = 1048576;
        std::int64_t queue_depth = 32;
        bool single_submit = false;
        bool overlap_events = true;
    } aio;

    struct Checkpoint {
        std::int64_t save_interval = 0;
        double save_minutes = 30;
        std::int64_t keep_last = 2;
        std::int64_t keep_every = 0;
        std::string resume = "auto";
        bool export_hf = true;
        std::int64_t export_interval = 0;
        std::string export_dtype = "auto";
    } checkpoint;

    struct Logging {
        std::int64_t interval = 1;
        bool memory = false;
        bool tensorboard = false;
    } logging;

    struct Limits {
        std::string time = "none";
        std::int64_t hang_seconds = 1800;
        std::int64_t straggler_interval = 0;
    } limits;

    struct Cuda {
        bool tf32 = false;
        bool stochastic_rounding = false;
    } cuda;

    struct WeightSync {
        std::int64_t interval = 0;
        std::int64_t receivers = 0;
        std::int64_t bucket_size_bytes = 268435456;
    } weight_sync;
};

struct JobFile {
    Job job;
    std::vector<std::string> given;   // dotted keys that the file or an override set, in the order of the table
    std::vector<std::string> unused;  // of `given`: keys that this job does not read (other job type, feature off)
};

/// Parses and validates a job file. `text` is the file's content and `path` its name for messages. `overrides` are the
/// `key=value` of --set, values in TOML syntax (what is no TOML value is taken as a string, and a string for a list as
/// a list of one); the last of several for a key counts. Every error is an Error(usage) that names key, value, accepted
/// range, and path:line:column (or "--set"). Checks each key by itself and combinations that need no other file; batch
/// arithmetic is resolved by resolve_batch. Where train_batch_size is given as a number, the other two numbers become
/// "auto" unless they are given too.
[[nodiscard]] JobFile parse_job(const std::string& text, const std::string& path,
                                const std::vector<std::string>& overrides);

/// Makes paths absolute with respect to `directory`, which is absolute (model_name only where it names a directory).
void make_paths_absolute(Job& job, const std::string& directory);

/// Resolves train_batch_size = micro x accumulation x ranks: afterwards none of the three is "auto". Throws
/// Error(usage) with the numbers if they do not divide or none is given that the others could follow from.
void resolve_batch(Job& job, std::int64_t ranks);

/// The job as a TOML file that parses back to an equal Job, keys in the order of the table, all of them.
[[nodiscard]] std::string job_to_toml(const Job& job);

enum class KeyFormat { text, json, markdown };

/// The keys whose dotted name contains `pattern`, in the order of the table: name, what is accepted, default, who reads
/// it, meaning. As text for a terminal, as one JSON array of objects, or as a table a section (docs/job.md).
[[nodiscard]] std::string describe_keys(const std::string& pattern, KeyFormat format);

}  // namespace tessera
