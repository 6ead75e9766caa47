// The door of the library that holds everything about CUDA. It is loaded when a job may use a GPU, and only then: its
// libraries cost memory and time.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace tessera {

/// Changes with every change of what the program and the library say to each other.
inline constexpr std::int64_t kCudaBackendInterface = 2;

/// What the library exports as "tessera_cuda_backend".
struct CudaBackend {
    std::int64_t interface = kCudaBackendInterface;
    /// Opens the device of the rank that is `local_rank` on its node. Throws Error(usage) with the reason where there
    /// is none that can be used.
    std::unique_ptr<Device> (*open)(std::int64_t local_rank);
    /// A GPU with so many bytes of memory that need not be there: tells what operations need, and has no memory to
    /// give.
    std::unique_ptr<Device> (*plan)(std::int64_t bytes);
    /// Versions of what is linked, each in words.
    std::string (*versions)();
};
using CudaBackendEntry = const CudaBackend* (*)();
inline constexpr const char* kCudaBackendEntry = "tessera_cuda_backend";

}  // namespace tessera
