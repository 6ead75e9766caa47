// Where the parameters and optimizer states of a rank are kept, and how they get their first values.
#pragma once

#include <functional>
#include <vector>

#include "core/memory.h"
#include "kernels/ops.h"
#include "zero/partition.h"

namespace tessera {

/// Reads elements [first, first + count) of a parameter as `dtype` from where its values come from.
using ReadParameter =
    std::function<void(const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to)>;

/// What the ranks share out: 0 nothing, 1 masters and moments, 2 gradients too, 3 parameters too.
using ZeroStage = std::int64_t;

/// A vector of elements of all units, held as a whole or as the shard of this rank.
struct ShardableVector {
    Matrix values;  // [1, flat elements] or [1, shard elements]
    bool sharded = false;

    /// Where elements of a range, or what follows them in their bucket, begin.
    [[nodiscard]] std::int64_t offset(const UnitRange& range) const { return sharded ? range.shard : range.flat; }
    [[nodiscard]] Matrix at(const UnitRange& range, std::int64_t skip, std::int64_t count) const {
        return values.col_range(offset(range) + skip, count);
    }
    [[nodiscard]] Matrix at(const UnitRange& range) const { return at(range, 0, range.count); }
};

class ModelStates {
  public:
    struct Options {
        DType storage = DType::f32;  // of the parameters; below f32 there are fp32 masters beside them
        ZeroStage stage = 1;
        std::int64_t rank = 0;
        bool training = true;  // false: parameters only
    };

    /// Takes its memory from `carver`: as many bytes as plan() says.
    ModelStates(const std::vector<Unit>& units, const Partition& partition, const Options& options, Carver& carver);

    [[nodiscard]] static MemoryPlan plan(const std::vector<Unit>& units, const Partition& partition,
                                         const Options& options);

    /// Sets parameters and masters; moments become 0. Every rank reads only what it keeps. `ops`: of the memory's
    /// device.
    void load(const ReadParameter& read, Ops& ops);
    /// Sets what `to` holds of a range.
    void load_range(const ReadParameter& read, const UnitRange& range, const ShardableVector& to, Ops& ops) const;

    [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
    [[nodiscard]] const Partition& partition() const { return partition_; }
    [[nodiscard]] const Options& options() const { return options_; }
    /// What the optimizer of this rank updates: what it owns, or everything at stage 0.
    [[nodiscard]] const std::vector<UnitRange>& ranges() const { return ranges_; }

    [[nodiscard]] const ShardableVector& parameters() const { return parameters_; }  // storage dtype
    /// f32: the parameters themselves where they are f32.
    [[nodiscard]] const ShardableVector& masters() const { return own_masters() ? masters_ : parameters_; }
    [[nodiscard]] const ShardableVector& first_moments() const { return first_moments_; }    // f32
    [[nodiscard]] const ShardableVector& second_moments() const { return second_moments_; }  // f32
    [[nodiscard]] bool own_masters() const { return options_.storage != DType::f32; }

    /// Stage 3: the resident buckets of all units, one after another, whole. [1, elements] storage dtype
    [[nodiscard]] Matrix resident() const { return resident_; }
    /// Where those of a unit begin.
    [[nodiscard]] std::int64_t resident_offset(std::int64_t unit) const {
        return resident_offsets_[static_cast<std::size_t>(unit)];
    }

  private:
    const std::vector<Unit>& units_;
    const Partition& partition_;
    Options options_;
    std::vector<UnitRange> ranges_;
    ShardableVector parameters_;
    ShardableVector masters_;
    ShardableVector first_moments_;
    ShardableVector second_moments_;
    Matrix resident_;
    std::vector<std::int64_t> resident_offsets_;
};

}  // namespace tessera
