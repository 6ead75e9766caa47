// One step of Adam or AdamW; all memory is the device's.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace tessera::cuda {

/// Rounding of a float x to one of the two bf16 around it, upwards with the probability with which x lies between them:
/// 16 random bits are added below the 16 that are kept. Element i of all elements takes the upper bits of the i-th
/// number of SplitMix64 (Steele, Lea and Flood 2014) from a state that seed and step make: a function of (seed, step,
/// i) only, however the elements are shared out. Infinities and NaNs are converted as they are.
struct StochasticRounding {
    std::uint64_t seed = 0;
    std::int64_t step = 0;
    std::int64_t first = 0;  // number, among all elements, of the first one of the call
};

/// As Ops::adam (kernels/ops.h) on contiguous vectors: w, m, v, gradient f32; model_weight in f32, bf16 or f16, or
/// empty. With `rounding` model_weight, which must be bf16, is rounded stochastically, else to nearest. Element i gives
/// the same bits wherever the range begins.
void adam(simt::Stream stream, Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight,
          const AdamStep& step, const std::optional<StochasticRounding>& rounding = std::nullopt);

}  // namespace tessera::cuda
