#include "io/offset_table.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace tessera {

OffsetTable::OffsetTable(std::int64_t last, Load load, std::string place, std::string item)
    : last_(last), load_(std::move(load)), place_(std::move(place)), item_(std::move(item)) {
    marks_.push_back(0);
    // The first entry of a block is the last of the one before, so that each block shows what its items hold.
    for (std::int64_t block = 0; block == 0 || block * kBlock < last_; ++block) {
        fetch(block);
        for (std::size_t i = 1; i < entries_.size(); ++i) {
            longest_ = std::max(longest_, entries_[i] - entries_[i - 1]);
        }
        total_ = entries_.back();
        marks_.push_back(total_);
    }
}

void OffsetTable::fetch(std::int64_t block) {
    if (block == block_) {
        return;
    }
    const std::int64_t first = block * kBlock;
    const std::int64_t count = std::min(kBlock, last_ - first) + 1;
    const std::int64_t start = marks_[static_cast<std::size_t>(block)];
    block_ = -1;  // a block that turns out bad is not kept
    entries_.resize(static_cast<std::size_t>(count));
    load_(first, count, start, entries_.data());
    if (entries_[0] != start) {
        if (block == 0) {
            fail(ExitCode::bad_data, "{}: the first {} begins at {} instead of 0", place_, item_, entries_[0]);
        }
        fail(ExitCode::bad_data, "{}: {} {} begins at {} but was at {}; the file changed while it was read", place_,
             item_, first, entries_[0], start);
    }
    const auto descent = std::is_sorted_until(entries_.begin(), entries_.end());
    if (descent != entries_.end()) {
        const std::int64_t bad = first + (descent - entries_.begin());
        fail(ExitCode::bad_data, "{}: {} {} begins at {} and ends at {}: offsets must ascend", place_, item_, bad - 1,
             *(descent - 1), *descent);
    }
    block_ = block;
}

std::int64_t OffsetTable::at(std::int64_t i) {
    if (i < 0 || i > last_) {
        fail(ExitCode::internal, "{}: entry {} of {} was asked for", place_, i, last_);
    }
    fetch(i == last_ ? std::max<std::int64_t>(i - 1, 0) / kBlock : i / kBlock);
    return entries_[static_cast<std::size_t>(i - block_ * kBlock)];
}

std::int64_t OffsetTable::find(std::int64_t value) {
    if (value < 0 || value >= total_) {
        fail(ExitCode::internal, "{}: token {} of {} was asked for", place_, value, total_);
    }
    const auto mark = std::upper_bound(marks_.begin(), marks_.end(), value);
    fetch(mark - marks_.begin() - 1);
    const auto entry = std::upper_bound(entries_.begin(), entries_.end(), value);
    return block_ * kBlock + (entry - entries_.begin()) - 1;
}

}  // namespace tessera
