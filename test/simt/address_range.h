// Addresses that the emulator sets aside, memory behind them only where it is touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::simt::emulated {

/// `bytes` zeroed bytes, which stay until the process ends or munmap. Throws EmulationError.
[[nodiscard]] std::byte* reserve_addresses(std::size_t bytes);

/// The addresses of one kind of memory: any address tells whether it belongs there.
template <std::size_t bytes>
class AddressRange {
  public:
    static constexpr std::size_t kBytes = bytes;

    [[nodiscard]] bool contains(const void* address) const {
        return static_cast<std::size_t>(offset(address)) < kBytes;
    }
    [[nodiscard]] std::int64_t offset(const void* address) const {
        return static_cast<const std::byte*>(address) - memory_;
    }
    [[nodiscard]] std::byte* at(std::int64_t offset) const { return memory_ + offset; }

  private:
    std::byte* memory_ = reserve_addresses(bytes);
};

}  // namespace tessera::simt::emulated
