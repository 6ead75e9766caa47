#include "apps/export.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "apps/commands.h"
#include "io/hf_export.h"

namespace tessera {

bool makes_exports(const Job& job) {
    return job.checkpoint.export_hf &&
           (job.zero_optimization.stage != 3 || job.zero_optimization.stage3_gather_16bit_weights_on_model_save);
}

DType export_dtype(const std::string& name) {
    return name == "bf16" ? DType::bf16 : name == "fp16" ? DType::f16 : DType::f32;
}

void export_checkpoint(ShardedCheckpoint& checkpoint, const std::string& out_directory, DType dtype) {
    const std::vector<Unit>& units = checkpoint.units();
    const bool tied = std::ranges::none_of(
        units.back().parameters, [](const Parameter& parameter) { return parameter.name == "lm_head.weight"; });
    HfExport out(checkpoint.description().model_directory, out_directory, units, dtype, tied);
    constexpr std::int64_t kChunk = 1 << 20;
    std::vector<float> values(static_cast<std::size_t>(kChunk));
    for (std::size_t u = 0; u < units.size(); ++u) {
        for (const Parameter& parameter : units[u].parameters) {
            for (std::int64_t first = 0; first < parameter.elements(); first += kChunk) {
                const std::int64_t count = std::min(kChunk, parameter.elements() - first);
                checkpoint.read(ShardedCheckpoint::State::master, static_cast<std::int64_t>(u),
                                parameter.offset + first, count, values.data());
                if (!std::all_of(values.begin(), values.begin() + count, [](float x) { return std::isfinite(x); })) {
                    fail(ExitCode::numerical,
                         "{} in the checkpoint {} has values that are not finite: it is not exported; go on from an "
                         "older "
                         "checkpoint with a lower training.optimizer.lr",
                         parameter.name, checkpoint.info().path);
                }
                out.write(parameter, DType::f32, values.data(), count);
            }
        }
    }
    out.finish();
}

namespace {

/// The checkpoint in `path`, or, where that is a run's directory, the newest one of the run.
CheckpointInfo newest_or_this(const std::string& path) {
    std::vector<std::string> warnings;
    if (std::filesystem::is_directory(path + "/checkpoints")) {
        if (auto newest = find_newest_checkpoint(path + "/checkpoints", warnings)) {
            return *newest;
        }
    }
    return open_checkpoint(path);
}

}  // namespace

void command_export(const ExportOptions& options) {
    ShardedCheckpoint checkpoint(newest_or_this(options.checkpoint));
    verify_checkpoint(checkpoint.info());
    std::string dtype = options.dtype;
    if (dtype == "auto") {
        dtype = checkpoint.description().compute_dtype == "bf16" ? "bf16" : "fp32";
    }
    export_checkpoint(checkpoint, options.out_directory, export_dtype(dtype));
    fmt::print("wrote {} in {}\n", options.out_directory, dtype);
}

}  // namespace tessera
