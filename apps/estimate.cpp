#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/cuda_library.h"
#include "apps/job_file.h"
#include "apps/plan_report.h"
#include "apps/training_plan.h"
#include "core/flops.h"
#include "kernels/cpu/cpu_device.h"
#include "zero/deepspeed_estimate.h"
#include "zero/link_traffic.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kStages = 4;

/// A rank at one stage.
struct StagePlan {
    MemoryPlan model_states;
    MemoryPlan working;   // what exchanges them and, where the job says how long rows are, activations
    TrafficPlan traffic;  // of a step
    std::vector<Unit> units;
    double flops = 0;  // of a step; 0 where the job does not say how long rows are
};

/// The cluster, and what was measured on it; 0: not known.
struct Machine {
    Topology topology;
    double compute_rate = 0;
    double link_rate = 0;
};

/// Of a step at the given rates: where one hides the other, and where one follows the other.
struct StepSeconds {
    double least = 0;
    double most = 0;
};

/// All stages, computing in one dtype.
struct DTypePlan {
    std::string dtype;
    std::vector<StagePlan> stages;
};

void check_choice(const EstimateOptions& options) {
    if (options.parameters.has_value() != options.largest_layer.has_value()) {
        fail(ExitCode::usage, "--params and --largest-layer belong together: give both, or a model with --model");
    }
    if (options.parameters && !(options.model.empty() && options.config.empty())) {
        fail(ExitCode::usage, "--params stands in place of a model: leave out {}",
             options.model.empty() ? "--config" : "--model");
    }
    if (!options.parameters && options.model.empty() && options.config.empty()) {
        fail(ExitCode::usage,
             "estimate needs a model: --model DIR, the one of a job with --config job.toml, or --params P "
             "--largest-layer L");
    }
    if (options.parameters && !options.device.empty()) {
        fail(ExitCode::usage, "--device is for the plan of a model, which --params does not describe");
    }
    if (options.gpus_per_node * options.nodes > kMostRanks) {
        fail(ExitCode::usage, "{} nodes of {} GPUs are more than {} ranks", options.nodes, options.gpus_per_node,
             kMostRanks);
    }
}

/// Refuses rates that cannot be used.
void check_rates(const EstimateOptions& options, const Job& job) {
    const bool computing = options.compute_rate != 0;
    const bool sending = options.link_rate != 0;
    if (!computing && !sending) {
        return;
    }
    if (!std::isfinite(options.compute_rate) || !std::isfinite(options.link_rate)) {
        fail(ExitCode::usage, "--compute-rate and --link-rate are finite numbers");
    }
    if (options.config.empty() || job.data.sequence_length == 0) {
        fail(
            ExitCode::usage,
            "--compute-rate and --link-rate need --config with a job whose data.sequence_length says how many tokens a "
            "step has");
    }
    if (!computing || (!sending && options.gpus_per_node * options.nodes > 1)) {
        fail(ExitCode::usage, "{} is missing: more than one rank needs both rates",
             computing ? "--link-rate" : "--compute-rate");
    }
}

Job planned_job(const EstimateOptions& options, std::int64_t ranks) {
    Job job;
    if (!options.config.empty()) {
        job = read_job(options.config, {}).job;
        if (job.job_type != "training") {
            fail(ExitCode::usage, "{}: estimate plans training, and this is a {} job", options.config, job.job_type);
        }
        resolve_batch(job, ranks);
        job.model.enable_gradient_checkpointing = job.model.enable_gradient_checkpointing.value_or(true);
    }
    if (!options.model.empty()) {
        job.model_name = options.model;
    }
    if (!options.device.empty()) {
        job.device = options.device;
    }
    return job;
}

StagePlan plan_stage(Job job, const ModelSetup& model, std::int64_t ranks) {
    TrainingPlan training = plan_training(job, model, ranks);
    StagePlan plan{std::move(training.model_states), std::move(training.exchange), std::move(training.traffic),
                   std::move(training.units)};
    if (job.data.sequence_length > 0) {
        // Rows of the full length: no data is longer.
        const std::int64_t length = job.data.sequence_length;
        append(plan.working,
               plan_activations(model.config(), *model.ops, training_limits(job, model.config(), length, length)));
        const std::int64_t rows =
            checked_mul(*job.train_micro_batch_size_per_gpu, *job.gradient_accumulation_steps, "rows of a step");
        plan.flops = flops_of_step(model.config(), {rows, length, *job.model.enable_gradient_checkpointing});
    }
    return plan;
}

