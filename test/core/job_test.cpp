// Values, overrides, and what a job file leaves to defaults.
#include "core/job.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/job_keys.h"
#include "test/core/job_text.h"

using namespace tessera;

namespace {

// Every key with its default, except the five that a training job must give.
const std::string kEveryKey = R"(
job_type = "training"
model_name = "models/tiny"
output_dir = "runs/tiny"
device = "auto"
seed = 42
full_determinism = false
train_batch_size = "auto"
train_micro_batch_size_per_gpu = 1
gradient_accumulation_steps = 1
gradient_clipping = 1.0
communication_data_type = "fp32"
wall_clock_breakdown = false
[model]
init = "pretrained"
attn_implementation = "flash"
enable_gradient_checkpointing = true
fused_kernels = true
logits_optimization = "auto"
logits_optimization_peak_mem_size_in_gib = 1.0
[data]
train = ["a.h5"]
eval = []
format = "auto"
sequence_length = 16
packing = "auto"
too_long = "error"
shuffle = true
[training]
max_steps = 0
num_epochs = 1
max_skipped_steps = 50
training_horizon = 0
eval_interval = 0
loss = "cross_entropy"
[training.optimizer]
type = "AdamW"
lr = 1e-5
betas = [0.9, 0.999]
eps = 1e-8
weight_decay = 0.0
no_decay = []
[training.lr_scheduler]
type = "constant"
warmup_ratio = 0.0
warmup_steps = 0
warmup_type  = "linear"
min_lr_ratio = 0.0
convention = "standard"
[log_prob]
data = []
window = 0
stride = 0
output = "log_probs.h5"
temperature = 1.0
entropy = false
train_micro_batch_size_per_gpu = 1
max_token_len = 8192
[rl]
eps_clip = 0.2
eps_clip_higher = 0.0
c_clip = 0.0
importance_sampling_level = "token"
response_length = 0
loss_agg_mode = "token-mean"
entropy_coeff = 0.0
kl_loss_coef = 0.0
kl_loss_type = "k3"
temperature = 1.0
[zorro]
enable = false
rollout_n = 0
max_token_len = 0
[zero_optimization]
stage = 1
overlap_comm = true
reduce_bucket_size = "auto"
allgather_bucket_size = "auto"
contiguous_gradients = true
reduce_scatter = true
round_robin_gradients = false
sub_group_size = 1e9
stage3_prefetch_bucket_size = "auto"
stage3_param_persistence_threshold = "auto"
stage3_max_live_parameters = "auto"
stage3_max_reuse_distance = "auto"
stage3_gather_16bit_weights_on_model_save = true
[zero_optimization.offload_optimizer]
device = "none"
nvme_path = ""
pin_memory = true
ratio = 1.0
[zero_optimization.offload_param]
device = "none"
nvme_path = ""
pin_memory = true
buffer_count = 5
max_in_cpu = 1e9
[bf16]
enabled = "auto"
[fp16]
enabled = false
loss_scale = 0
initial_scale_power = 16
loss_scale_window = 1000
hysteresis = 2
consecutive_hysteresis = false
min_loss_scale = 1
[aio]
block_size = 1048576
queue_depth = 32
single_submit = false
overlap_events = true
[checkpoint]
save_interval = 0
save_minutes  = 30
keep_last = 2
keep_every = 0
resume = "auto"
export_hf = true
export_interval = 0
export_dtype = "auto"
[logging]
interval = 1
memory = false
tensorboard = false
[limits]
time = "none"
hang_seconds = 1800
straggler_interval = 0
[cuda]
tf32 = false
stochastic_rounding = false
[weight_sync]
interval = 0
receivers = 0
bucket_size_bytes = 268435456
)";

}  // namespace

TEST_CASE("every key of the job file is in the table, with its default", "[job]") {
    const JobFile file = parse_job(kEveryKey, "job.toml", {});
    CHECK(file.given.size() == job_keys().size());
    Job expected;
    expected.model_name = "models/tiny";
    expected.output_dir = "runs/tiny";
    expected.data.train = {"a.h5"};
    expected.data.sequence_length = 16;
    check_equal(file.job, expected);
    std::set<std::string_view> names;
    for (const Key& key : job_keys()) {
        names.insert(key.name);
        CHECK_FALSE(key.meaning.empty());
        CHECK(key.meaning.find('|') == std::string_view::npos);  // would end a cell of docs/job.md
    }
    CHECK(names.size() == job_keys().size());
}

TEST_CASE("defaults are values that the table accepts", "[job]") {
    const Job job = parse("");
    check_equal(parse_job(job_to_toml(job), "again", {}).job, job);
}

