// SwiGLU. Contract as in kernels/ops.h; all memory is the device's.
#pragma once

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// act = silu(gate) * up; act [T, I], gate_up [T, 2I] with the gate in the first I columns.
void swiglu_forward(simt::Stream stream, Matrix act, ConstMatrix gate_up);
/// dgate = dact * up * silu'(gate), dup = dact * silu(gate). dgate_up may be gate_up.
void swiglu_backward(simt::Stream stream, Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up);

}  // namespace tessera::cuda
