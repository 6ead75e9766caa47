// The gated activation silu(gate) * up and its gradient. Contracts as in kernels/ops.h.
#pragma once

#include "core/base/view.h"

namespace tessera::cpu {

void swiglu_forward(Matrix act, ConstMatrix gate_up, DType storage, int threads);
void swiglu_backward(Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up, DType storage, int threads);

}  // namespace tessera::cpu
