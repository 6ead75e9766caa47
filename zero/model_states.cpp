#include "zero/model_states.h"

#include <algorithm>

namespace tessera {

ModelStates::ModelStates(const std::vector<Unit>& units, const Partition& partition, const Options& options,
                         Carver& carver)
    : units_(units), partition_(partition), options_(options) {
    const auto vector = [&](DType dtype, bool sharded) {
        const std::int64_t elements = sharded ? partition.shard_elements() : partition.flat_elements();
        return ShardableVector{carver.matrix(dtype, 1, elements), sharded};
    };
    ranges_ = options.stage == 0 ? partition.everything() : partition.owned(options.rank);
    parameters_ = vector(options.storage, options.stage == 3);
    std::int64_t resident = 0;
    for (std::int64_t unit = 0; unit < partition.units(); ++unit) {
        resident_offsets_.push_back(resident);
        resident += partition.padded_elements(unit) - partition.gathered_elements(unit);
    }
    resident_ = carver.matrix(options.storage, 1, options.stage == 3 ? resident : 0);
    if (!options.training) {
        return;
    }
    if (own_masters()) {
        masters_ = vector(DType::f32, options.stage > 0);
    }
    first_moments_ = vector(DType::f32, options.stage > 0);
    second_moments_ = vector(DType::f32, options.stage > 0);
}

MemoryPlan ModelStates::plan(const std::vector<Unit>& units, const Partition& partition, const Options& options) {
    Carver counter;
    const ModelStates states(units, partition, options, counter);
    MemoryPlan plan;
    const auto add = [&](const char* purpose, const Matrix& matrix) {
        if (matrix.elements() > 0) {
            plan.push_back({purpose, round_up(matrix.elements() * size_of(matrix.dtype), kMemoryAlignment)});
        }
    };
    add("parameters", states.parameters_.values);
    add("resident parameters", states.resident_);
    add("fp32 masters", states.masters_.values);
    add("first moments", states.first_moments_.values);
    add("second moments", states.second_moments_.values);
    return plan;
}

void ModelStates::load_range(const ReadParameter& read, const UnitRange& range, const ShardableVector& to,
                             Ops& ops) const {
    constexpr std::int64_t kChunk = 1 << 20;
    const DType dtype = to.values.dtype;
    std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(range.count, kChunk) * size_of(dtype)));
    for_each_part(units_[static_cast<std::size_t>(range.unit)], range,
                  [&](const Parameter& parameter, std::int64_t first, std::int64_t count, std::int64_t skip) {
                      for (std::int64_t done = 0; done < count; done += kChunk) {
                          const std::int64_t part = std::min(kChunk, count - done);
                          read(parameter, first + done, part, dtype, chunk.data());
                          ops.write(to.at(range, skip + done, part),
                                    std::span(chunk).first(static_cast<std::size_t>(part * size_of(dtype))));
                      }
                  });
}

void ModelStates::load(const ReadParameter& read, Ops& ops) {
    for (const UnitRange& range : parameters_.sharded ? ranges_ : partition_.everything()) {
        load_range(read, range, parameters_, ops);
    }
    if (options_.stage == 3) {
        for (std::int64_t u = 0; u < partition_.units(); ++u) {
            const Unit& unit = units_[static_cast<std::size_t>(u)];
            const UnitRange all{u, unit.resident_from, unit.elements - unit.resident_from, resident_offset(u), 0};
            load_range(read, all, {resident_, false}, ops);
        }
    }
    if (!options_.training) {
        return;
    }
    ops.zero(first_moments_.values);
    ops.zero(second_moments_.values);
    if (own_masters()) {
        for (const UnitRange& range : ranges_) {
            load_range(read, range, masters_, ops);
        }
    }
}

}  // namespace tessera
