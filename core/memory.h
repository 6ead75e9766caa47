// Memory that is planned first and allocated once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/checked.h"
#include "core/base/memory.h"
#include "core/base/view.h"

namespace tessera {

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
