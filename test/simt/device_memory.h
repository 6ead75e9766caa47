// The memory of the emulated device, and pinned memory of the host: both come from one range of addresses, so that any
// address tells what it belongs to. No address is handed out twice, which shows every use after free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "test/simt/address_range.h"

namespace tessera::simt::emulated {

struct Allocation {
    std::byte* begin = nullptr;
    std::int64_t bytes = 0;
    bool pinned = false;
    bool live = false;
};

class DeviceMemory : public AddressRange<std::size_t{128} << 30> {
  public:
    /// Unused addresses before and behind each allocation, at least.
    static constexpr std::int64_t kRedZone = 256;

    DeviceMemory();
    /// Exactly `bytes` bytes, each 0xff (a NaN in every type), aligned to 256 and to no more.
    [[nodiscard]] std::byte* allocate(std::int64_t bytes, bool pinned);
    /// Throws where that was not allocated so.
    void free(std::byte* memory, bool pinned);

    /// Whether [address, address + bytes) lies in one live allocation.
    [[nodiscard]] bool holds(const void* address, std::int64_t bytes) const;
    /// What lies at an address of the range, in words: "byte 40 of 64 bytes of device memory".
    [[nodiscard]] std::string describe(const void* address) const;
    [[nodiscard]] std::string describe_offset(std::int64_t offset) const { return describe(at(offset)); }
    /// The live allocation there, or null.
    [[nodiscard]] const Allocation* find(const void* address) const;

  private:
    static constexpr std::int64_t kUnit = 256;  // bytes that belong to one allocation or its red zones

    [[nodiscard]] const Allocation& owner(const void* address) const {
        return allocations_[owners_[static_cast<std::size_t>(offset(address) / kUnit)]];
    }

    std::uint32_t* owners_;  // of each unit: place in allocations_; 0 is nobody
    std::deque<Allocation> allocations_;
    std::int64_t used_ = 0;
};

/// The one of the process. Guarded, like all of the emulator, by emulator_mutex().
[[nodiscard]] DeviceMemory& device_memory();

}  // namespace tessera::simt::emulated
