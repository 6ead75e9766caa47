#include "core/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/job_keys.h"
#include "core/job_literal.h"

using namespace tessera;
using Catch::Matchers::Contains;

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

// A training job in two lines, so that a test's own lines begin with the third.
const std::string kShort = "model_name = \"m\"\noutput_dir = \"o\"\n";
const std::vector<std::string> kData = {"data.train=a.h5", "data.sequence_length=16"};

Job parse(const std::string& lines, std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(), kData.begin(), kData.end());
    return parse_job(kShort + lines, "job.toml", overrides).job;
}

/// The message of the error that parsing ends with.
std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
        (void)parse_job(text, "job.toml", overrides);
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::usage);
        return error.what();
    }
    return "no error";
}

std::string error_of_lines(const std::string& lines) {
    return error_of(kShort + lines, kData);
}

void check_equal(Job a, Job b) {
    for (const Key& key : job_keys()) {
        INFO(key.name);
        const Field left = key.field(a);
        const Field right = key.field(b);
        std::visit([&](auto* value) { CHECK(*value == *std::get<decltype(value)>(right)); }, left);
    }
}

struct Bad {
    std::string lines;  // the third line of the file and what follows
    std::string message;
};

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
    CHECK_FALSE(parse("bf16 = {enabled = \"auto\"}").bf16.enabled.has_value());
    CHECK_FALSE(parse("train_micro_batch_size_per_gpu = \"auto\"").train_micro_batch_size_per_gpu.has_value());
}

TEST_CASE("comments, line ends and a byte-order mark do not matter", "[job]") {
    CHECK(parse("# seed = 1\r\nseed = 2 # two\r\n").seed == 2);
    CHECK(parse_job(std::string("\xef\xbb\xbf").append(kShort), "job.toml", kData).job.model_name == "m");
}

