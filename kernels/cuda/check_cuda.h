// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <source_location>

namespace tessera::simt {

/// Throws Error(internal) with the call, what the runtime says, and where, unless `result` is cudaSuccess.
void check_cuda(cudaError_t result, const char* call, std::source_location where = std::source_location::current());

}  // namespace tessera::simt
