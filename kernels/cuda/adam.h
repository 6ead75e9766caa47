// One step of Adam or AdamW; all memory is the device's.
#pragma once

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace tessera::cuda {

/// As Ops::adam (kernels/ops.h) on contiguous vectors: w, m, v, gradient f32; model_weight in f32, bf16 or f16, or
/// empty. Element i gives the same bits wherever the range begins.
void adam(simt::Stream stream, Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight,
          const AdamStep& step);

}  // namespace tessera::cuda