DTypePlan plan_dtype(Job job, bool bf16, std::int64_t ranks) {
    job.bf16.enabled = bf16;
    job.cuda = {};  // of one of the two dtypes
    if (!bf16 && job.model.attn_implementation == "cudnn") {
        job.model.attn_implementation = "flash";  // of the other
    }
    const std::unique_ptr<Device> device =
        job.device == "cuda" ? load_cuda_backend().plan(std::numeric_limits<std::int64_t>::max()) : make_cpu_device();
    job = resolve_device(std::move(job), *device);
    const ModelSetup model = open_model(job, *device, false);
    DTypePlan plan{bf16 ? "bf16" : "f32", {}};
    for (std::int64_t stage = 0; stage < kStages; ++stage) {
        job.zero_optimization.stage = stage;
        plan.stages.push_back(plan_stage(job, model, ranks));
    }
    return plan;
}

/// Nothing where a rate that it needs is not known.
std::optional<StepSeconds> step_seconds(const StagePlan& plan, const Machine& machine) {
    const auto bytes = static_cast<double>(bytes_of_link(plan.traffic, machine.topology));
    if (plan.flops == 0 || machine.compute_rate == 0 || (bytes > 0 && machine.link_rate == 0)) {
        return std::nullopt;
    }
    const double computing = plan.flops / machine.compute_rate;
    const double sending = bytes > 0 ? bytes / machine.link_rate : 0;
    return StepSeconds{std::max(computing, sending), computing + sending};
}

/// Purposes of all stages, in the order in which they first come.
std::vector<std::string> purposes(const std::vector<StagePlan>& stages, MemoryPlan StagePlan::*part) {
    std::vector<std::string> names;
    for (const StagePlan& stage : stages) {
        for (const MemoryUse& use : stage.*part) {
            if (std::ranges::find(names, use.purpose) == names.end()) {
                names.push_back(use.purpose);
            }
        }
    }
    return names;
}

std::int64_t bytes_of(const MemoryPlan& plan, const std::string& purpose) {
    std::int64_t bytes = 0;
    for (const MemoryUse& use : plan) {
        bytes += use.purpose == purpose ? use.bytes : 0;
    }
    return bytes;
}

/// A column a stage.
void print_plan(Console& console, const DTypePlan& plan, const deepspeed::ModelSize& size, const Machine& machine) {
    std::vector<std::pair<std::string, std::string>> rows;
    const auto add = [&](const std::string& name, const auto& cell) {
        std::string cells;
        for (std::int64_t stage = 0; stage < kStages; ++stage) {
            cells += fmt::format("{:>24}", cell(stage, plan.stages[static_cast<std::size_t>(stage)]));
        }
        rows.emplace_back(name, cells);
    };
    const auto add_bytes = [&](const std::string& name, const auto& bytes) {
        add(name, [&](std::int64_t, const StagePlan& stage) { return with_separators(bytes(stage)); });
    };
    const auto add_part = [&](MemoryPlan StagePlan::*part) {
        for (const std::string& purpose : purposes(plan.stages, part)) {
            add_bytes(purpose, [&](const StagePlan& stage) { return bytes_of(stage.*part, purpose); });
        }
    };
    add("", [](std::int64_t stage, const StagePlan&) { return fmt::format("stage {}", stage); });
    add_part(&StagePlan::model_states);
    add_bytes("model states", [](const StagePlan& stage) { return total_bytes(stage.model_states); });
    add("  bytes a parameter", [&](std::int64_t, const StagePlan& stage) {
        return fmt::format("{:.3f}",
                           static_cast<double>(total_bytes(stage.model_states)) / static_cast<double>(size.parameters));
    });
    add_part(&StagePlan::working);
    add_bytes("all",
              [](const StagePlan& stage) { return total_bytes(stage.model_states) + total_bytes(stage.working); });
    console.line("");
    console.table(
        fmt::format("memory of a rank of {}, bytes, {}", with_separators(machine.topology.ranks()), plan.dtype), rows);

    rows.clear();
    add("", [](std::int64_t stage, const StagePlan&) { return fmt::format("stage {}", stage); });
    for (const Exchange purpose : kExchanges) {
        add_bytes(name_of(purpose), [&](const StagePlan& stage) { return total(stage.traffic, purpose).bytes; });
    }
    add_bytes("sent by a rank", [](const StagePlan& stage) { return total_bytes(stage.traffic); });
    add_bytes("sent by a node",
              [&](const StagePlan& stage) { return bytes_leaving_node(stage.traffic, machine.topology); });
    if (plan.stages.front().flops > 0) {
        add("FLOP of a rank", [](std::int64_t, const StagePlan& stage) { return fmt::format("{:.4e}", stage.flops); });
    }
    if (step_seconds(plan.stages.front(), machine)) {
        add("seconds", [&](std::int64_t, const StagePlan& stage) {
            const StepSeconds seconds = *step_seconds(stage, machine);
            return fmt::format("{:.4g} to {:.4g}", seconds.least, seconds.most);
        });
    }
    console.line("");
    console.table(fmt::format("a step of {} ranks, bytes, {}", with_separators(machine.topology.ranks()), plan.dtype),
                  rows);
}

