// Parameters, gradients and optimizer states of a rank, and the two interfaces through which a model uses them.
#pragma once

#include <functional>
#include <vector>

#include "core/memory.h"
#include "core/unit_memory.h"
#include "zero/partition.h"

namespace tessera {

/// Reads elements [first, first + count) of a parameter as `dtype` from where its values come from.
using ReadParameter =
    std::function<void(const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to)>;

/// Stage 0: everything on every rank. Stage 1: masters and moments of the own shard only.
class ModelStates : public ParameterSource, public GradientSink {
  public:
    struct Options {
        DType storage = DType::f32;  // of the parameters; below f32 there are fp32 masters beside them
        std::int64_t stage = 1;
        std::int64_t rank = 0;
        bool training = true;  // false: parameters only
    };

    /// Takes its memory from `carver`: as many bytes as plan() says.
    ModelStates(const std::vector<Unit>& units, const Partition& partition, const Options& options, Carver& carver);

    [[nodiscard]] static MemoryPlan plan(const std::vector<Unit>& units, const Partition& partition,
                                         const Options& options);

    [[nodiscard]] Token acquire(std::int64_t unit, Pass pass) override;
    [[nodiscard]] View begin(std::int64_t unit) override;
    void done(std::int64_t unit) override;

    /// Sets parameters and masters; moments become 0.
    void load(const ReadParameter& read);
    void zero_gradients();

    [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
    [[nodiscard]] const Partition& partition() const { return partition_; }
    [[nodiscard]] const Options& options() const { return options_; }
    /// What the optimizer of this rank updates; `shard` is the place in masters and moments.
    [[nodiscard]] const std::vector<UnitRange>& ranges() const { return ranges_; }

    // Flat vectors. Parameters in storage dtype and gradients in f32: UnitRange::flat; the others, f32: UnitRange::shard.
    [[nodiscard]] Matrix parameters() const { return parameters_; }
    [[nodiscard]] Matrix gradients() const { return gradients_; }
    /// The parameters themselves where they are f32; see master_offset.
    [[nodiscard]] Matrix masters() const { return own_masters() ? masters_ : parameters_; }
    [[nodiscard]] Matrix first_moments() const { return first_moments_; }
    [[nodiscard]] Matrix second_moments() const { return second_moments_; }
    /// Where a range lies in masters().
    [[nodiscard]] std::int64_t master_offset(const UnitRange& range) const {
        return own_masters() ? range.shard : range.flat;
    }
    [[nodiscard]] bool own_masters() const { return options_.storage != DType::f32; }

  protected:
    void release(std::int64_t unit) noexcept override;

  private:
    const std::vector<Unit>& units_;
    const Partition& partition_;
    Options options_;
    std::vector<UnitRange> ranges_;
    Matrix parameters_;
    Matrix gradients_;
    Matrix masters_;
    Matrix first_moments_;
    Matrix second_moments_;
};

}  // namespace tessera
