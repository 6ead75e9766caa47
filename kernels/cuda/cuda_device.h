// A GPU as a device.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace tessera::cuda {

/// The device of the rank that is `local_rank` on its node. Throws Error(usage) with the reason where there is none.
[[nodiscard]] std::unique_ptr<Device> open_cuda_device(std::int64_t local_rank);

}  // namespace tessera::cuda