Json to_json(const DTypePlan& plan, const Machine& machine) {
    Json list = Json::array();
    for (std::int64_t stage = 0; stage < kStages; ++stage) {
        const StagePlan& memory = plan.stages[static_cast<std::size_t>(stage)];
        const std::int64_t states = total_bytes(memory.model_states);
        list.push_back({{"stage", stage},
                        {"model_states", to_json(memory.model_states)},
                        {"working", to_json(memory.working)},
                        {"model_states_total", states},
                        {"total", states + total_bytes(memory.working)},
                        {"exchanges", to_json(memory.traffic, memory.units)},
                        {"sent_by_rank", total_bytes(memory.traffic)},
                        {"sent_by_node", bytes_leaving_node(memory.traffic, machine.topology)}});
        if (memory.flops > 0) {
            list.back()["flops"] = memory.flops;
        }
        if (const auto seconds = step_seconds(memory, machine)) {
            list.back()["seconds"] = {seconds->least, seconds->most};
        }
    }
    return list;
}

Json to_json(const std::vector<deepspeed::Estimate>& estimates, bool stage3) {
    Json list = Json::array();
    for (const deepspeed::Estimate& estimate : estimates) {
        Json row = {{"offload_optimizer", estimate.offload_optimizer}};
        if (stage3) {
            row["offload_param"] = estimate.offload_parameters;
            row["zero_init"] = estimate.zero_init;
        }
        row["cpu_bytes"] = estimate.cpu_bytes;
        row["gpu_bytes"] = estimate.gpu_bytes;
        list.push_back(std::move(row));
    }
    return list;
}

}  // namespace

void command_estimate(const EstimateOptions& options) {
    check_choice(options);
    const deepspeed::Cluster cluster{options.gpus_per_node, options.nodes};
    const Machine machine{{options.nodes, options.gpus_per_node}, options.compute_rate, options.link_rate};
    const std::int64_t ranks = machine.topology.ranks();
    deepspeed::ModelSize size{options.parameters.value_or(0), options.largest_layer.value_or(0)};
    std::vector<std::string> warnings;
    std::vector<DTypePlan> plans;
    if (options.parameters) {
        check_rates(options, {});
    } else {
        const Job job = planned_job(options, ranks);
        check_rates(options, job);
        const HfModel model = HfModel::open(job.model_name);
        warnings = model.warnings();
        size = deepspeed::model_size(make_units(model.config()));
        plans = {plan_dtype(job, false, ranks), plan_dtype(job, true, ranks)};
    }
    const std::vector<deepspeed::Estimate> zero2 = estimate_zero2(size, cluster);
    const std::vector<deepspeed::Estimate> zero3 = estimate_zero3(size, cluster);

    if (options.json) {
        Json result = {{"parameters", size.parameters},
                       {"largest_layer", size.largest_layer},
                       {"gpus_per_node", cluster.gpus_per_node},
                       {"nodes", cluster.nodes},
                       {"deepspeed", {{"zero2", to_json(zero2, false)}, {"zero3", to_json(zero3, true)}}}};
        for (const DTypePlan& plan : plans) {
            result["plan"][plan.dtype] = to_json(plan, machine);
        }
        result["warnings"] = warnings;
        fmt::print("{}\n", result.dump(2, ' ', false, Json::error_handler_t::replace));
        return;
    }
    Console console(true);
    for (const std::string& warning : warnings) {
        console.warn(warning);
    }
    fmt::print("{}{}", zero2_table(size, cluster), zero3_table(size, cluster));
    for (const DTypePlan& plan : plans) {
        print_plan(console, plan, size, machine);
    }
}

}  // namespace tessera
