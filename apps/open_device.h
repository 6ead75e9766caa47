// Where a job computes.
#pragma once

#include "apps/console.h"
#include "apps/free_memory.h"
#include "kernels/device.h"

namespace tessera {

struct OpenedDevice {
    std::unique_ptr<Device> device;
    std::string note;  // why "auto" is the CPU; empty where there is nothing to say

    [[nodiscard]] std::string words() const {
        return note.empty() ? device->description() : fmt::format("{} ({})", device->description(), note);
    }
};

/// The device that a job file's `device` means here, for the rank that is `local_rank` on its node. "auto" is a GPU if
/// one can be used, and else the CPU, unless GPUs were granted to this process. Throws Error(usage) with the reason.
[[nodiscard]] OpenedDevice open_device(const std::string& wanted, std::int64_t local_rank);

/// The same for all ranks of a job, which must compute on the same kind of device and each on its own; collective.
[[nodiscard]] OpenedDevice open_devices(const std::string& wanted, const Communicator& communicator, Console& console);

/// What a rank may take of the device's memory, where `ranks` ranks share the node's.
[[nodiscard]] FreeMemory free_memory_of(const Device& device, std::int64_t ranks);

/// The least of that of all ranks; collective.
[[nodiscard]] FreeMemory least_free_memory(const Device& device, const Communicator& communicator);

}  // namespace tessera
