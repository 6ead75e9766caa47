// What a model knows of where its parameters and gradients are: two interfaces that the partitioning implements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/view.h"
#include "core/parameters.h"

namespace tessera {

enum class Pass : std::uint8_t { forward, backward };

/// One use of a unit's memory, from its beginning to its end. Times count the beginnings and ends of all uses of a
/// micro-batch, in their order, from 0.
struct UnitUse {
    std::int64_t unit = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;

    bool operator==(const UnitUse&) const = default;
};

/// What a micro-batch uses, in the order of the beginnings.
struct UnitUses {
    std::vector<UnitUse> parameters;  // acquire ... release
    std::vector<UnitUse> gradients;   // first begin ... done
};

/// Gives the parameters of a unit, wherever they are kept.
class ParameterSource {
  public:
    ParameterSource() = default;
    ParameterSource(const ParameterSource&) = delete;
    ParameterSource& operator=(const ParameterSource&) = delete;
    virtual ~ParameterSource() = default;

    /// The parameters of one unit, readable until the token is destroyed.
    class Token {
      public:
        Token(ParameterSource* source, std::int64_t unit, const std::byte* data, DType dtype)
            : source_(source), unit_(unit), data_(data), dtype_(dtype) {}
        Token(Token&& other) noexcept
            : source_(std::exchange(other.source_, nullptr)),
              unit_(other.unit_),
              data_(other.data_),
              dtype_(other.dtype_) {}
        Token& operator=(Token&&) = delete;
        ~Token() {
            if (source_ != nullptr) {
                source_->release(unit_);
            }
        }

        /// [rows, cols] of the parameter; `rows` above the parameter's own reach into those that follow it in its
        /// group (q, k and v as one matrix).
        [[nodiscard]] ConstMatrix view(const Parameter& first, std::int64_t rows, std::int64_t cols) const {
            return {data_ + first.offset * size_of(dtype_), dtype_, rows, cols};
        }
        [[nodiscard]] ConstMatrix view(const Parameter& parameter) const {
            return view(parameter, parameter.rows(), parameter.cols());
        }

      private:
        ParameterSource* source_;
        std::int64_t unit_;
        const std::byte* data_;
        DType dtype_;
    };

    /// A micro-batch follows, which ends with a pass of this kind.
    virtual void start(Pass /*last*/) {}

    /// Takes part in what the other ranks exchange for a forward pass that this rank does not have.
    virtual void idle() {}

    /// Waits until the unit's parameters are there. Units may be held at the same time; a unit may be acquired twice.
    [[nodiscard]] virtual Token acquire(std::int64_t unit, Pass pass) = 0;

  protected:
    virtual void release(std::int64_t unit) noexcept = 0;
};

/// Takes the gradients of a unit: products accumulate directly into its buffer.
class GradientSink {
  public:
    GradientSink() = default;
    GradientSink(const GradientSink&) = delete;
    GradientSink& operator=(const GradientSink&) = delete;
    virtual ~GradientSink() = default;

    /// Where the unit's gradients are summed, laid out like its parameters, in the accumulation dtype.
    class View {
      public:
        View(std::byte* data, DType dtype) : data_(data), dtype_(dtype) {}
        [[nodiscard]] Matrix view(const Parameter& first, std::int64_t rows, std::int64_t cols) const {
            return {data_ + first.offset * size_of(dtype_), dtype_, rows, cols};
        }
        [[nodiscard]] Matrix view(const Parameter& parameter) const {
            return view(parameter, parameter.rows(), parameter.cols());
        }

      private:
        std::byte* data_;
        DType dtype_;
    };

    [[nodiscard]] virtual View begin(std::int64_t unit) = 0;
    /// Nothing more will be added to the unit in this micro-step.
    virtual void done(std::int64_t unit) = 0;
};

}  // namespace tessera
