// Packing: how the stream of documents becomes the rows that batches are made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/batch.h"
#include "io/token_data.h"

namespace tessera {

/// What [data].packing means for this data: "auto" is "best_fit" where the data has a loss mask, else "concat".
[[nodiscard]] std::string resolve_packing(const std::string& packing, const TokenData& data);

/// The rows of a data set, by number. With t the stream of tokens and L the length of a row:
///   concat     row r takes inputs t[r*L .. r*L + L - 1], each predicting the next; bounds of documents are ignored.
///   documents  the same inputs, in segments that end with their document; its last token predicts nothing.
///   pad        one document a row, all but its last token as inputs; documents without two tokens make no row.
///   best_fit   such documents, several a row where they fit in L inputs, a segment each; rows in the order in which
///              they were begun, their documents in the order in which they were placed.
/// Whatever the packing, a target that the data's loss mask leaves out is no target; a row may have none.
class Rows {
  public:
    /// `packing` is one of the four above; `too_long` says what pad and best_fit do with documents of more than L + 1
    /// tokens: "error", "cut" (what follows is lost) or "drop". Throws bad_data for a document that is too long, and
    /// where the data does not fill one row. `data` must outlive the rows; pad takes 8 bytes of memory a document,
    /// best_fit 16 (while it packs, 40).
    Rows(TokenData& data, const std::string& packing, std::int64_t length, const std::string& too_long);

    [[nodiscard]] std::int64_t count() const { return count_; }
    /// Inputs of the largest row.
    [[nodiscard]] std::int64_t max_tokens_per_row() const { return most_tokens_; }
    /// Inputs of the longest segment (documents: a bound).
    [[nodiscard]] std::int64_t longest_segment() const { return longest_segment_; }

    /// Adds row 0 <= row < count() to a batch. Bad ids and mask values are bad_data.
    void append(std::int64_t row, MicroBatch& batch);

  private:
    /// Part of a row that attends to itself alone: `inputs` tokens, of which the first `targets` predict the next one.
    struct Segment {
        std::int64_t first = 0;  // in the stream
        std::int64_t inputs = 0;
        std::int64_t targets = 0;
    };

    void list_documents(const std::string& too_long);
    void pack_best_fit();
    void find_segments(std::int64_t row);
    void append_segment(const Segment& segment, MicroBatch& batch);
    /// Inputs that a document gives: one less than its tokens, at most length_.
    [[nodiscard]] std::int64_t inputs_of(std::int64_t document);

    TokenData& data_;
    std::int64_t length_;
    enum class Packing : std::uint8_t { concat, documents, whole } packing_;  // whole: pad and best_fit
    std::int64_t count_ = 0;
    std::int64_t most_tokens_ = 0;
    std::int64_t longest_segment_ = 0;
    std::vector<std::int64_t> order_;       // whole: the documents of all rows, row after row
    std::vector<std::int64_t> row_starts_;  // best_fit: row r has order_[row_starts_[r] .. row_starts_[r + 1])
    std::vector<Segment> segments_;         // of the row at hand, and its tokens and mask
    std::vector<std::int32_t> tokens_;
    std::vector<std::uint8_t> mask_;
};

}  // namespace tessera
