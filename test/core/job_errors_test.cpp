// Job files that are refused, and the messages.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/job.h"
#include "core/job_keys.h"
#include "core/job_literal.h"
#include "test/core/job_text.h"

using namespace tessera;
using Catch::Matchers::Contains;

namespace {

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

struct Bad {
    std::string lines;  // the third line of the file and what follows
    std::string message;
};

}  // namespace

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
        {"max_grad_norm = 1", "max_grad_norm is not a key of the job file; here it is gradient_clipping"},
        {"[training]\nlearning_rate = 1", "; here it is training.optimizer.lr"},
        {"[data]\nseq_len = 1", "; here it is data.sequence_length"},
        {"logging.steps_per_print = 1", "; here it is logging.interval"},
        {"[optimizer]\nlr = 1", "optimizer is not a section of the job file; did you mean training.optimizer?"},
        {"zero_optimization.stag = 1", "job.toml:3:19: zero_optimization.stag is not a key"},
        {"\"model.init\" = \"random\"",
         "job.toml:3:1: \"model.init\" is not a key of the job file; did you mean model.init?"},
        {"\"\" = 1", "job.toml:3:1: \"\" is not a key"},
        {"\"se\\ned\" = 1", "\"se\\ned\" is not a key"},
        {"Seed = 1", "did you mean seed?"},
        {"max_steps = 1", "did you mean training.max_steps?"},
        {"training.lr = 1", "did you mean training.optimizer.lr?"},
        {"batch_size = 1", "did you mean train_batch_size?"},
        {"epochs = 1", "did you mean training.num_epochs?"},
        {"[zero]", "did you mean zero_optimization?"},
        {"xyzzy = 1", "xyzzy is not a key of the job file; the nearest is "},
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
         "gradient_accumulation_steps = 1e+18 must be a whole number of at least 1 or \"auto\", and at most "
         "1000000000000000"},
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
        {"log_prob.temperature = 0", "log_prob.temperature = 0 must be a number from 1e-06 to 1000000"},
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
        {"seed = 1\n  [#", "job.toml:4: this is not TOML: a bracket"},
        {"[[\x01", "job.toml:3: this is not TOML: a bracket"},
        {"[", "this is not TOML"},
        {"[]", "this is not TOML"},
        {"[[ ", "this is not TOML"},
        {"seed = 1\ndata.eval = [\n}\n]\nx = 1", "job.toml:5: this is not TOML: a bracket"},
        {"[ [training]]", "this is not TOML"},
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
        {"training.loss = \"policy_gradient\"",
         "training.loss = \"policy_gradient\" is not available in this version; it takes "
         "\"cross_entropy\""},
        {"zorro.enable = true", "zorro.enable = true is not available in this version; it takes false"},
        {"zero_optimization.contiguous_gradients = false", "is not available"},
        {"zero_optimization.reduce_scatter = false", "is not available"},
        {"zero_optimization.round_robin_gradients = true", "is not available"},
        {"zero_optimization.offload_optimizer.device = \"cpu\"", "is not available"},
        {"zero_optimization.offload_param.device = \"nvme\"", "is not available"},
        {"communication_data_type = \"fp16\"", "is not available"},
        {"fp16.enabled = true", "is not available"},
        {"logging.memory = true", "is not available"},
        {"logging.tensorboard = true", "is not available"},
        {"limits.time = \"auto\"", "is not available"},
        {"limits.time = \"100:00:00\"", "limits.time = \"100:00:00\" is not available"},
        {"limits.straggler_interval = 1", "is not available"},
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
    CHECK_THAT(error_of(name + " = 1"), Contains("job.toml:1:32: a name has more than 16 parts"));
    CHECK_THAT(error_of(fmt::format("[{}]", name)), Contains("a name has more than 16 parts"));
    CHECK_THAT(error_of(fmt::format("x = {{{} = 1}}", name)), Contains("a name has more than 16 parts"));
    CHECK_THAT(error_of(std::string(5 << 20, '#')), Contains("are too many for a job file"));
    // Dots in strings and comments are no parts of names.
    const std::string dots(100, '.');
    const Job job = parse(fmt::format("# {0}\ndata.eval = [\"{0}\", '{0}', \"\"\"{0}\\\"\n{0}\"\"\"]", dots));
    CHECK(job.data.eval.size() == 3);
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
        {"training.loss=policy_gradient",
         "--set training.loss=policy_gradient: training.loss = \"policy_gradient\" is not available in this version"},
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
