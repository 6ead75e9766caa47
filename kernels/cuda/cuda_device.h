// A GPU as a device.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace tessera::cuda {

/// The device of the rank that is `local_rank` on its node. Throws Error(usage) with the reason where there is none.
[[nodiscard]] std::unique_ptr<Device> open_cuda_device(std::int64_t local_rank);

/// A GPU with so many bytes of memory to plan for, whether it is there or not.
[[nodiscard]] std::unique_ptr<Device> plan_cuda_device(std::int64_t bytes);

}  // namespace tessera::cuda
