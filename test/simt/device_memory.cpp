#include "test/simt/device_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "core/base/checked.h"
#include "test/simt/emulator.h"
#include "test/simt/poison.h"

namespace tessera::simt::emulated {

namespace {

const char* kind(const Allocation& allocation) {
    return allocation.pinned ? "pinned memory" : "device memory";
}

}  // namespace

DeviceMemory::DeviceMemory()
    : owners_(reinterpret_cast<std::uint32_t*>(reserve_addresses(kBytes / kUnit * sizeof(std::uint32_t)))),
      allocations_(1) {}

std::byte* DeviceMemory::allocate(std::int64_t bytes, bool pinned) {
    if (bytes < 0 || bytes > static_cast<std::int64_t>(kBytes) - used_ - 4 * kUnit) {
        throw EmulationError(fmt::format("{} bytes of the emulated device's memory cannot be had", bytes));
    }
    // One unit off a multiple of two: aligned to 256 bytes and to no more.
    std::byte* begin = at(used_ + kUnit);
    const std::int64_t units = 1 + round_up(ceil_div(bytes, kUnit) + 1, 2) + 1;
    const auto index = narrow<std::uint32_t>(allocations_.size());
    allocations_.push_back({begin, bytes, pinned, true});
    std::fill_n(owners_ + used_ / kUnit, units, index);
    used_ += units * kUnit;
    std::memset(begin, 0xff, static_cast<std::size_t>(bytes));
    poison(begin - kRedZone, kRedZone);
    poison(begin + bytes, kRedZone);
    return begin;
}

void DeviceMemory::free(std::byte* memory, bool pinned) {
    if (!contains(memory) || owner(memory).begin != memory || owner(memory).pinned != pinned) {
        throw EmulationError(fmt::format("what is freed is no {}", pinned ? "pinned memory" : "device memory"));
    }
    Allocation& allocation = allocations_[owners_[static_cast<std::size_t>(offset(memory) / kUnit)]];
    if (!allocation.live) {
        throw EmulationError(fmt::format("{} is freed twice", kind(allocation)));
    }
    allocation.live = false;
    std::memset(memory, 0xff, static_cast<std::size_t>(allocation.bytes));
    poison(memory, allocation.bytes);
    // Whole pages go back to the system, and any access to them is a fault.
    constexpr std::int64_t kPage = 4096;
    const std::int64_t first = round_up(offset(memory), kPage);
    const std::int64_t end = (offset(memory) + allocation.bytes) / kPage * kPage;
    constexpr std::int64_t kWorthWhile = 1 << 20;  // the system keeps a list of such holes, and it should be short
    if (end - first >= kWorthWhile) {
        madvise(at(first), static_cast<std::size_t>(end - first), MADV_DONTNEED);
        mprotect(at(first), static_cast<std::size_t>(end - first), PROT_NONE);
    }
}

const Allocation* DeviceMemory::find(const void* address) const {
    const Allocation& allocation = owner(address);
    const std::int64_t at = static_cast<const std::byte*>(address) - allocation.begin;
    return allocation.live && at >= 0 && at < allocation.bytes ? &allocation : nullptr;
}

bool DeviceMemory::holds(const void* address, std::int64_t bytes) const {
    if (!contains(address)) {
        return false;
    }
    const Allocation& allocation = owner(address);
    const std::int64_t at = static_cast<const std::byte*>(address) - allocation.begin;
    return allocation.live && at >= 0 && at + bytes <= allocation.bytes;
}

std::string DeviceMemory::describe(const void* address) const {
    const Allocation& allocation = owner(address);
    if (allocation.begin == nullptr) {
        return "memory that was never allocated";
    }
    const std::int64_t at = static_cast<const std::byte*>(address) - allocation.begin;
    const std::string what =
        fmt::format("{} bytes of {}{}", allocation.bytes, allocation.live ? "" : "freed ", kind(allocation));
    if (at < 0) {
        return fmt::format("{} bytes before {}", -at, what);
    }
    if (at >= allocation.bytes) {
        return fmt::format("{} bytes past the end of {}", at - allocation.bytes, what);
    }
    return fmt::format("byte {} of {}", at, what);
}

DeviceMemory& device_memory() {
    static DeviceMemory memory;
    return memory;
}

}  // namespace tessera::simt::emulated
