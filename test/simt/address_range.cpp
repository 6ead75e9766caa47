#include "test/simt/address_range.h"

#include <sys/mman.h>

#include "test/simt/emulator.h"

namespace tessera::simt::emulated {

std::byte* reserve_addresses(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        throw EmulationError(fmt::format("{} bytes of addresses for the emulated device are not to be had", bytes));
    }
    return static_cast<std::byte*>(memory);
}

}  // namespace tessera::simt::emulated
