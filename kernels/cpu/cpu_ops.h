// The CPU backend of Ops: oneDNN for products, vectorised loops with OpenMP for the rest.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace tessera {

struct CpuOptions {
    DType storage = DType::f32;  // f32 or bf16
    bool fused = true;  // false: all but products, attention and moving memory as the composed reference does it
    bool flash = true;  // false: attention of the reference
};

/// Makes the CPU backend for the threads that OpenMP would use now (omp_get_max_threads); an Ops is used by one thread
/// at a time, but for zero, copy, add, gather_rows, scatter_add_rows, sum_rows, squared_norm and adam, which use no
/// workspace. Throws Error where the program was compiled for instructions that this CPU lacks.
[[nodiscard]] std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options);

}  // namespace tessera
