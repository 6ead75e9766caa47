#include "core/base/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace tessera {

Memory::Memory(std::int64_t bytes) {
    if (bytes == 0) {
        return;
    }
    const auto size = static_cast<std::size_t>(bytes);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail(ExitCode::internal, "{} bytes of memory are not to be had: {}", bytes, std::strerror(errno));
    }
    // Large pages spare address translation; where they are not to be had nothing is lost.
    static_cast<void>(madvise(memory, size, MADV_HUGEPAGE));
    block_ = {static_cast<std::byte*>(memory), size};
    release_ = [](std::span<std::byte> block) { munmap(block.data(), block.size()); };
}

Memory::Memory(Memory&& other) noexcept
    : block_(std::exchange(other.block_, {})), release_(std::exchange(other.release_, nullptr)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(release_, other.release_);
    return *this;
}

Memory::~Memory() {
    if (release_) {
        release_(block_);
    }
}

}  // namespace tessera