TEST_CASE("bad lines end with an error that says where, what and what is accepted", "[job]") {
    const std::vector<Bad> bad = {
        // names
        {"sed = 1", "job.toml:3:1: sed is not a key of the job file; did you mean seed?"},
        {"[training.optimizer]\nlrr = 1",
         "job.toml:4:1: training.optimizer.lrr is not a key of the job file; did you mean "
         "training.optimizer.lr?"},
        {"  [trianing]\nx = 1", "job.toml:3:4: trianing is not a section of the job file; did you mean training?"},
        {"[training.optimiser]",
         "training.optimiser is not a section of the job file; did you mean training.optimizer?"},
        {"lr = 1", "job.toml:3:1: lr is not a key of the job file; did you mean training.optimizer.lr?"},
        {"[training]\n  learning_rate = 1", "job.toml:4:3: training.learning_rate is not a key of the job file"},
        {"[optimizer]\nlr = 1", "optimizer is not a section of the job file; did you mean training.optimizer?"},
        {"zero_optimization.stag = 1", "job.toml:3:19: zero_optimization.stag is not a key"},
        {"\"model.init\" = \"random\"",
         "job.toml:3:1: \"model.init\" is not a key of the job file; did you mean model.init?"},
        {"\"\" = 1", "job.toml:3:1: \"\" is not a key"},
        {"\"se\\ned\" = 1", "\"se\\ned\" is not a key"},
        {"Seed = 1", "did you mean seed?"},
        {"[[trianing]]\nx = 1", "trianing is not a section"},
        {fmt::format("{} = 1", std::string(3000, 'k')), "kkk... is not a key"},
        // sections and values in each other's place
        {"training = 3", "job.toml:3:1: training = 3 must be a section"},
        {"[[training]]\nmax_steps = 1", "job.toml:3:3: training = [{...}] must be a section: [training], once"},
        {"bf16 = true", "bf16 = true must be a section"},
        {"[seed]\nx = 1", "job.toml:3:2: seed = {...} must be a whole number of at least 0"},
        {"training.optimizer.lr.x = 1", "training.optimizer.lr = {...} must be a number of at least 0"},
        // types
        {"train_micro_batch_size_per_gpu = \"two\"",
         "job.toml:3:1: train_micro_batch_size_per_gpu = \"two\" must be a whole "
         "number of at least 1 or \"auto\""},
        {"seed = \"1\"", "seed = \"1\" must be a whole number of at least 0"},
        {"seed = true", "seed = true must be a whole number"},
        {"seed = 1.5", "seed = 1.5 must be a whole number"},
        {"seed = 1e19", "seed = 1e+19 must be a whole number"},
        {"seed = nan", "seed = nan must be a whole number"},
        {"seed = 1979-05-27", "seed = a date or time must be"},
        {"seed = [1]", "seed = [1] must be"},
        {"full_determinism = 1", "full_determinism = 1 must be true or false"},
        {"full_determinism = \"true\"", "full_determinism = \"true\" must be true or false"},
        {"full_determinism = \"auto\"", "must be true or false"},
        {"gradient_clipping = \"1\"", "gradient_clipping = \"1\" must be a number of at least 0"},
        {"gradient_clipping = inf", "gradient_clipping = inf must be"},
        {"gradient_clipping = -inf", "gradient_clipping = -inf must be"},
        {"gradient_clipping = nan", "gradient_clipping = nan must be"},
        {"gradient_clipping = false", "gradient_clipping = false must be"},
        {"output_dir2 = 3", "did you mean output_dir?"},
        {"device = 0", "device = 0 must be \"auto\", \"cuda\" or \"cpu\""},
        {"[data]\neval = \"a.h5\"", "job.toml:4:1: data.eval = \"a.h5\" must be a list of strings, none of them empty"},
        {"[data]\neval = [\"a\", 1]", "data.eval = [\"a\", 1] must be a list of strings"},
        {"[data]\neval = [\"a\", \"\"]", "data.eval = [\"a\", \"\"] must be a list of strings, none of them empty"},
        {"[data]\neval = [[\"a\"]]", "data.eval = [[...]] must be a list of strings"},
        {"[data]\neval = [\"a\\u0000b\"]", "data.eval = [\"a\\u0000b\"] must be"},
        {"[bf16]\nenabled = \"yes\"", "bf16.enabled = \"yes\" must be true, false or \"auto\""},
        {"training.optimizer.betas = [0.9]",
         "training.optimizer.betas = [0.9] must be a list of two, each a number of at least 0 "
         "and below 1"},
        {"training.optimizer.betas = 0.9", "must be a list of two"},
        {"training.optimizer.betas = [0.9, \"x\"]", "must be a list of two"},
        // ranges
        {"seed = -1", "seed = -1 must be a whole number of at least 0"},
        {"train_batch_size = 0", "train_batch_size = 0 must be a whole number of at least 1 or \"auto\""},
        {"train_batch_size = -4", "train_batch_size = -4 must be"},
        {"gradient_accumulation_steps = 1e18",
         "gradient_accumulation_steps = 1e+18 must be a whole number of at least 1"},
        {"gradient_accumulation_steps = 9000000000000000000", "or \"auto\", and at most 1000000000000000"},
        {"gradient_clipping = -0.5", "gradient_clipping = -0.5 must be a number of at least 0"},
        {"training.optimizer.betas = [0.9, 1.0]", "training.optimizer.betas = [0.9, 1.0] must be a list of two"},
        {"training.optimizer.betas = [-0.1, 0.9]", "must be a list of two"},
        {"training.lr_scheduler.warmup_ratio = 1.5", "warmup_ratio = 1.5 must be a number from 0 to 1"},
        {"training.lr_scheduler.min_lr_ratio = -1", "min_lr_ratio = -1 must be a number from 0 to 1"},
        {"training.optimizer.lr = -1e-5", "training.optimizer.lr = -1e-05 must be a number of at least 0"},
        {"logging.interval = 0", "logging.interval = 0 must be a whole number of at least 1"},
        {"model.logits_optimization_peak_mem_size_in_gib = 0", "must be a number above 0"},
        {"rl.c_clip = 1", "rl.c_clip = 1 must be 0 or a number above 1"},
        {"log_prob.temperature = 0", "log_prob.temperature = 0 must be a number above 0"},
        {"fp16.initial_scale_power = 128", "fp16.initial_scale_power = 128 must be a whole number from 0 to 127"},
        {"zero_optimization.stage = 4", "zero_optimization.stage = 4 must be a whole number from 0 to 3 or \"auto\""},
        // words
        {"training.optimizer.type = \"SGD\"", "training.optimizer.type = \"SGD\" must be \"AdamW\" or \"Adam\""},
        {"training.optimizer.type = \"adamw\"", "must be \"AdamW\" or \"Adam\""},
        {"model.logits_optimization = \"fast\"",
         "must be \"auto\", \"none\", \"compute\" (alias \"store\") or \"memory\" (alias "
         "\"recompute\")"},
        {"job_type = \"train\"", "job_type = \"train\" must be \"training\" or \"log_prob\""},
        {"log_prob.output = \"../x.h5\"", "log_prob.output = \"../x.h5\" must be a relative path without \"..\""},
        {"log_prob.output = \"/x.h5\"", "must be a relative path"},
        {"log_prob.output = \"\"", "must be a relative path"},
        {"checkpoint.resume = \"\"", "checkpoint.resume = \"\" must be \"auto\", \"never\" or a path"},
        {"limits.time = \"90\"", "limits.time = \"90\" must be \"none\", \"auto\" or \"HH:MM:SS\""},
        {"limits.time = \"01:60:00\"", "must be \"none\", \"auto\" or \"HH:MM:SS\""},
        {"limits.time = \":00:00\"", "must be \"none\", \"auto\" or \"HH:MM:SS\""},
        {fmt::format("log_prob.output = \"{}/\"", std::string(500, 'x')), "xxx...\" must be"},
        // TOML itself
        {"seed = 1\nseed = 2", "job.toml:4:8: this is not TOML: "},
        {"seed = ", "job.toml:3:8: this is not TOML: "},
        {"seed = 1 2", "job.toml:3:10: this is not TOML: "},
        {"seed = 99999999999999999999", "not representable in 64 bits"},
        {"device = cpu", "job.toml:3:10: this is not TOML: "},
        {"device = \"\xff\"", "job.toml:3:10: this is not TOML: "},
        {"device = \"cpu", "this is not TOML"},
        {"[training\nmax_steps = 1", "job.toml:3:10: this is not TOML: "},
        {"[training]\n[training]", "this is not TOML"},
        {std::string("seed = 1\0", 9), "this is not TOML"},
        {fmt::format("data.eval = {}", std::string(5000, '[')), "this is not TOML"},
        {std::string(200000, '['), "this is not TOML"},
        // combinations
        {"model.init = \"random\"",
         "job.toml: training.optimizer.lr must be given: its default is for a pretrained model"},
        {"[training.lr_scheduler]\ntype = \"cosine\"\nconvention = \"deepspeed\"",
         "job.toml:5:1: training.lr_scheduler.convention = \"deepspeed\" with type = \"cosine\" needs a warm-up"},
        {"[training.lr_scheduler]\ntype = \"linear\"\nconvention = \"deepspeed\"\nmin_lr_ratio = 0.1",
         "job.toml:6:1: training.lr_scheduler.min_lr_ratio = 0.1 must be 0 with convention = \"deepspeed\""},
        {"[log_prob]\nwindow = 8\nstride = 9", "job.toml:5:1: log_prob.stride = 9 must be at most log_prob.window = 8"},
    };
    for (const Bad& row : bad) {
        INFO(row.lines.substr(0, 200));
        CHECK_THAT(error_of_lines(row.lines), Contains(row.message));
        CHECK(error_of_lines(row.lines).size() < 700);
    }
}

