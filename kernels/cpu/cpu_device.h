// The CPU as a device.
#pragma once

#include "kernels/device.h"

namespace tessera {

[[nodiscard]] std::unique_ptr<Device> make_cpu_device();

}  // namespace tessera
