#include "apps/model_setup.h"

#include <algorithm>

#include "core/random.h"
#include "core/transformer.h"

namespace tessera {

namespace {

AttentionKind attention_kind(const std::string& name) {
    return name == "cudnn" ? AttentionKind::cudnn : name == "eager" ? AttentionKind::eager : AttentionKind::flash;
}

}  // namespace

std::vector<Unit> units_of(Job& job, const ModelConfig& config, std::int64_t ranks) {
    Job::Zero& zero = job.zero_optimization;
    if (zero.stage != 3) {
        return make_units(config);
    }
    if (!zero.stage3_param_persistence_threshold) {
        zero.stage3_param_persistence_threshold = 10 * config.hidden_size;
    }
    return make_units(config, {.largest = *zero.stage3_param_persistence_threshold,
                               .multiple = checked_mul(ranks, kParameterAlignment, "elements of a bucket")});
}

ModelSetup open_model(const Job& job, Device& device, bool check_weights) {
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
    setup.ops = device.make_ops({.storage = job.bf16.enabled.value_or(false) ? DType::bf16 : DType::f32,
                                 .tf32 = job.cuda.tf32,
                                 .fused = job.model.fused_kernels,
                                 .attention = attention_kind(job.model.attn_implementation)});
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

Job resolve_device(Job job, const Device& device) {
    job.device = device.kind();
    job.bf16.enabled = job.bf16.enabled.value_or(device.kind() == "cuda");
    if (job.checkpoint.export_dtype == "auto") {
        job.checkpoint.export_dtype = *job.bf16.enabled ? "bf16" : "fp32";
    }
    const bool bf16 = *job.bf16.enabled;
    const auto require = [&](bool wanted, bool possible, const char* key, const char* need) {
        if (wanted && (!possible || job.device != "cuda")) {
            fail(ExitCode::usage, "{} = true needs a GPU and bf16.enabled = {}; this job computes on {} in {}", key,
                 need, device.description(), bf16 ? "bf16" : "f32");
        }
    };
    require(job.cuda.tf32, !bf16, "cuda.tf32", "false");
    require(job.job_type == "training" && job.cuda.stochastic_rounding, bf16, "cuda.stochastic_rounding", "true");
    return job;
}

std::optional<GatheredParameters::Plans> plan_gathers(const Job& job, const ModelSetup& setup,
                                                      const Partition& partition, bool training) {
    const Job::Zero& zero = job.zero_optimization;
    if (zero.stage != 3) {
        return std::nullopt;
    }
    const GatherLimits limits{.prefetch = zero.stage3_prefetch_bucket_size,
                              .live = zero.stage3_max_live_parameters,
                              .reuse_distance = zero.stage3_max_reuse_distance.value_or(0)};
    const auto plan = [&](Pass last) {
        return GatherPlan(Transformer::uses(setup.config(), last).parameters, partition, limits);
    };
    GatherPlan forward = plan(Pass::forward);
    return GatheredParameters::Plans{forward, training ? plan(Pass::backward) : forward};
}

std::unique_ptr<PublishedParameters> make_parameter_source(const ModelStates& states, CommunicationQueue& queue,
                                                           Ops& ops,
                                                           const std::optional<GatheredParameters::Plans>& plans,
                                                           std::int64_t call_elements, Carver& carver) {
    if (!plans) {
        return std::make_unique<ResidentParameters>(states, queue, call_elements);
    }
    return std::make_unique<GatheredParameters>(states, queue, ops, *plans, call_elements, carver);
}

void resolve_buckets(Job& job, const std::vector<Unit>& units) {
    Job::Zero& zero = job.zero_optimization;
    if (!zero.reduce_bucket_size) {
        const auto largest = std::ranges::max(units, {}, &Unit::elements).elements;
        zero.reduce_bucket_size = std::min<std::int64_t>(largest, 50'000'000);
    }
    if (!zero.allgather_bucket_size) {
        zero.allgather_bucket_size = zero.reduce_bucket_size;
    }
}

PlannedMemory::PlannedMemory(Device& device, const MemoryPlan& plan)
    : memory_(device.allocate(total_bytes(plan) + kMemoryAlignment)), carver_(memory_.span()) {}

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

std::int64_t bytes_with_libraries(const MemoryPlan& plan, const Device& device) {
    constexpr std::int64_t kOutsideOfPlan = 96 << 20;  // generous
    return checked_add(total_bytes(plan), device.free_bytes() ? 0 : kOutsideOfPlan, "bytes of a plan");
}

std::int64_t logits_rows_of(const Job& job, const ModelConfig& config, std::int64_t tokens) {
    const double gib = job.model.logits_optimization_peak_mem_size_in_gib;
    return logits_tile_rows(config, tokens, job.model.logits_optimization == "none",
                            static_cast<std::int64_t>(gib * (1 << 30)));
}

}  // namespace tessera