TEST_CASE("what this version does not have is refused by name, and taken where it is left out", "[job]") {
    const std::vector<Bad> bad = {
        {"device = \"cuda\"",
         "job.toml:3:1: device = \"cuda\" is not available in this version (this build has no CUDA); it takes "
         "\"auto\" or \"cpu\""},
        {"training.loss = \"policy_gradient\"",
         "training.loss = \"policy_gradient\" is not available in this version; it takes "
         "\"cross_entropy\""},
        {"zorro.enable = true", "zorro.enable = true is not available in this version; it takes false"},
        {"zero_optimization.stage = 2",
         "zero_optimization.stage = 2 is not available in this version; it takes 0 or 1"},
        {"zero_optimization.stage = 3", "stage = 3 is not available"},
        {"zero_optimization.stage = \"auto\"", "stage = \"auto\" is not available"},
        {"zero_optimization.contiguous_gradients = false", "is not available"},
        {"zero_optimization.reduce_scatter = false", "is not available"},
        {"zero_optimization.round_robin_gradients = true", "is not available"},
        {"zero_optimization.offload_optimizer.device = \"cpu\"", "is not available"},
        {"zero_optimization.offload_param.device = \"nvme\"", "is not available"},
        {"communication_data_type = \"bf16\"", "is not available"},
        {"wall_clock_breakdown = true", "is not available"},
        {"model.attn_implementation = \"cudnn\"", "is not available in this version (this build has no CUDA)"},
        {"model.enable_gradient_checkpointing = \"auto\"", "is not available in this version; it takes true or false"},
        {"fp16.enabled = true", "is not available"},
        {"logging.memory = true", "is not available"},
        {"logging.tensorboard = true", "is not available"},
        {"limits.time = \"auto\"", "is not available"},
        {"limits.time = \"100:00:00\"", "limits.time = \"100:00:00\" is not available"},
        {"limits.hang_seconds = 60", "is not available"},
        {"limits.straggler_interval = 1", "is not available"},
        {"cuda.tf32 = true", "is not available"},
        {"cuda.stochastic_rounding = true", "is not available"},
        {"weight_sync.interval = 1", "is not available"},
        {"weight_sync.receivers = 1", "is not available"},
    };
    for (const Bad& row : bad) {
        INFO(row.lines);
        CHECK_THAT(error_of_lines(row.lines), Contains(row.message));
    }
    CHECK_NOTHROW(parse("device = \"cpu\"\nzero_optimization.stage = 0\nmodel.enable_gradient_checkpointing = false"));
    // Every row that is limited takes its default and refuses at least one value of the right type.
    for (const Key& key : job_keys()) {
        Job job;
        const std::string given = literal(key.field(job));
        INFO(key.name);
        CHECK((key.available.empty() ||
               std::find(key.available.begin(), key.available.end(), given) != key.available.end()));
    }
}

