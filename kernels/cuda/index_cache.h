// Small arrays of the host that kernels read: ids, positions, tiles of attention.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "kernels/cuda/streams.h"

namespace tessera::cuda {

/// Copies arrays to the device. One whose contents are there already is not copied again: positions and tiles are the
/// same in every layer. Arrays stay until kEntries newer ones were needed.
class IndexCache {
  public:
    static constexpr std::int64_t kEntries = 16;

    /// Device memory for arrays of at most `largest` bytes.
    [[nodiscard]] static std::int64_t workspace_bytes(std::int64_t largest);
    void bind(std::span<std::byte> memory, std::int64_t largest);
    /// The streams must outlive it.
    explicit IndexCache(Streams& streams) : streams_(streams) {}
    IndexCache(const IndexCache&) = delete;
    IndexCache& operator=(const IndexCache&) = delete;
    ~IndexCache();

    /// The array in device memory, for what the current stream is given next.
    template <typename T>
    [[nodiscard]] std::span<const T> on_device(std::span<const T> values) {
        return {reinterpret_cast<const T*>(place(std::as_bytes(values))), values.size()};
    }
    [[nodiscard]] const std::byte* place(std::span<const std::byte> bytes);
    /// Bytes of the largest array that it takes.
    [[nodiscard]] std::int64_t largest() const { return largest_; }

  private:
    struct Entry {
        std::byte* device = nullptr;
        std::byte* pinned = nullptr;  // what the device has, or will have when the copy is done
        std::size_t bytes = 0;
        std::int64_t used = 0;  // when; 0: never
        simt::Event copied;
    };
    Streams& streams_;
    std::vector<Entry> entries_;
    std::int64_t largest_ = 0;
    std::int64_t time_ = 0;
    std::byte* pinned_ = nullptr;
};

}  // namespace tessera::cuda
