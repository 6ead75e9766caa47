#include "core/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tessera {

Memory::Memory(std::int64_t bytes) {
    if (bytes == 0) {
        return;
    }
    void* memory =
        mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail(ExitCode::internal, "{} bytes of memory are not to be had: {}", bytes, std::strerror(errno));
    }
    // Large pages spare address translation; where they are not to be had nothing is lost.
    static_cast<void>(madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE));
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Memory::~Memory() {
    if (data_ != nullptr) {
        munmap(data_, static_cast<std::size_t>(bytes_));
    }
}

}  // namespace tessera
