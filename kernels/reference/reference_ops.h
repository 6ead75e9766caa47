// The composed reference: every operation of Ops as plain loops, templated over the scalar that is stored. It is what
// the fused kernels are checked against (in double, by finite differences), and what a job runs that asks for none.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace tessera {

/// The reference with storage f64 (A = f64), f32 or bf16 (A = f32). It takes a workspace for attention only.
[[nodiscard]] std::unique_ptr<Ops> make_reference_ops(DType storage);

}  // namespace tessera
