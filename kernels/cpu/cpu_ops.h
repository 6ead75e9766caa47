// The CPU backend of Ops: oneDNN for products, vectorised loops with OpenMP for the rest.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace tessera {

/// Makes the CPU backend for the threads that OpenMP would use now (omp_get_max_threads); an Ops is used by one thread
/// at a time, but for zero, copy, add, gather_rows, scatter_add_rows, sum_rows, squared_norm and adam, which use no
/// workspace. Throws Error where the program was compiled for instructions that this CPU lacks.
[[nodiscard]] std::unique_ptr<Ops> make_cpu_ops(const OpsOptions& options);

}  // namespace tessera
