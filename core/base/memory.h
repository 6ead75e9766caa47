// A block of memory that is given back when its owner goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

namespace tessera {

/// Alignment of every piece that is handed out of a block, bytes: a cache line, and the widest vector register.
inline constexpr std::int64_t kMemoryAlignment = 64;

class Memory {
  public:
    using Release = std::function<void(std::span<std::byte>)>;

    Memory() = default;
    /// Zeroed pages from the kernel. Throws Error(internal) with the number of bytes if it refuses.
    explicit Memory(std::int64_t bytes);
    /// A block from elsewhere, to be given back by `release`, which does not throw.
    Memory(std::span<std::byte> block, Release release) : block_(block), release_(std::move(release)) {}
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    ~Memory();

    [[nodiscard]] std::span<std::byte> span() const { return block_; }

  private:
    std::span<std::byte> block_;
    Release release_;
};

}  // namespace tessera
