// One step of Adam or AdamW. Contract as in kernels/ops.h.
#pragma once

#include "kernels/ops.h"

namespace tessera::cpu {

void adam(Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight, const AdamStep& step, DType storage,
          int threads);

}  // namespace tessera::cpu
