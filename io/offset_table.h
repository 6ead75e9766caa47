// A long ascending table that stays in its file: only every 1024th entry is kept in memory, with one block of the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// Entries 0 to last() ascend (equal neighbours are allowed) from 0. Entry i is where item i of a file begins, in
/// tokens, and entry last() is where the last one ends.
class OffsetTable {
  public:
    /// Fills to[0 .. count) with entries [first, first + count), given that entry `first` is `start`.
    using Load = std::function<void(std::int64_t first, std::int64_t count, std::int64_t start, std::int64_t* to)>;

    /// Reads the whole table once, in order. Entries that do not begin at 0 or that descend are bad_data; `place` says
    /// whose they are, `item` what begins at them ("document").
    OffsetTable(std::int64_t last, Load load, std::string place, std::string item);

    [[nodiscard]] std::int64_t last() const { return last_; }
    [[nodiscard]] std::int64_t total() const { return total_; }
    /// The largest difference of neighbours.
    [[nodiscard]] std::int64_t longest() const { return longest_; }

    /// Entry i, 0 <= i <= last().
    [[nodiscard]] std::int64_t at(std::int64_t i);
    /// The item that holds token `value`, 0 <= value < total(): the last one that begins at or before it.
    [[nodiscard]] std::int64_t find(std::int64_t value);

  private:
    void fetch(std::int64_t block);

    static constexpr std::int64_t kBlock = 1024;

    std::int64_t last_;
    std::int64_t total_ = 0;
    std::int64_t longest_ = 0;
    Load load_;
    std::string place_;
    std::string item_;
    std::vector<std::int64_t> marks_;  // entries 0, kBlock, 2 kBlock ...
    std::int64_t block_ = -1;          // the block that is in memory
    std::vector<std::int64_t> entries_;
};

}  // namespace tessera
