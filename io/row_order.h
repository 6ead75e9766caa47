// Which row of the data comes when: an endless stream of rows, epoch after epoch, and its division into batches.
#pragma once

#include <cstdint>

namespace tessera {

/// A permutation of all rows for each epoch, computed where it is asked for: any position at once, no memory.
class RowOrder {
  public:
    /// rows >= 1. Without shuffle every epoch is in file order.
    RowOrder(std::int64_t rows, std::uint64_t seed, bool shuffle);

    [[nodiscard]] std::int64_t rows() const { return rows_; }
    [[nodiscard]] std::int64_t epoch_of(std::int64_t stream_position) const { return stream_position / rows_; }
    /// The row at a position >= 0 of the stream. Depends on rows, seed and position only.
    [[nodiscard]] std::int64_t row_at(std::int64_t stream_position) const;

  private:
    std::int64_t rows_;
    std::uint64_t seed_;
    bool shuffle_;
};

/// How a batch is divided: row i of a batch goes to micro-step i / (micro * ranks), rank (i / micro) % ranks.
struct BatchShape {
    std::int64_t micro = 1;         // rows of a micro-batch of one rank
    std::int64_t accumulation = 1;  // micro-steps of a step
    std::int64_t ranks = 1;

    [[nodiscard]] std::int64_t batch() const { return micro * accumulation * ranks; }
};

/// The rows of a micro-batch are neighbours in the stream: they are at the returned position and the shape.micro - 1
/// that follow. `step` counts from 0.
[[nodiscard]] std::int64_t first_position(const BatchShape& shape, std::int64_t step, std::int64_t micro_step,
                                          std::int64_t rank);

/// Steps in which every row is used at least `epochs` times; the last batch is filled from the next epoch.
[[nodiscard]] std::int64_t steps_of_epochs(std::int64_t rows, std::int64_t epochs, std::int64_t batch);

}  // namespace tessera