TEST_CASE("values of every type", "[job]") {
    const Job job = parse(R"(
seed = 7
train_batch_size = 12
full_determinism = true
gradient_clipping = 2
[zero_optimization]
stage = 0
reduce_bucket_size = 5e7
allgather_bucket_size = 1_000
[model]
logits_optimization = "store"
[rl]
kl_loss_type = "low_var_kl"
[training.optimizer]
betas = [0, 0.95]
no_decay = ["*norm*", '*.bias']
[bf16]
enabled = true
)");
    CHECK(job.seed == 7);
    CHECK(job.train_batch_size == 12);
    CHECK(job.full_determinism);
    CHECK(job.gradient_clipping == 2.0);
    CHECK(job.zero_optimization.stage == 0);
    CHECK(job.zero_optimization.reduce_bucket_size == 50'000'000);
    CHECK(job.zero_optimization.allgather_bucket_size == 1000);
    CHECK(job.model.logits_optimization == "compute");
    CHECK(job.rl.kl_loss_type == "k3");
    CHECK(job.training.optimizer.betas == std::array{0.0, 0.95});
    CHECK(job.training.optimizer.no_decay == std::vector<std::string>{"*norm*", "*.bias"});
    CHECK(job.bf16.enabled == true);
    CHECK(parse("[model]\nlogits_optimization = \"recompute\"").model.logits_optimization == "memory");
    CHECK(parse("model.logits_optimization = \"none\"").model.logits_optimization == "none");
    CHECK(parse("seed = 9223372036854775807").seed == INT64_MAX);
    CHECK(parse("gradient_clipping = 9007199254740993").gradient_clipping == 9007199254740992.0);
    CHECK_FALSE(parse("bf16 = {enabled = \"auto\"}").bf16.enabled.has_value());
    CHECK_FALSE(parse("train_micro_batch_size_per_gpu = \"auto\"").train_micro_batch_size_per_gpu.has_value());
}

TEST_CASE("comments, line ends, blanks and a byte-order mark do not matter", "[job]") {
    CHECK(parse("  [ data ]\neval = [\n  'a',\n  # b\n  \"[c]\", ]\n[\"training\"]\nmax_steps=3").data.eval.size() ==
          2);
    CHECK(parse("# seed = 1\r\nseed = 2 # two\r\n").seed == 2);
    CHECK(parse_job(std::string("\xef\xbb\xbf").append(kShort), "job.toml", kData).job.model_name == "m");
}

TEST_CASE("--set overrides the file, and the last one wins", "[job]") {
    CHECK(parse("seed = 1", {"seed=2", "seed = 3"}).seed == 3);
    CHECK(parse("", {"training.optimizer.lr=3e-5"}).training.optimizer.lr == 3e-5);
    CHECK(parse("", {"training.optimizer.betas=[0.8, 0.9]"}).training.optimizer.betas == std::array{0.8, 0.9});
    CHECK(parse("", {"model_name=models/x"}).model_name == "models/x");
    CHECK(parse("", {"model_name=\"models/x y\""}).model_name == "models/x y");
    CHECK(parse("", {"model_name=a=b"}).model_name == "a=b");
    CHECK(parse("", {"model_name=a \"b\" \\c"}).model_name == "a \"b\" \\c");
    CHECK(parse("", {"model_name=x\nseed = 5"}).model_name == "x\nseed = 5");
    CHECK(parse("", {"model_name='x'\nseed = 5"}).seed == 42);
    CHECK(parse("", {"model_name=org/name@main"}).model_name == "org/name@main");
    CHECK(parse("", {"data.train=[\"a\",\"b\"]"}).data.train == std::vector<std::string>{"a", "b"});
    CHECK(parse("", {"data.train=x/*.h5"}).data.train == std::vector<std::string>{"x/*.h5"});
    CHECK(parse("", {"data.train=[ab]*.h5"}).data.train == std::vector<std::string>{"[ab]*.h5"});
    CHECK(parse("", {"data.train=\"x\""}).data.train == std::vector<std::string>{"x"});
    CHECK(parse("", {"data.train=../../../../../../../../../../x"}).data.train[0] == "../../../../../../../../../../x");
    CHECK(parse("", {"train_batch_size=auto"}).train_batch_size == std::nullopt);
    CHECK(parse("", {"bf16.enabled=false"}).bf16.enabled == false);
    // What the file says no longer matters.
    CHECK(parse("device = \"cuda\"\nzero_optimization.stage = 3", {"device=cpu", "zero_optimization.stage=1"}).device ==
          "cpu");
}

TEST_CASE("given and unused keys", "[job]") {
    const JobFile file = parse_job(
        kShort + R"(
[log_prob]
data = ["x"]
[fp16]
hysteresis = 3
[zero_optimization]
stage3_max_live_parameters = 1e9
[training]
num_epochs = 2
)",
        "job.toml", {"data.train=a", "data.sequence_length=4", "seed=1", "training.max_steps=3", "model_name=x"});
    CHECK(file.given == std::vector<std::string>{"model_name", "output_dir", "seed", "data.train",
                                                 "data.sequence_length", "training.max_steps", "training.num_epochs",
                                                 "log_prob.data", "zero_optimization.stage3_max_live_parameters",
                                                 "fp16.hysteresis"});
    CHECK(file.unused == std::vector<std::string>{"training.num_epochs", "log_prob.data",
                                                  "zero_optimization.stage3_max_live_parameters", "fp16.hysteresis"});
    const JobFile scoring = parse_job(kEveryKey, "job.toml", {"job_type=log_prob", "log_prob.data=x"});
    const std::set<std::string> unused(scoring.unused.begin(), scoring.unused.end());
    CHECK(unused.contains("training.optimizer.lr"));
    CHECK(unused.contains("data.train"));
    CHECK_FALSE(unused.contains("data.format"));
    CHECK_FALSE(unused.contains("log_prob.output"));
    CHECK_FALSE(unused.contains("model_name"));
}
