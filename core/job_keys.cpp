#include "core/job_keys.h"

#include <algorithm>

// A row's name is the path of the member that it sets, so that the two cannot differ.
#define KEY(path) .name = #path, .field = [](Job& job) -> Field { return &job.path; }

namespace tessera {
namespace {

constexpr Range at_least(double low) {
    return {.low = low};
}

constexpr Range above(double low) {
    return {.low = low, .above = true};
}

constexpr Range from_to(double low, double high) {
    return {.low = low, .high = high};
}

constexpr Range kFraction = {.low = 0, .high = 1, .below = true};  // [0, 1)

bool not_empty(const std::string& text) {
    return !text.empty();
}

bool is_clock(const std::string& text) {
    const auto digit = [&](std::size_t i) { return text[i] >= '0' && text[i] <= '9'; };
    const std::size_t hours = text.size() < 6 ? 0 : text.size() - 6;
    if (hours < 1 || hours > 4 || text[hours] != ':' || text[hours + 3] != ':') {
        return false;
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (i != hours && i != hours + 3 && !digit(i)) {
            return false;
        }
    }
    return text[hours + 1] < '6' && text[hours + 4] < '6';
}

bool is_inside(const std::string& path) {
    return path.ends_with(".h5") && !path.empty() && path.front() != '/' && path.back() != '/' &&
           ("/" + path + "/").find("/../") == std::string::npos;
}

constexpr Text kNotEmpty = {"a string that is not empty", not_empty};
constexpr Text kPath = {"a path", not_empty};
constexpr Text kClock = {"\"HH:MM:SS\"", is_clock};
constexpr Text kInside = {"a relative path without \"..\" that ends in .h5", is_inside};

bool is_training(const Job& job) {
    return job.job_type == "training";
}

bool uses_nvme(const Job& job) {
    const auto& zero = job.zero_optimization;
    return is_training(job) && (zero.offload_optimizer.device == "nvme" || zero.offload_param.device == "nvme");
}

// clang-format off
constexpr Reader kBoth = {"both job types", [](const Job&) { return true; }};
constexpr Reader kTraining = {"training", is_training};
constexpr Reader kSeed = {"training; log_prob with a random model",
    [](const Job& job) { return is_training(job) || job.model.init == "random"; }};
constexpr Reader kTile = {"both job types, unless logits_optimization is \"none\"",
    [](const Job& job) { return job.model.logits_optimization != "none"; }};
constexpr Reader kTooLong = {"training, packing \"pad\", \"best_fit\" or \"auto\"", [](const Job& job) {
    return is_training(job) && job.data.packing != "concat" && job.data.packing != "documents"; }};
constexpr Reader kEpochs = {"training, max_steps = 0",
    [](const Job& job) { return is_training(job) && job.training.max_steps == 0; }};
constexpr Reader kEval = {"training with data.eval",
    [](const Job& job) { return is_training(job) && !job.data.eval.empty(); }};
constexpr Reader kHorizon = {"training with a warmup_ratio or a type other than \"constant\"", [](const Job& job) {
    const auto& scheduler = job.training.lr_scheduler;
    return is_training(job) && (scheduler.type != "constant" || scheduler.warmup_ratio > 0); }};
constexpr Reader kWarmupRatio = {"training, warmup_steps = 0",
    [](const Job& job) { return is_training(job) && job.training.lr_scheduler.warmup_steps == 0; }};
constexpr Reader kDecay = {"training, unless type is \"constant\"",
    [](const Job& job) { return is_training(job) && job.training.lr_scheduler.type != "constant"; }};
constexpr Reader kLogProb = {"log_prob", [](const Job& job) { return job.job_type == "log_prob"; }};
constexpr Reader kStride = {"log_prob, window > 0",
    [](const Job& job) { return job.job_type == "log_prob" && job.log_prob.window > 0; }};
constexpr Reader kLogProbMicro = {"log_prob, max_token_len = 0",
    [](const Job& job) { return job.job_type == "log_prob" && job.log_prob.max_token_len == 0; }};
constexpr Reader kPolicy = {"training, loss \"policy_gradient\"",
    [](const Job& job) { return is_training(job) && job.training.loss == "policy_gradient"; }};
constexpr Reader kZorro = {"training, zorro.enable = true",
    [](const Job& job) { return is_training(job) && job.zorro.enable; }};
constexpr Reader kStage3 = {"both job types, stage 3",
    [](const Job& job) { return job.zero_optimization.stage == 3; }};
constexpr Reader kZero = {"training; log_prob, stage 3",
    [](const Job& job) { return is_training(job) || job.zero_optimization.stage == 3; }};
constexpr Reader kStage3Training = {"training, stage 3",
    [](const Job& job) { return is_training(job) && job.zero_optimization.stage == 3; }};
constexpr Reader kOffloadOptimizer = {"training, offload_optimizer.device other than \"none\"",
    [](const Job& job) { return is_training(job) && job.zero_optimization.offload_optimizer.device != "none"; }};
constexpr Reader kOffloadParam = {"training, offload_param.device other than \"none\"",
    [](const Job& job) { return is_training(job) && job.zero_optimization.offload_param.device != "none"; }};
constexpr Reader kNvme = {"training, an offload device \"nvme\"", uses_nvme};
constexpr Reader kFp16 = {"training, fp16.enabled = true",
    [](const Job& job) { return is_training(job) && job.fp16.enabled; }};
constexpr Reader kExport = {"training, export_hf = true or export_interval > 0", [](const Job& job) {
    return is_training(job) && (job.checkpoint.export_hf || job.checkpoint.export_interval > 0); }};
constexpr Reader kWeightSync = {"training, weight_sync.interval > 0",
    [](const Job& job) { return is_training(job) && job.weight_sync.interval > 0; }};
// clang-format on

std::vector<Key> general_keys() {
    return {
        {KEY(job_type), .reader = kBoth,
         .meaning = "What the run does: train a model, or write the log-probability that it gives to every token.",
         .choices = {{"training"}, {"log_prob"}}},
        {KEY(model_name), .reader = kBoth,
         .meaning = "Required. A Hugging Face model directory (config.json and, unless model.init is \"random\", "
                    "safetensors), or the name of a hub model, org/name or org/name@revision, that lies in the local "
                    "Hugging Face cache.",
         .text = kNotEmpty},
        {KEY(output_dir), .reader = kBoth,
         .meaning = "Required. The directory below which the run writes everything; it is created.", .text = kNotEmpty},
        {KEY(device), .reader = kBoth,
         .meaning =
             "Where the run computes. \"auto\" takes a GPU if there is a usable one and else the CPU; where GPUs "
             "were granted to the process and none can be used it is an error.",
         .choices = {{"auto"}, {"cuda"}, {"cpu"}}},
        {KEY(seed), .reader = kSeed, .meaning = "Determines the shuffling of rows and the weights of a random model.",
         .range = at_least(0)},
        {KEY(full_determinism), .reader = kBoth,
         .meaning = "true: a repeated run has the same bits, and options that cannot promise it are refused. The CPU "
                    "always has them, with either value."},
        {KEY(train_batch_size), .reader = kTraining,
         .meaning = "Sequences of one optimizer step over all ranks = train_micro_batch_size_per_gpu x "
                    "gradient_accumulation_steps x ranks. One or two of the three may be \"auto\" and follow from the "
                    "others; accumulation is 1 where that leaves a choice. Numbers that do not divide are an error.",
         .range = at_least(1)},
        {KEY(train_micro_batch_size_per_gpu), .reader = kTraining,
         .meaning = "Sequences that one rank takes through the model at a time, whatever the device. Where "
                    "train_batch_size has a number and this key is not given, it counts as \"auto\".",
         .range = at_least(1)},
        {KEY(gradient_accumulation_steps), .reader = kTraining,
         .meaning = "Micro-batches of a rank whose gradients make one optimizer step. Where train_batch_size has a "
                    "number and this key is not given, it counts as \"auto\".",
         .range = at_least(1)},
        {KEY(gradient_clipping), .reader = kTraining,
         .meaning = "Limit of the global L2 norm of the gradients: they are multiplied by min(1, limit / (norm + "
                    "1e-6)). 0 turns clipping off.",
         .range = at_least(0)},
        {KEY(communication_data_type), .reader = kTraining,
         .meaning =
             "Precision in which gradients travel between ranks. Each rank's part is rounded to it once (stages 2 "
             "and 3: that of each micro-batch); sums are added in fp32, and stage 0 sends them on in fp32.",
         .choices = {{"fp32"}, {"bf16"}, {"fp16"}}, .available = {"\"fp32\"", "\"bf16\""}},
        {KEY(wall_clock_breakdown), .reader = kTraining,
         .meaning = "true: the time of each phase of a step goes to the console and the metrics."},
    };
}

std::vector<Key> model_keys() {
    return {
        {KEY(model.init), .reader = kBoth,
         .meaning = "\"pretrained\" reads the weights of the model directory. \"random\" draws matrices from a normal "
                    "distribution of the model's initializer_range and sets norms to 1 and biases to 0; each number "
                    "depends on the seed, the tensor's name and its position alone.",
         .choices = {{"pretrained"}, {"random"}}},
        {KEY(model.attn_implementation), .reader = kBoth,
         .meaning =
             "\"flash\" is the fused kernel, which never holds a matrix of scores; \"eager\" is composed of simple "
             "operations, for comparison, on the CPU; \"cudnn\" is cuDNN's kernel, on a GPU, in bf16, where the build "
             "has it.",
         .choices = {{"flash"}, {"eager"}, {"cudnn"}}},
        {KEY(model.enable_gradient_checkpointing), .reader = kTraining,
         .meaning = "true: keep only the input of each block and compute the block again in the backward pass, which "
                    "saves memory for a third more time. \"auto\": only if the run does not fit otherwise."},
        {KEY(model.fused_kernels), .reader = kBoth,
         .meaning =
             "false: norms, rotary embeddings and activations are composed of simple operations, for comparison."},
        {KEY(model.logits_optimization), .reader = kBoth,
         .meaning =
             "How the head is computed. \"none\" holds the logits of all tokens at once; \"compute\" and \"memory\" "
             "work in tiles and, where a loss needs the logits twice, keep them (\"compute\") or compute them "
             "again (\"memory\"); \"auto\" is the cheapest that never holds them all.",
         .choices = {{"auto"}, {"none"}, {"compute", "store"}, {"memory", "recompute"}}},
        {KEY(model.logits_optimization_peak_mem_size_in_gib), .reader = kTile,
         .meaning = "Bound of the memory of one tile of logits, in GiB.", .range = above(0)},
    };
}

std::vector<Key> data_keys() {
    return {
        {KEY(data.train), .reader = kTraining,
         .meaning = "Required for training. Files or patterns (a pattern's matches in sorted order): .h5 token files, "
                    ".bin with .idx (Megatron), .bin of llm.c, .txt (each byte a token, each file a document)."},
        {KEY(data.eval), .reader = kTraining,
         .meaning = "Files of the evaluation, as in data.train. Empty: no evaluation."},
        {KEY(data.format), .reader = kBoth, .meaning = "Format of all data files; \"auto\" tells it from each file.",
         .choices = {{"auto"}, {"hdf5"}, {"megatron"}, {"llmc"}, {"bytes"}}},
        {KEY(data.sequence_length), .reader = kTraining,
         .meaning = "L, the inputs of a row. Required for training (at least 1).", .range = at_least(0)},
        {KEY(data.packing), .reader = kTraining,
         .meaning =
             "How documents become rows of L inputs and L targets. \"concat\": row r has the stream's tokens from "
             "r x L on, ignoring where documents end; a rest of less than L + 1 tokens is left out. \"documents\": "
             "the same rows, but positions start again and attention ends at each document, and no token "
             "predicts the next document's. \"pad\": a document a row, cut after L + 1 tokens. \"best_fit\": whole "
             "documents, longest first, each into the fullest row that has room for it. \"auto\": \"best_fit\" "
             "if the data has a loss mask, else \"concat\". Room that stays empty costs nothing.",
         .choices = {{"auto"}, {"concat"}, {"documents"}, {"pad"}, {"best_fit"}}},
        {KEY(data.too_long), .reader = kTooLong,
         .meaning = "What becomes of a document of more than L + 1 tokens: an error that says which, its first L + 1 "
                    "tokens, or nothing.",
         .choices = {{"error"}, {"cut"}, {"drop"}}},
        {KEY(data.shuffle), .reader = kTraining,
         .meaning =
             "true: each epoch takes the rows in an order of its own that depends on seed and epoch only. false: "
             "in the order of the files. Step n takes the next train_batch_size rows, across epochs; row i of "
             "them goes to micro-step i / (micro x ranks) of rank (i / micro) % ranks."},
    };
}

std::vector<Key> training_keys() {
    return {
        {KEY(training.max_steps), .reader = kTraining, .meaning = "Optimizer steps of the run. 0: as num_epochs says.",
         .range = at_least(0)},
        {KEY(training.num_epochs), .reader = kEpochs,
         .meaning = "Times that the rows are gone through: ceil(num_epochs x rows / train_batch_size) steps.",
         .range = at_least(1)},
        {KEY(training.max_skipped_steps), .reader = kTraining,
         .meaning =
             "Steps in a row with a loss or gradient that is not finite after which the run ends (exit code 77). "
             "Such a step uses up its number and its rows but changes neither weights nor schedule.",
         .range = at_least(1)},
        {KEY(training.training_horizon), .reader = kHorizon,
         .meaning = "Steps over which the schedule of the learning rate extends. 0: the steps of the run.",
         .range = at_least(0)},
        {KEY(training.eval_interval), .reader = kEval,
         .meaning = "Steps from one evaluation to the next; 0: only after the last step, which always evaluates.",
         .range = at_least(0)},
        {KEY(training.loss), .reader = kTraining,
         .meaning = "\"cross_entropy\" of the targets, or \"policy_gradient\" on rollout files as [rl] says.",
         .choices = {{"cross_entropy"}, {"policy_gradient"}}, .available = {"\"cross_entropy\""}},
        {KEY(training.optimizer.type), .reader = kTraining,
         .meaning =
             "\"AdamW\" decays the weights themselves; \"Adam\" adds weight_decay x weight to the gradient after "
             "clipping (grad_norm does not include it).",
         .choices = {{"AdamW"}, {"Adam"}}},
        {KEY(training.optimizer.lr), .reader = kTraining,
         .meaning = "The learning rate that the schedule scales. Must be given if model.init is \"random\".",
         .range = at_least(0)},
        {KEY(training.optimizer.betas), .reader = kTraining, .meaning = "Decay of the first and of the second moment.",
         .range = kFraction},
        {KEY(training.optimizer.eps), .reader = kTraining,
         .meaning = "Added to the root of the second moment before the division; it keeps 0 / 0 away.",
         .range = {.low = 1e-30}},
        {KEY(training.optimizer.weight_decay), .reader = kTraining, .meaning = "Strength of the decay of weights.",
         .range = at_least(0)},
        {KEY(training.optimizer.no_decay), .reader = kTraining,
         .meaning =
             "Shell patterns on whole Hugging Face tensor names (\"*\" matches dots too): tensors without decay, "
             "for example [\"*norm*\", \"*.bias\", \"*embed*\"]."},
        {KEY(training.lr_scheduler.type), .reader = kTraining,
         .meaning =
             "What the rate does after the W steps of warm-up until step H, the horizon, with p = min(1, (n - W) / "
             "(H - W)) at step n (p = 1 where H <= W) and m = min_lr_ratio: \"constant\": lr; \"linear\": "
             "lr x (1 - (1 - m) p); \"cosine\": lr x (m + (1 - m)(1 + cos(pi p)) / 2).",
         .choices = {{"constant"}, {"cosine"}, {"linear"}}},
        {KEY(training.lr_scheduler.warmup_ratio), .reader = kWarmupRatio,
         .meaning = "W as a share of the horizon, rounded to the nearest step (a half to the even one).",
         .range = from_to(0, 1)},
        {KEY(training.lr_scheduler.warmup_steps), .reader = kTraining,
         .meaning = "W, the steps of the warm-up. 0: by warmup_ratio. Convention \"deepspeed\" makes it 2 at least.",
         .range = at_least(0)},
        {KEY(training.lr_scheduler.warmup_type), .reader = kTraining,
         .meaning = "Rate of warm-up step n: \"linear\": lr x n / W; \"log\": lr x ln(n + 1) / ln(W + 1).",
         .choices = {{"linear"}, {"log"}}},
        {KEY(training.lr_scheduler.min_lr_ratio), .reader = kDecay,
         .meaning = "m, the rate at the horizon as a share of lr.", .range = from_to(0, 1)},
        {KEY(training.lr_scheduler.convention), .reader = kTraining,
         .meaning = "\"standard\": as described here. \"deepspeed\": the rates of DeepSpeed's WarmupLR (constant), "
                    "WarmupCosineLR (cosine, which needs a warm-up) and WarmupDecayLR (linear, which ends at 0), step "
                    "for step; the first two steps have rate 0.",
         .choices = {{"standard"}, {"deepspeed"}}},
    };
}

std::vector<Key> log_prob_keys() {
    return {
        {KEY(log_prob.data), .reader = kLogProb,
         .meaning = "Required for log_prob. Files or patterns as in data.train, or rollout files. Documents are scored "
                    "whole, or in windows if log_prob.window says so."},
        {KEY(log_prob.window), .reader = kLogProb,
         .meaning = "Tokens of a window in which longer documents are scored. 0: documents whole, up to the positions "
                    "that the model has.",
         .range = at_least(0)},
        {KEY(log_prob.stride), .reader = kStride,
         .meaning =
             "Tokens that each window scores, its last; those before them are context. Every token of a document "
             "but the first is scored exactly once. 0: as many as the window has. At most the window.",
         .range = at_least(0)},
        {KEY(log_prob.output), .reader = kLogProb, .meaning = "Name of the file to write, below output_dir.",
         .text = kInside},
        {KEY(log_prob.temperature), .reader = kLogProb, .meaning = "Logits are divided by this.",
         .range = {.low = 1e-6, .high = 1e6}},
        {KEY(log_prob.entropy), .reader = kLogProb,
         .meaning = "true: also write the entropy of the distribution at every position."},
        {KEY(log_prob.train_micro_batch_size_per_gpu), .reader = kLogProbMicro,
         .meaning = "Sequences of a micro-batch.", .range = at_least(1)},
        {KEY(log_prob.max_token_len), .reader = kLogProb,
         .meaning = "Most tokens of a micro-batch (a longer sequence goes alone). 0: by the number of sequences. "
                    "Micro-batches depend on the data and this number only, so that no value depends on the ranks.",
         .range = at_least(0)},
    };
}

std::vector<Key> policy_keys() {
    return {
        {KEY(rl.eps_clip), .reader = kPolicy, .meaning = "The ratio of probabilities is clipped below 1 - eps_clip.",
         .range = at_least(0)},
        {KEY(rl.eps_clip_higher), .reader = kPolicy,
         .meaning = "The ratio is clipped above 1 + eps_clip_higher. 0: the same as eps_clip.", .range = at_least(0)},
        {KEY(rl.c_clip), .reader = kPolicy,
         .meaning = "Bound of the loss where the advantage is negative (dual clip). 0: none.",
         .range = {.low = 1, .above = true, .or_zero = true}},
        {KEY(rl.importance_sampling_level), .reader = kPolicy,
         .meaning = "Whether ratios are of single tokens or of whole responses.", .choices = {{"token"}, {"sequence"}}},
        {KEY(rl.response_length), .reader = kPolicy,
         .meaning = "The divisor of \"seq-mean-token-sum-norm\". 0: the longest response of the global batch, with its "
                    "masked tokens.",
         .range = at_least(0)},
        {KEY(rl.loss_agg_mode), .reader = kPolicy, .meaning = "How the losses of tokens become one number.",
         .choices = {{"token-mean"}, {"seq-mean-token-sum"}, {"seq-mean-token-sum-norm"}, {"seq-mean-token-mean"}}},
        {KEY(rl.entropy_coeff), .reader = kPolicy, .meaning = "Weight of the entropy, which the loss rewards.",
         .range = at_least(0)},
        {KEY(rl.kl_loss_coef), .reader = kPolicy,
         .meaning = "Weight of the divergence from the reference model. Above 0 the rollout file must have reference "
                    "log-probs.",
         .range = at_least(0)},
        {KEY(rl.kl_loss_type), .reader = kPolicy, .meaning = "Estimator of that divergence.",
         .choices = {{"k1"}, {"abs"}, {"k2"}, {"k3", "low_var_kl"}}},
        {KEY(rl.temperature), .reader = kPolicy, .meaning = "Logits are divided by this.",
         .range = {.low = 1e-6, .high = 1e6}},
        {KEY(zorro.enable), .reader = kTraining,
         .meaning = "true: a prompt that several responses share is computed once.", .available = {"false"}},
        {KEY(zorro.rollout_n), .reader = kZorro,
         .meaning = "Most responses of one prompt in a micro-batch. 0: as many as there are.", .range = at_least(0)},
        {KEY(zorro.max_token_len), .reader = kZorro,
         .meaning = "Most packed tokens of a micro-batch. 0: by the number of sequences.", .range = at_least(0)},
    };
}

std::vector<Key> zero_keys() {
    return {
        {KEY(zero_optimization.stage), .reader = kBoth,
         .meaning =
             "What the ranks share out instead of each holding all of it: 0 nothing, 1 the optimizer's states, 2 "
             "gradients too, 3 parameters too (log_prob: 3 shares out parameters, the others nothing). \"auto\": the "
             "lowest of 1, 2, 3 that fits. The result is the same.",
         .range = from_to(0, 3)},
        {KEY(zero_optimization.overlap_comm), .reader = kZero,
         .meaning =
             "true: gradients are exchanged, parameters gathered, and new ones sent to all on a thread of their own, "
             "beside computation."},
        {KEY(zero_optimization.reduce_bucket_size), .reader = kZero,
         .meaning =
             "Elements of the buckets in which gradients are exchanged and by which ownership is cut. \"auto\": the "
             "largest unit of the model, at most 5e7.",
         .range = at_least(1)},
        {KEY(zero_optimization.allgather_bucket_size), .reader = kZero,
         .meaning = "Elements that are gathered in one call, in whole buckets. \"auto\": one bucket.",
         .range = at_least(1)},
        {KEY(zero_optimization.contiguous_gradients), .reader = kTraining,
         .meaning = "Gradients always lie in flat buckets.", .available = {"true"}},
        {KEY(zero_optimization.reduce_scatter), .reader = kTraining,
         .meaning = "Each rank always receives only the sums that it owns.", .available = {"true"}},
        {KEY(zero_optimization.round_robin_gradients), .reader = kTraining,
         .meaning = "Not needed: every bucket is spread over all ranks.", .available = {"false"}},
        {KEY(zero_optimization.sub_group_size), .reader = kOffloadOptimizer,
         .meaning = "Elements that the optimizer updates at a time; bounds the buffers of offload.",
         .range = at_least(1)},
        {KEY(zero_optimization.stage3_prefetch_bucket_size), .reader = kStage3,
         .meaning = "Elements that are gathered ahead of use, in whole units. \"auto\": the next unit; 0: nothing.",
         .range = at_least(0)},
        {KEY(zero_optimization.stage3_param_persistence_threshold), .reader = kStage3,
         .meaning =
             "Parameters of at most so many elements stay on every rank; those used as one matrix (q, k, v; gate, up) "
             "together or not at all. \"auto\": 10 x hidden_size.",
         .range = at_least(0)},
        {KEY(zero_optimization.stage3_max_live_parameters), .reader = kStage3,
         .meaning = "Most gathered elements at any time; less than the model needs is an error that says how many. "
                    "\"auto\": no bound.",
         .range = at_least(0)},
        {KEY(zero_optimization.stage3_max_reuse_distance), .reader = kStage3,
         .meaning = "A unit that is used again within so many elements is kept. \"auto\": 0.", .range = at_least(0)},
        {KEY(zero_optimization.stage3_gather_16bit_weights_on_model_save), .reader = kStage3Training,
         .meaning = "false: no export is made, at the end or in between."},
        {KEY(zero_optimization.offload_optimizer.device), .reader = kTraining,
         .meaning = "Where the optimizer's states live: on the device, in host memory or in files.",
         .choices = {{"none"}, {"cpu"}, {"nvme"}}, .available = {"\"none\""}},
        {KEY(zero_optimization.offload_optimizer.nvme_path), .reader = kNvme,
         .meaning = "Directory of the files; required for \"nvme\"."},
        {KEY(zero_optimization.offload_optimizer.pin_memory), .reader = kOffloadOptimizer,
         .meaning = "true: host buffers are locked in memory."},
        {KEY(zero_optimization.offload_optimizer.ratio), .reader = kOffloadOptimizer,
         .meaning = "Share of the states that is offloaded.", .range = from_to(0, 1)},
        {KEY(zero_optimization.offload_param.device), .reader = kTraining,
         .meaning = "Where parameters that are not in use live (stage 3).", .choices = {{"none"}, {"cpu"}, {"nvme"}},
         .available = {"\"none\""}},
        {KEY(zero_optimization.offload_param.nvme_path), .reader = kNvme,
         .meaning = "Directory of the files; required for \"nvme\"."},
        {KEY(zero_optimization.offload_param.pin_memory), .reader = kOffloadParam,
         .meaning = "true: host buffers are locked in memory."},
        {KEY(zero_optimization.offload_param.buffer_count), .reader = kOffloadParam,
         .meaning = "Buffers between files and device.", .range = at_least(1)},
        {KEY(zero_optimization.offload_param.max_in_cpu), .reader = kOffloadParam,
         .meaning = "Elements that stay in host memory although the device is \"nvme\".", .range = at_least(0)},
    };
}

std::vector<Key> precision_keys() {
    return {
        {KEY(bf16.enabled), .reader = kBoth,
         .meaning =
             "true: weights and activations in bfloat16, masters and sums in fp32. \"auto\": true on GPUs that have "
             "it (unless fp16 is on), false on the CPU."},
        {KEY(fp16.enabled), .reader = kBoth, .meaning = "true: weights and activations in float16, with loss scaling.",
         .available = {"false"}},
        {KEY(fp16.loss_scale), .reader = kFp16, .meaning = "Factor of the loss. 0: found as the run goes.",
         .range = at_least(0)},
        {KEY(fp16.initial_scale_power), .reader = kFp16,
         .meaning = "The search for the factor starts at 2 to this power.", .range = from_to(0, 127)},
        {KEY(fp16.loss_scale_window), .reader = kFp16, .meaning = "Steps without overflow after which it doubles.",
         .range = at_least(1)},
        {KEY(fp16.hysteresis), .reader = kFp16, .meaning = "Overflows after which it is halved.", .range = at_least(1)},
        {KEY(fp16.consecutive_hysteresis), .reader = kFp16,
         .meaning = "true: a step without overflow starts that count anew."},
        {KEY(fp16.min_loss_scale), .reader = kFp16, .meaning = "It does not fall below this.", .range = above(0)},
        {KEY(aio.block_size), .reader = kNvme, .meaning = "Bytes of one request to a file.", .range = at_least(1)},
        {KEY(aio.queue_depth), .reader = kNvme, .meaning = "Requests under way at a time.", .range = at_least(1)},
        {KEY(aio.single_submit), .reader = kNvme, .meaning = "true: requests are handed over one by one."},
        {KEY(aio.overlap_events), .reader = kNvme, .meaning = "true: handing over and collecting overlap."},
    };
}

std::vector<Key> run_keys() {
    return {
        {KEY(checkpoint.save_interval), .reader = kTraining,
         .meaning = "Steps from one checkpoint to the next. 0: by save_minutes; the end of the run always has one.",
         .range = at_least(0)},
        {KEY(checkpoint.save_minutes), .reader = kTraining,
         .meaning = "Minutes of wall-clock time from one checkpoint to the next. 0: only by save_interval.",
         .range = at_least(0)},
        {KEY(checkpoint.keep_last), .reader = kTraining, .meaning = "Complete checkpoints to keep. 0: all.",
         .range = at_least(0)},
        {KEY(checkpoint.keep_every), .reader = kTraining,
         .meaning = "Checkpoints of steps that are multiples of this are never removed. 0: no such steps.",
         .range = at_least(0)},
        {KEY(checkpoint.resume), .reader = kBoth,
         .meaning = "\"auto\": go on from the newest complete checkpoint below output_dir (or what a log_prob job has "
                    "written), if there is one. \"never\": start anew; what an earlier run left is moved to "
                    "output_dir/before-<time>. Else the checkpoint to go on from.",
         .choices = {{"auto"}, {"never"}}, .text = kPath},
        {KEY(checkpoint.export_hf), .reader = kTraining,
         .meaning = "true: the end of the run writes a Hugging Face directory, output_dir/hf."},
        {KEY(checkpoint.export_interval), .reader = kTraining,
         .meaning = "Steps from one further export, output_dir/hf-step-<n>, to the next. 0: none.",
         .range = at_least(0)},
        {KEY(checkpoint.export_dtype), .reader = kExport,
         .meaning = "Type of exported weights; \"auto\": what the run computes in. \"fp32\" has the master weights.",
         .choices = {{"auto"}, {"fp32"}, {"bf16"}, {"fp16"}}},
        {KEY(logging.interval), .reader = kTraining,
         .meaning = "Steps from one line on the console and in metrics.jsonl to the next. The first step, steps that "
                    "evaluate and "
                    "the last one always have one.",
         .range = at_least(1)},
        {KEY(logging.memory), .reader = kBoth, .meaning = "true: memory in use at the main points of a step.",
         .available = {"false"}},
        {KEY(logging.tensorboard), .reader = kTraining, .meaning = "true: metrics as TensorBoard files too.",
         .available = {"false"}},
        {KEY(limits.time), .reader = kBoth,
         .meaning = "Time after which the run saves and stops with exit code 75; \"auto\": what Slurm has left.",
         .choices = {{"none"}, {"auto"}}, .text = kClock, .available = {"\"none\""}},
        {KEY(limits.hang_seconds), .reader = kBoth,
         .meaning =
             "Seconds without any progress after which a job counts as hung: the ranks that are silent or "
             "elsewhere than the others are named, exit code 124. Loading, saving and exporting are not watched.",
         .range = at_least(1)},
        {KEY(limits.straggler_interval), .reader = kTraining,
         .meaning = "Steps from one report of the slowest rank of each phase to the next. 0: none.",
         .range = at_least(0), .available = {"0"}},
        {KEY(cuda.tf32), .reader = kBoth,
         .meaning = "true: fp32 products on the tensor cores, in TF32. Needs a GPU and bf16.enabled = false."},
        {KEY(cuda.stochastic_rounding), .reader = kTraining,
         .meaning =
             "true: master weights are rounded to bfloat16 at random, without bias; the bits depend on the seed, "
             "the parameter's name, the update and the element only. Needs a GPU and bf16.enabled."},
        {KEY(weight_sync.interval), .reader = kTraining,
         .meaning = "Steps from one transfer of the weights to the receiving ranks to the next. 0: none.",
         .range = at_least(0), .available = {"0"}},
        {KEY(weight_sync.receivers), .reader = kTraining,
         .meaning = "So many of the last ranks receive instead of training.", .range = at_least(0), .available = {"0"}},
        {KEY(weight_sync.bucket_size_bytes), .reader = kWeightSync, .meaning = "Bytes of one message.",
         .range = at_least(1)},
    };
}

std::vector<Key> all_keys() {
    std::vector<Key> all;
    for (auto part : {general_keys, model_keys, data_keys, training_keys, log_prob_keys, policy_keys, zero_keys,
                      precision_keys, run_keys}) {
        for (Key& key : part()) {
            all.push_back(std::move(key));
        }
    }
    return all;
}

}  // namespace

const std::vector<Key>& job_keys() {
    static const std::vector<Key> keys = all_keys();
    return keys;
}

const std::vector<Section>& job_sections() {
    static const std::vector<Section> sections = {
        {"", "The run as a whole."},
        {"model", "The model and how it is computed."},
        {"data", "What is trained on and evaluated on."},
        {"training", "Length of the run and its loss."},
        {"training.optimizer", "The update of the weights."},
        {"training.lr_scheduler", "The learning rate of each step (counted from 1)."},
        {"log_prob", "Jobs of type \"log_prob\": forward passes only."},
        {"rl", "Policy gradients on rollout files."},
        {"zorro", "Zero-redundancy rollouts."},
        {"zero_optimization", "What ranks share out, and how they exchange it. Sizes count elements."},
        {"zero_optimization.offload_optimizer", "The optimizer's states outside of the device."},
        {"zero_optimization.offload_param", "Parameters outside of the device (stage 3)."},
        {"bf16", "Mixed precision in bfloat16."},
        {"fp16", "Mixed precision in float16."},
        {"aio", "How offloaded files are read and written."},
        {"checkpoint", "Saving, going on, exporting."},
        {"logging", "What a run reports."},
        {"limits", "Time, and what counts as too slow."},
        {"cuda", "Options of GPUs."},
        {"weight_sync", "Current weights for other MPI ranks."},
    };
    return sections;
}

const Key* find_key(std::string_view name) {
    const auto& keys = job_keys();
    const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
    return found == keys.end() ? nullptr : &*found;
}

std::string_view section_of(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

}  // namespace tessera
