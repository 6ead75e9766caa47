// How a data set is scored: documents or windows of them, packed into micro-batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/job.h"
#include "io/token_data.h"

namespace tessera {

/// A stretch of a document that goes through the model at once.
struct ScoredPiece {
    std::int64_t sequence = 0;     // document
    std::int64_t first_input = 0;  // within the document
    std::int64_t inputs = 0;
    std::int64_t first_value = 0;  // values [first_value, first_value + values) of the document are kept
    std::int64_t values = 0;
};

/// Which pieces there are and which go together: a function of the data and of [log_prob] alone, never of the ranks.
class LogProbPlan {
  public:
    /// `positions`: what the model has. Throws bad_data for a document that is longer, and usage for such a window.
    LogProbPlan(const Job::LogProb& options, std::int64_t positions, TokenData& data);

    [[nodiscard]] const std::vector<ScoredPiece>& pieces() const { return pieces_; }
    [[nodiscard]] std::int64_t batches() const { return static_cast<std::int64_t>(batch_starts_.size()) - 1; }
    /// Pieces [first, end) of a batch.
    [[nodiscard]] std::int64_t first_piece(std::int64_t batch) const {
        return batch_starts_[static_cast<std::size_t>(batch)];
    }
    [[nodiscard]] std::int64_t end_piece(std::int64_t batch) const { return first_piece(batch + 1); }
    /// Offsets of the values of each document: documents + 1 entries.
    [[nodiscard]] const std::vector<std::int64_t>& offsets() const { return offsets_; }
    [[nodiscard]] std::int64_t max_tokens() const { return max_tokens_; }  // of a micro-batch
    [[nodiscard]] std::int64_t longest_piece() const { return longest_piece_; }

    /// The tokens of a batch; targets are the values of its pieces, one after another.
    [[nodiscard]] MicroBatch fetch(std::int64_t batch, TokenData& data) const;

  private:
    void cut_document(const Job::LogProb& options, std::int64_t document, std::int64_t tokens);
    void pack(const Job::LogProb& options);

    std::vector<ScoredPiece> pieces_;
    std::vector<std::int64_t> batch_starts_;
    std::vector<std::int64_t> offsets_ = {0};
    std::int64_t max_tokens_ = 0;
    std::int64_t longest_piece_ = 0;
};

}  // namespace tessera
