// For tests that run on the CPU, and compiled again on the emulated GPU.
#pragma once

#include "kernels/device.h"

#ifdef TESSERA_TEST_EMULATED
#include "kernels/cuda/cuda_device.h"
#else
#include "kernels/cpu/cpu_device.h"
#endif

namespace tessera::testing {

#ifdef TESSERA_TEST_EMULATED
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

[[nodiscard]] inline std::unique_ptr<Device> make_device() {
#ifdef TESSERA_TEST_EMULATED
    return cuda::open_cuda_device(0);
#else
    return make_cpu_device();
#endif
}

}  // namespace tessera::testing