TEST_CASE("required keys", "[job]") {
    CHECK_THAT(error_of(""), Contains("job.toml: model_name must be given"));
    CHECK_THAT(error_of("# nothing\n"), Contains("job.toml: model_name must be given"));
    CHECK_THAT(error_of("model_name = \"m\""), Contains("job.toml: output_dir must be given"));
    CHECK_THAT(error_of("model_name = \"\""),
               Contains("job.toml:1:1: model_name = \"\" must be a string that is not empty"));
    CHECK_THAT(error_of(kShort), Contains("job.toml: data.train must be given"));
    CHECK_THAT(error_of(kShort + "[data]\ntrain = []"), Contains("job.toml:4:1: data.train must be given"));
    CHECK_THAT(error_of(kShort, {"data.train=x"}), Contains("job.toml: data.sequence_length must be given"));
    CHECK_THAT(error_of(kShort + "data.sequence_length = 0", {"data.train=x"}),
               Contains("job.toml:3:6: data.sequence_length must be given: a whole number of at least 1"));
    CHECK_THAT(error_of(kShort + "job_type = \"log_prob\""), Contains("job.toml: log_prob.data must be given"));
    CHECK(error_of(kShort + "job_type = \"log_prob\"\nlog_prob.data = [\"x\"]") == "no error");
    CHECK(error_of(kShort + "job_type = \"log_prob\"\nlog_prob.data = [\"x\"]\nmodel.init = \"random\"") == "no error");
    CHECK(error_of(kShort + "model.init = \"random\"\ntraining.optimizer.lr = 1e-5", kData) == "no error");
}

TEST_CASE("of several errors the first in the file is named", "[job]") {
    CHECK_THAT(error_of_lines("zzz = 1\nseed = -1\naaa = 2"), Contains("job.toml:3:1: zzz"));
    CHECK_THAT(error_of_lines("seed = -1\naaa = 2"), Contains("job.toml:3:1: seed"));
}

