// The CUDA backend, loaded when it is used.
#pragma once

#include "kernels/cuda/backend.h"

namespace tessera {

/// The backend from libtessera_cuda.so beside the program, or from the file that TESSERA_CUDA_LIBRARY names. It stays
/// loaded. Throws Error(usage) with the reason where there is none, or one of another build.
[[nodiscard]] const CudaBackend& load_cuda_backend();

/// Opens the GPU of the rank that is `local_rank` on its node. Throws Error(usage) with the reason where there is none;
/// where there is no driver, without loading the backend, which costs a hundred megabytes.
[[nodiscard]] std::unique_ptr<Device> open_cuda(std::int64_t local_rank);

}  // namespace tessera
