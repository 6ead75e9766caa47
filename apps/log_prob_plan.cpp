#include "apps/log_prob_plan.h"

#include <algorithm>

#include "core/base/checked.h"

namespace tessera {

LogProbPlan::LogProbPlan(const Job::LogProb& options, std::int64_t positions, TokenData& data) {
    if (options.window > positions) {
        fail(ExitCode::usage, "log_prob.window = {} is more than the model's max_position_embeddings = {}",
             options.window, positions);
    }
    std::int64_t too_long = -1;
    std::int64_t too_long_count = 0;
    for (std::int64_t d = 0; d < data.documents(); ++d) {
        const std::int64_t tokens = data.document_range(d).size();
        if (options.window == 0 && tokens - 1 > positions) {
            too_long = too_long < 0 ? d : too_long;
            ++too_long_count;
        }
        cut_document(options, d, tokens);
        offsets_.push_back(offsets_.back() + std::max<std::int64_t>(tokens - 1, 0));
    }
    if (too_long >= 0) {
        fail(ExitCode::bad_data,
             "{} has {} tokens, the model has {} positions ({} such documents); set log_prob.window to score them in "
             "windows",
             data.document_name(too_long), data.document_range(too_long).size(), positions, too_long_count);
    }
    pack(options);
}

void LogProbPlan::cut_document(const Job::LogProb& options, std::int64_t document, std::int64_t tokens) {
    const std::int64_t values = tokens - 1;
    if (values < 1) {
        return;
    }
    const std::int64_t window = options.window > 0 ? options.window : values;
    const std::int64_t stride = options.stride > 0 ? options.stride : window;
    // The first window scores all it has; each that follows its last `stride`, with the rest as context.
    std::int64_t end = std::min(window, values);
    pieces_.push_back({document, 0, end, 0, end});
    while (end < values) {
        const std::int64_t next = std::min(end + stride, values);
        const std::int64_t first = std::max<std::int64_t>(0, next - window);
        pieces_.push_back({document, first, next - first, end, next - end});
        end = next;
    }
}

void LogProbPlan::pack(const Job::LogProb& options) {
    // Like lengths together, the longest first: ranks that work at the same time have the same amount to do.
    std::ranges::stable_sort(pieces_, std::ranges::greater{}, &ScoredPiece::inputs);
    std::int64_t tokens = 0;
    std::int64_t count = 0;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
        const std::int64_t inputs = pieces_[p].inputs;
        const bool full = options.max_token_len > 0 ? tokens + inputs > options.max_token_len
                                                    : count >= options.train_micro_batch_size_per_gpu;
        if (p == 0 || full) {
            batch_starts_.push_back(static_cast<std::int64_t>(p));
            tokens = 0;
            count = 0;
        }
        tokens += inputs;
        ++count;
        max_tokens_ = std::max(max_tokens_, tokens);
        longest_piece_ = std::max(longest_piece_, inputs);
    }
    batch_starts_.push_back(static_cast<std::int64_t>(pieces_.size()));
}

MicroBatch LogProbPlan::fetch(std::int64_t batch, TokenData& data) const {
    MicroBatch result;
    std::vector<std::int32_t> tokens;
    for (std::int64_t p = first_piece(batch); p < end_piece(batch); ++p) {
        const ScoredPiece& piece = pieces_[static_cast<std::size_t>(p)];
        tokens.resize(static_cast<std::size_t>(piece.inputs) + 1);
        data.read(data.document_range(piece.sequence).first + piece.first_input, piece.inputs + 1, tokens.data());
        const std::int64_t start = result.starts.back();
        const std::int64_t context = piece.first_value - piece.first_input;
        for (std::int64_t i = 0; i < piece.inputs; ++i) {
            result.tokens.push_back(tokens[static_cast<std::size_t>(i)]);
            result.positions.push_back(narrow<std::int32_t>(i));
            if (i >= context) {
                result.target_rows.push_back(narrow<std::int32_t>(start + i));
                result.target_tokens.push_back(tokens[static_cast<std::size_t>(i) + 1]);
                result.target_weights.push_back(1);
            }
        }
        result.starts.push_back(start + piece.inputs);
        ++result.rows;
    }
    return result;
}

}  // namespace tessera
