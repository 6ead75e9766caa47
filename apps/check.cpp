#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/cuda_library.h"
#include "apps/job_file.h"
#include "apps/log_prob_setup.h"
#include "apps/open_device.h"
#include "apps/plan_report.h"
#include "apps/run_directory.h"
#include "apps/training_setup.h"
#include "io/durable_file.h"

namespace tessera {
namespace {

using Summary = std::vector<std::pair<std::string, std::string>>;

/// `exchanges`: those of a step, null where the job has none.
void print(const CheckOptions& options, const Job& job, const Summary& summary, const MemoryPlan& plan,
           const nlohmann::ordered_json& exchanges, const std::vector<std::string>& unused,
           const std::vector<std::string>& warnings) {
    if (options.json) {
        nlohmann::ordered_json words;
        for (const auto& [name, value] : summary) {
            words[name] = value;
        }
        nlohmann::ordered_json result = {{"job", job_to_toml(job)},    {"summary", words}, {"memory", to_json(plan)},
                                         {"total", total_bytes(plan)}, {"unused", unused}, {"warnings", warnings}};
        if (!exchanges.is_null()) {
            result["exchanges"] = exchanges;
        }
        fmt::print("{}\n", result.dump(2));
        return;
    }
    Console console(true);
    for (const std::string& warning : warnings) {
        console.warn(warning);
    }
    console.line(job_to_toml(job));
    console.table(job.job_type, summary);
    console.memory_table(plan);
    console.unused_keys(unused);
    console.line("everything is in order; nothing was run");
}

std::int64_t bytes_of(const char* option, std::uint64_t given) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (given == 0 || given > kMost) {
        fail(ExitCode::usage, "{} is a number of bytes from 1 to {}, as 64GiB", option, kMost);
    }
    return static_cast<std::int64_t>(given);
}

/// What the job computes on: the options' device before the job's, here or on the machine that they describe.
OpenedDevice described_device(const CheckOptions& options, const std::string& job_device) {
    const std::string& wanted = options.device.empty() ? job_device : options.device;
    if (!options.device_memory) {
        return open_device(wanted, 0);
    }
    if (wanted == "cpu") {
        fail(ExitCode::usage, "--device-memory is for GPUs, and the job computes on the CPU: give --device cuda too");
    }
    const std::int64_t bytes = bytes_of("--device-memory", *options.device_memory);
    return {load_cuda_backend().plan(bytes), ""};
}

/// What a rank may take on the machine that the options describe, or else on this one.
FreeMemory described_memory(const CheckOptions& options, const Device& device) {
    const std::int64_t ranks_on_node = ceil_div(options.ranks, options.nodes);
    if (!options.host_memory) {
        return free_memory_of(device, ranks_on_node);
    }
    const std::int64_t bytes = bytes_of("--host-memory", *options.host_memory) / ranks_on_node;
    if (device.free_bytes()) {
        fail(ExitCode::usage, "--host-memory is for jobs on the CPU: this one plans the memory of {}",
             device.description());
    }
    return {bytes, fmt::format("--host-memory, shared by {} ranks a node", ranks_on_node)};
}

}  // namespace

void command_check(const CheckOptions& options) {
    JobFile file = read_job(options.config, options.overrides);
    const OpenedDevice opened = described_device(options, file.job.device);
    const FreeMemory free = described_memory(options, *opened.device);
    check_can_make_directories(file.job.output_dir);
    if (file.job.job_type == "training") {
        resolve_batch(file.job, options.ranks);
        TrainingSetup setup(file.job, *opened.device, options.ranks, true, free);
        setup.train().data->check_all();
        if (setup.eval()) {
            setup.eval()->data->check_all();
        }
        std::vector<std::string> warnings = setup.warnings();
        Summary summary = setup.summary();
        summary.emplace_back("device", opened.words());
        if (const std::string path = resume_path(setup.job(), warnings); !path.empty()) {
            const ShardedCheckpoint checkpoint(open_checkpoint(path));
            checkpoint.check(setup.units());
            std::ranges::for_each(checkpoint.info().files,
                                  [&](const FileRecord& record) { verify_checkpoint_file(checkpoint.info(), record); });
            summary.emplace_back("goes on from", path);
        }
        print(options, setup.job(), summary, setup.plan(), to_json(setup.traffic(), setup.units()), file.unused,
              warnings);
    } else {
        LogProbSetup setup(file.job, *opened.device, options.ranks, true, free);
        setup.data().check_all();
        Summary summary = setup.summary();
        summary.emplace_back("device", opened.words());
        print(options, setup.job(), summary, setup.plan(), nullptr, file.unused, setup.warnings());
    }
}

}  // namespace tessera
