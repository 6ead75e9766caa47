// Memory that is planned first and allocated once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/checked.h"
#include "core/base/view.h"

namespace tessera {

/// Alignment of every piece, bytes: a cache line, and the widest vector register.
inline constexpr std::int64_t kMemoryAlignment = 64;

/// Hands out consecutive pieces of a block of memory. Without a block it only counts, so that the code that takes
/// memory is also the code that plans it.
class Carver {
  public:
    Carver() = default;
    explicit Carver(std::span<std::byte> block) : base_(block.data()), capacity_(narrow<std::int64_t>(block.size())) {}

    [[nodiscard]] std::span<std::byte> bytes(std::int64_t count) {
        const std::int64_t offset = used_;
        used_ = checked_add(used_, round_up(count, kMemoryAlignment), "bytes of a plan");
        if (base_ == nullptr) {
            return {};
        }
        if (used_ > capacity_) {
            fail(ExitCode::internal, "a plan of {} bytes was exceeded", capacity_);
        }
        return {base_ + offset, static_cast<std::size_t>(count)};
    }
    [[nodiscard]] Matrix matrix(DType dtype, std::int64_t rows, std::int64_t cols) {
        const std::int64_t elements = checked_mul(rows, cols, "elements of a matrix");
        return {bytes(checked_mul(elements, size_of(dtype), "bytes of a matrix")).data(), dtype, rows, cols};
    }
    [[nodiscard]] std::int64_t used() const { return used_; }

  private:
    std::byte* base_ = nullptr;
    std::int64_t capacity_ = 0;
    std::int64_t used_ = 0;
};

/// Zeroed pages from the kernel, given back on destruction.
class Memory {
  public:
    Memory() = default;
    /// Throws Error(internal) with the number of bytes if the kernel refuses.
    explicit Memory(std::int64_t bytes);
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;
    ~Memory();

    [[nodiscard]] std::span<std::byte> span() const { return {data_, static_cast<std::size_t>(bytes_)}; }

  private:
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
};

/// What the memory of a rank is for.
struct MemoryUse {
    std::string purpose;
    std::int64_t bytes = 0;
};
using MemoryPlan = std::vector<MemoryUse>;

inline void append(MemoryPlan& plan, const MemoryPlan& more) {
    plan.insert(plan.end(), more.begin(), more.end());
}

}  // namespace tessera
