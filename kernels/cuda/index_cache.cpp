#include "kernels/cuda/index_cache.h"

#include <algorithm>

#include "core/base/checked.h"
#include "core/base/memory.h"

namespace tessera::cuda {

std::int64_t IndexCache::workspace_bytes(std::int64_t largest) {
    return kEntries * round_up(largest, kMemoryAlignment);
}

void IndexCache::bind(std::span<std::byte> memory, std::int64_t largest) {
    largest_ = round_up(largest, kMemoryAlignment);
    pinned_ = simt::allocate_pinned(kEntries * largest_);
    entries_.clear();
    for (std::int64_t i = 0; i < kEntries; ++i) {
        Entry& entry = entries_.emplace_back();
        entry.device = memory.data() + i * largest_;
        entry.pinned = pinned_ + i * largest_;
    }
}

IndexCache::~IndexCache() {
    simt::free_pinned(pinned_);
}

const std::byte* IndexCache::place(std::span<const std::byte> bytes) {
    if (bytes.empty()) {
        return nullptr;
    }
    if (static_cast<std::int64_t>(bytes.size()) > largest_) {
        fail(ExitCode::internal, "an array of {} bytes exceeds what was planned ({})", bytes.size(), largest_);
    }
    ++time_;
    for (Entry& entry : entries_) {
        if (entry.used > 0 && entry.bytes == bytes.size() &&
            std::memcmp(entry.pinned, bytes.data(), bytes.size()) == 0) {
            entry.used = time_;
            return entry.device;
        }
    }
    Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::used);
    if (oldest.used > 0) {
        streams_.wait(oldest.copied);  // the pinned memory may still be read
    }
    std::ranges::copy(bytes, oldest.pinned);
    simt::copy_async(oldest.device, oldest.pinned, static_cast<std::int64_t>(bytes.size()), streams_.current());
    oldest.copied.record(streams_.current());
    oldest.bytes = bytes.size();
    oldest.used = time_;
    return oldest.device;
}

}  // namespace tessera::cuda