TEST_CASE("a name of very many parts or an endless file is refused before it does harm", "[job]") {
    std::string name = "a";
    for (int i = 0; i < 500'000; ++i) {
        name += ".a";
    }
    CHECK_THAT(error_of(name + " = 1"), Contains("job.toml: a name has more than 16 parts"));
    CHECK_THAT(error_of(fmt::format("[{}]", name)), Contains("a name has more than 16 parts"));
    CHECK_THAT(error_of(fmt::format("x = {{{} = 1}}", name)), Contains("a name has more than 16 parts"));
    CHECK_THAT(error_of(std::string(5 << 20, '#')), Contains("are too many for a job file"));
    // Dots in strings and comments are no parts of names.
    const std::string dots(100, '.');
    const Job job = parse(fmt::format("# {0}\ndata.eval = [\"{0}\", '{0}', \"\"\"{0}\\\"\n{0}\"\"\"]", dots));
    CHECK(job.data.eval.size() == 3);
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

TEST_CASE("errors of --set quote it", "[job]") {
    const std::vector<Bad> bad = {
        {"foo.bar=1", "--set foo.bar=1: foo.bar is not a key of the job file"},
        {"sed=1", "--set sed=1: sed is not a key of the job file; did you mean seed?"},
        {"seed", "--set seed: must be key=value"},
        {"=1", "--set =1: "},
        {"seed=", "--set seed=: seed = \"\" must be a whole number of at least 0"},
        {"seed=x", "--set seed=x: seed = \"x\" must be a whole number of at least 0"},
        {"model_name=2024", "--set model_name=2024: model_name = 2024 must be a string that is not empty"},
        {"bf16=true", "--set bf16=true: bf16 is a section; set a key of it"},
        {"model_name=\xff", ": the value is not UTF-8"},
        {"device=cuda", "--set device=cuda: device = \"cuda\" is not available in this version"},
        {"log_prob.stride=3", "no error"},
        {"data.sequence_length=0", "--set data.sequence_length=0: data.sequence_length must be given"},
        {fmt::format("seed={}", std::string(100'000, '[')), "...: seed = \"[[["},
    };
    for (const Bad& row : bad) {
        INFO(row.lines.substr(0, 100));
        std::vector<std::string> overrides = kData;
        overrides.push_back(row.lines);
        CHECK_THAT(error_of(kShort, overrides), Contains(row.message));
    }
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

TEST_CASE("the batch numbers are DeepSpeed's", "[job][batch]") {
    std::ifstream table("data/tables/batch.json");
    REQUIRE(table);
    int checked = 0;
    const auto cases = nlohmann::json::parse(table).at("cases");
    for (const auto& entry : cases) {
        INFO(entry.dump());
        std::string lines;  // "a number that is absent is "auto" in a job file"
        for (const char* name : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
            const auto& given = entry.at("given");
            lines += fmt::format("{} = {}\n", name, given.contains(name) ? given.at(name).dump() : "\"auto\"");
        }
        const std::int64_t ranks = entry.at("world");
        if (entry.contains("error")) {
            CHECK_THROWS_AS(
                [&] {
                    Job job = parse(lines);
                    resolve_batch(job, ranks);
                }(),
                Error);
        } else {
            Job job = parse(lines);
            resolve_batch(job, ranks);
            CHECK(job.train_batch_size == entry.at("result").at("train_batch_size").get<std::int64_t>());
            CHECK(job.train_micro_batch_size_per_gpu ==
                  entry.at("result").at("train_micro_batch_size_per_gpu").get<std::int64_t>());
            CHECK(job.gradient_accumulation_steps ==
                  entry.at("result").at("gradient_accumulation_steps").get<std::int64_t>());
        }
        ++checked;
    }
    CHECK(checked == 29);
}

TEST_CASE("batch numbers that are not given follow from train_batch_size", "[job][batch]") {
    const auto numbers = [](const std::string& lines, std::int64_t ranks) {
        Job job = parse(lines);
        resolve_batch(job, ranks);
        return std::array{*job.train_batch_size, *job.train_micro_batch_size_per_gpu, *job.gradient_accumulation_steps};
    };
    using Numbers = std::array<std::int64_t, 3>;
    CHECK(numbers("", 4) == Numbers{4, 1, 1});
    CHECK(numbers("train_batch_size = 4\ntrain_micro_batch_size_per_gpu = 2", 1) == Numbers{4, 2, 2});
    CHECK(numbers("train_batch_size = 8\ngradient_accumulation_steps = 2", 2) == Numbers{8, 2, 2});
    CHECK(numbers("train_batch_size = 8", 2) == Numbers{8, 4, 1});
    CHECK(numbers("train_micro_batch_size_per_gpu = 3", 2) == Numbers{6, 3, 1});
    CHECK(numbers("gradient_accumulation_steps = 5", 2) == Numbers{10, 1, 5});
}

TEST_CASE("batch numbers that do not divide say all three and the ranks", "[job][batch]") {
    const auto error = [](const std::string& lines, std::int64_t ranks) -> std::string {
        Job job = parse(lines);
        try {
            resolve_batch(job, ranks);
        } catch (const Error& failure) {
            return failure.what();
        }
        return "no error";
    };
    CHECK(error("train_batch_size = 30\ntrain_micro_batch_size_per_gpu = 4", 2) ==
          "train_batch_size = 30 is not train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks = 4 x "
          "\"auto\" x 2: it must be a multiple of 8");
    CHECK_THAT(error("train_batch_size = 32\ntrain_micro_batch_size_per_gpu = 2\ngradient_accumulation_steps = 4", 2),
               Contains("= 2 x 4 x 2: it must be 16"));
    CHECK_THAT(error("train_micro_batch_size_per_gpu = \"auto\"", 2), Contains("are both \"auto\""));
    CHECK_THAT(error("train_micro_batch_size_per_gpu = 1e15\ngradient_accumulation_steps = 1e15", 2),
               Contains("too large"));
}

namespace {

/// Random values that the table accepts.
class RandomJob {
  public:
    explicit RandomJob(unsigned seed) : random_(seed) {}

    Job operator()() {
        Job job;
        for (const Key& key : job_keys()) {
            if (key.available.empty()) {
                std::visit([&](auto* to) { fill(key, *to); }, key.field(job));
            }
        }
        // What single keys do not say.
        job.log_prob.stride = std::min(job.log_prob.stride, job.log_prob.window);
        job.data.sequence_length += 1;
        job.data.train.emplace_back("x");
        job.log_prob.data.emplace_back("x");
        if (job.training.lr_scheduler.convention == "deepspeed") {
            job.training.lr_scheduler.warmup_steps += 1;
            job.training.lr_scheduler.min_lr_ratio = 0;
        }
        return job;
    }

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }

    void fill(const Key&, bool& to) { to = below(2) == 1; }

    void fill(const Key& key, double& to) {
        const double low = std::isfinite(key.range.low) ? key.range.low : -1e300;
        const double high = std::isfinite(key.range.high) ? key.range.high : 1e300;
        do {
            // Any bits, so that numbers of all sizes come up; within narrow ranges a uniform one.
            to = key.range.high == 1 ? std::generate_canonical<double, 53>(random_) : std::bit_cast<double>(random_());
        } while (!(to > low && to < high));
    }

    void fill(const Key& key, std::int64_t& to) {
        const auto low = static_cast<std::int64_t>(key.range.low);
        const auto high = static_cast<std::int64_t>(std::min(key.range.high, static_cast<double>(kLargestCount)));
        to = low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
    }

    void fill(const Key& key, std::string& to) {
        if (!key.choices.empty() && (key.text.fits == nullptr || below(2) == 0)) {
            to = key.choices[below(key.choices.size())].value;
            return;
        }
        const std::vector<std::string> pieces = {"\"", "'",    "\\", "\n", "\r\n", "\t",      "\x01",  "\x7f",
                                                 "é",  "日本", "😀",  "#",  "=",    "a",       " ",     "[",
                                                 "]",  "{",    "}",  "*",  "/x",   "\\u0041", "\"\"\""};
        do {
            to.assign(1, 'p');
            for (std::uint64_t i = below(12); i > 0; --i) {
                to += pieces[below(pieces.size())];
            }
        } while (key.text.fits != nullptr && !key.text.fits(to));
    }

    void fill(const Key& key, std::vector<std::string>& to) {
        to.resize(below(4));
        for (std::string& item : to) {
            fill(key, item);
        }
    }

    void fill(const Key& key, std::array<double, 2>& to) {
        fill(key, to[0]);
        fill(key, to[1]);
    }

    template <typename T>
    void fill(const Key& key, Auto<T>& to) {
        to.reset();
        if (below(3) > 0) {
            fill(key, to.emplace());
        }
    }

    std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("a job that is written reads back equal, to the bit", "[job]") {
    RandomJob random(1);
    for (int i = 0; i < 200; ++i) {
        const Job job = random();
        const std::string text = job_to_toml(job);
        INFO(text);
        const JobFile read = parse_job(text, "written", {});
        check_equal(read.job, job);
        CHECK(job_to_toml(read.job) == text);
        CHECK(read.given.size() == job_keys().size());
    }
}

TEST_CASE("numbers are written so that they read back exactly and as floats", "[job]") {
    CHECK(literal(1.0) == "1.0");
    CHECK(literal(0.1) == "0.1");
    CHECK(literal(1e-5) == "1e-05");
    CHECK(literal(1e300) == "1e+300");
    CHECK(quoted("a\"b\\c\n\x01\x7f é") == "\"a\\\"b\\\\c\\n\\u0001\\u007F é\"");
}

TEST_CASE("paths become absolute, patterns and hub names included", "[job]") {
    const auto directory = std::filesystem::temp_directory_path() / fmt::format("tessera_job_[1]_{}", ::getpid());
    std::filesystem::create_directories(directory / "models/tiny");
    Job job;
    job.model_name = "models/tiny";
    job.output_dir = "runs/x";
    job.data.train = {"a.h5", "*.h5", "/data/*.h5"};
    job.checkpoint.resume = "runs/x/checkpoints/latest";
    make_paths_absolute(job, directory.string());
    CHECK(job.model_name == (directory / "models/tiny").string());
    CHECK(job.output_dir == (directory / "runs/x").string());
    CHECK(job.data.train[0] == (directory / "a.h5").string());
    CHECK_THAT(job.data.train[1], Contains("tessera_job_\\[1]_"));  // the directory's own bracket is no pattern
    CHECK(job.data.train[2] == "/data/*.h5");
    CHECK(job.checkpoint.resume == (directory / "runs/x/checkpoints/latest").string());
    CHECK(job.zero_optimization.offload_optimizer.nvme_path.empty());
    const std::string once = job_to_toml(job);
    make_paths_absolute(job, "/elsewhere");
    CHECK(job_to_toml(job) == once);
    Job hub;
    hub.model_name = "org/name@main";
    make_paths_absolute(hub, directory.string());
    CHECK(hub.model_name == "org/name@main");
    CHECK(hub.checkpoint.resume == "auto");
    std::filesystem::remove_all(directory);
}

TEST_CASE("the keys as JSON", "[job]") {
    const auto all = nlohmann::json::parse(describe_keys("", KeyFormat::json));
    REQUIRE(all.size() == job_keys().size());
    CHECK(all.at(0).at("key") == "job_type");
    const auto rate = nlohmann::json::parse(describe_keys("optimizer.lr", KeyFormat::json));
    REQUIRE(rate.size() == 1);
    CHECK(rate.at(0).at("default") == 1e-5);
    CHECK(rate.at(0).at("accepts") == "a number of at least 0");
    CHECK(rate.at(0).at("available").is_null());
    const auto stage = nlohmann::json::parse(describe_keys("zero_optimization.stage", KeyFormat::json));
    CHECK(stage.at(0).at("available") == nlohmann::json::array({0, 1}));
    CHECK(nlohmann::json::parse(describe_keys("no such key", KeyFormat::json)).empty());
}

TEST_CASE("the keys as text name the default and what is accepted, in lines that fit", "[job]") {
    const std::string text = describe_keys("zero_optimization.stage", KeyFormat::text);
    CHECK_THAT(text, Contains("zero_optimization.stage = 1\n"));
    CHECK_THAT(text, Contains("a whole number from 0 to 3 or \"auto\"; in this version only 0 or 1."));
    std::istringstream lines(describe_keys("", KeyFormat::text));
    for (std::string line; std::getline(lines, line);) {
        CHECK(line.size() <= 100);
    }
    CHECK(describe_keys("no such key", KeyFormat::text).empty());
}

TEST_CASE("docs/job.md is what the table says", "[job]") {
    std::ifstream file("../docs/job.md");
    REQUIRE(file);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::string mark = "<!-- From here on: the output of `train keys --markdown` -->\n\n";
    const std::size_t at = text.find(mark);
    REQUIRE(at != std::string::npos);
    CHECK(text.substr(at + mark.size()) == describe_keys("", KeyFormat::markdown));
}
