#include "apps/model_setup.h"

#include <algorithm>

#include "core/random.h"
#include "kernels/cpu/cpu_ops.h"

namespace tessera {

ModelSetup open_model(const Job& job, bool check_weights) {
    ModelSetup setup{.model = HfModel::open(job.model_name), .units = {}, .ops = nullptr, .warnings = {}};
    setup.units = make_units(setup.config());
    setup.random = job.model.init == "random";
    if (!setup.random && check_weights) {
        setup.model.check(setup.units);
    }
    if (setup.random && setup.model.has_weights()) {
        setup.warnings.push_back(fmt::format(
            "model.init = \"random\": the weights in {} are not used; say model.init = \"pretrained\" to use them",
            setup.model.directory()));
    }
    setup.warnings.insert(setup.warnings.end(), setup.model.warnings().begin(), setup.model.warnings().end());
    setup.ops = make_cpu_ops({.storage = job.bf16.enabled.value_or(false) ? DType::bf16 : DType::f32,
                              .fused = job.model.fused_kernels,
                              .flash = job.model.attn_implementation == "flash"});
    return setup;
}

ReadParameter initial_parameters(const Job& job, const ModelSetup& setup) {
    if (!setup.random) {
        return [&setup](const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) {
            setup.model.read(parameter, first, count, dtype, to);
        };
    }
    return [&setup, seed = job.seed](const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype,
                                     void* to) {
        const NormalStream normal(seed, parameter.name);
        const double deviation = setup.config().initializer_range;
        constexpr std::int64_t kChunk = 1 << 12;
        const std::int64_t chunks = ceil_div(count, kChunk);
#pragma omp parallel for schedule(static)
        for (std::int64_t c = 0; c < chunks; ++c) {
            std::array<float, kChunk> values;
            const std::int64_t start = c * kChunk;
            const std::int64_t part = std::min(kChunk, count - start);
            for (std::int64_t i = 0; i < part; ++i) {
                double value = parameter.init == Parameter::Init::one ? 1 : 0;
                if (parameter.init == Parameter::Init::normal) {
                    value = deviation * normal(first + start + i);
                }
                values[static_cast<std::size_t>(i)] = static_cast<float>(value);
            }
            convert(dtype, static_cast<std::byte*>(to) + start * size_of(dtype), DType::f32, values.data(), part);
        }
    };
}

Job resolve_device(Job job) {
    job.device = "cpu";
    job.bf16.enabled = job.bf16.enabled.value_or(false);
    if (job.checkpoint.export_dtype == "auto") {
        job.checkpoint.export_dtype = *job.bf16.enabled ? "bf16" : "fp32";
    }
    return job;
}

std::vector<std::int64_t> unit_sizes(const std::vector<Unit>& units) {
    std::vector<std::int64_t> sizes;
    std::ranges::transform(units, std::back_inserter(sizes), [](const Unit& unit) { return unit.elements; });
    return sizes;
}

Carver& bind_workspace(PlannedMemory& memory, const ModelSetup& setup, const TransformerLimits& limits) {
    const OpsLimits bounds = ops_limits(setup.config(), limits);
    setup.ops->bind_workspace(memory.carver().bytes(setup.ops->workspace_bytes(bounds)), bounds);
    return memory.carver();
}

std::int64_t total_bytes(const MemoryPlan& plan) {
    std::int64_t bytes = 0;
    for (const MemoryUse& use : plan) {
        bytes += use.bytes;
    }
    return bytes;
}

}  // namespace tessera
