#include "io/rows.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>

#include "core/base/checked.h"
#include "core/base/error.h"

namespace tessera {

std::string resolve_packing(const std::string& packing, const TokenData& data) {
    if (packing != "auto") {
        return packing;
    }
    return data.has_mask() ? "best_fit" : "concat";
}

Rows::Rows(TokenData& data, const std::string& packing, std::int64_t length, const std::string& too_long)
    : data_(data), length_(length), packing_(Packing::whole) {
    if (length < 1) {
        fail(ExitCode::usage, "[data].sequence_length is {}; it must be at least 1", length);
    }
    if (packing == "concat" || packing == "documents") {
        packing_ = packing == "concat" ? Packing::concat : Packing::documents;
        count_ = (data.tokens() - 1) / length;
        if (count_ < 1) {
            fail(
                ExitCode::bad_data,
                "the data has {} tokens, but one row of [data].sequence_length = {} needs {}; shorten the rows or give "
                "more data",
                data.tokens(), length, length + 1);
        }
        most_tokens_ = length;
        longest_segment_ = packing == "concat" ? length : std::min(length, data.longest_document());
        return;
    }
    if (packing != "pad" && packing != "best_fit") {
        fail(ExitCode::usage, "[data].packing \"{}\" is not one of concat, documents, pad, best_fit", packing);
    }
    list_documents(too_long);
    count_ = static_cast<std::int64_t>(order_.size());
    most_tokens_ = longest_segment_;
    if (packing == "best_fit") {
        pack_best_fit();
    }
}

std::int64_t Rows::inputs_of(std::int64_t document) {
    return std::min(data_.document_range(document).size() - 1, length_);
}

/// Puts the documents that make rows into order_, in file order.
void Rows::list_documents(const std::string& too_long) {
    if (too_long != "error" && too_long != "cut" && too_long != "drop") {
        fail(ExitCode::usage, "[data].too_long \"{}\" is not one of error, cut, drop", too_long);
    }
    std::int64_t longer = 0;
    std::int64_t first_longer = 0;
    for (std::int64_t d = 0; d < data_.documents(); ++d) {
        const std::int64_t tokens = data_.document_range(d).size();
        if (tokens - 1 > length_) {
            first_longer = longer == 0 ? d : first_longer;
            ++longer;
            if (too_long != "cut") {
                continue;
            }
        }
        if (tokens >= 2) {
            order_.push_back(d);
            longest_segment_ = std::max(longest_segment_, std::min(tokens - 1, length_));
        }
    }
    if (longer > 0 && too_long == "error") {
        fail(ExitCode::bad_data,
             "{} has {} tokens, more than the {} that fit in a row of [data].sequence_length = {}; {} of {} documents "
             "are too long (the longest has {}). Make rows longer or set [data].too_long to \"cut\" or \"drop\"",
             data_.document_name(first_longer), data_.document_range(first_longer).size(), length_ + 1, length_, longer,
             data_.documents(), data_.longest_document());
    }
    if (order_.empty()) {
        fail(
            ExitCode::bad_data,
            "the data ({} tokens, {} documents) does not fill one row: a row needs a document of at least 2 tokens{}",
            data_.tokens(), data_.documents(),
            longer > 0 ? fmt::format(", and {} were dropped because they have more than {}", longer, length_ + 1) : "");
    }
}

/// Sorts order_ by rows. The longest document comes first, each into the fullest row that takes it.
void Rows::pack_best_fit() {
    struct Item {
        std::int64_t inputs;
        std::int64_t document;
    };
    std::vector<Item> items(order_.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
        items[i] = {inputs_of(order_[i]), order_[i]};
    }
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return a.inputs != b.inputs ? a.inputs > b.inputs : a.document < b.document;
    });

    // Rows with room, by their room; among equals the oldest is first.
    using Oldest = std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>>;
    std::map<std::int64_t, Oldest> open;
    row_starts_.assign(1, 0);  // at first: how many documents row r has, at r + 1
    most_tokens_ = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        auto place = open.lower_bound(items[i].inputs);
        std::int64_t row = 0;
        std::int64_t room = length_;
        if (place != open.end()) {
            room = place->first;
            row = place->second.top();
            place->second.pop();
            if (place->second.empty()) {
                open.erase(place);
            }
        } else {
            row = static_cast<std::int64_t>(row_starts_.size()) - 1;
            row_starts_.push_back(0);
        }
        room -= items[i].inputs;
        most_tokens_ = std::max(most_tokens_, length_ - room);
        if (room > 0) {
            open[room].push(row);
        }
        ++row_starts_[static_cast<std::size_t>(row) + 1];
        order_[i] = row;  // of items[i]
    }
    count_ = static_cast<std::int64_t>(row_starts_.size()) - 1;

    std::partial_sum(row_starts_.begin(), row_starts_.end(), row_starts_.begin());
    std::vector<std::int64_t> next(row_starts_.begin(), row_starts_.end() - 1);
    std::vector<std::int64_t> rows_of_items(items.size());
    rows_of_items.swap(order_);
    for (std::size_t i = 0; i < items.size(); ++i) {
        const auto row = static_cast<std::size_t>(rows_of_items[i]);
        order_[static_cast<std::size_t>(next[row]++)] = items[i].document;
    }
}

/// Lists the segments of a row.
void Rows::find_segments(std::int64_t row) {
    segments_.clear();
    const auto index = static_cast<std::size_t>(row);
    if (packing_ == Packing::whole) {
        const bool one_each = row_starts_.empty();
        const std::int64_t first = one_each ? row : row_starts_[index];
        const std::int64_t end = one_each ? row + 1 : row_starts_[index + 1];
        for (std::int64_t i = first; i < end; ++i) {
            const std::int64_t document = order_[static_cast<std::size_t>(i)];
            const std::int64_t inputs = inputs_of(document);
            segments_.push_back({data_.document_range(document).first, inputs, inputs});
        }
        return;
    }
    const std::int64_t begin = row * length_;
    const std::int64_t end = begin + length_;
    if (packing_ == Packing::concat) {
        segments_.push_back({begin, length_, length_});
        return;
    }
    for (std::int64_t first = begin; first < end;) {
        const std::int64_t document_end = data_.document_range(data_.document_at(first)).end;
        const std::int64_t inputs = std::min(document_end, end) - first;
        segments_.push_back({first, inputs, document_end > end ? inputs : inputs - 1});
        first += inputs;
    }
}

void Rows::append(std::int64_t row, MicroBatch& batch) {
    if (row < 0 || row >= count_) {
        fail(ExitCode::internal, "row {} of {} was asked for", row, count_);
    }
    find_segments(row);
    for (const Segment& segment : segments_) {
        append_segment(segment, batch);
    }
    ++batch.rows;
}

void Rows::append_segment(const Segment& segment, MicroBatch& batch) {
    // One token more than there are inputs where the last of them predicts.
    const std::int64_t read = std::max(segment.inputs, segment.targets + 1);
    tokens_.resize(static_cast<std::size_t>(read));
    data_.read(segment.first, read, tokens_.data());
    if (data_.has_mask()) {
        mask_.resize(static_cast<std::size_t>(read));
        data_.read_mask(segment.first, read, mask_.data());
    }
    const std::int64_t base = batch.token_count();
    for (std::int64_t i = 0; i < segment.inputs; ++i) {
        batch.tokens.push_back(tokens_[static_cast<std::size_t>(i)]);
        batch.positions.push_back(narrow<std::int32_t>(i));
    }
    batch.starts.push_back(batch.token_count());
    for (std::int64_t i = 0; i < segment.targets; ++i) {
        const auto predicted = static_cast<std::size_t>(i) + 1;
        if (!data_.has_mask() || mask_[predicted] != 0) {  // the mask belongs to the token that is predicted
            batch.target_rows.push_back(narrow<std::int32_t>(base + i));
            batch.target_tokens.push_back(tokens_[predicted]);
            batch.target_weights.push_back(1.0F);
        }
    }
}

}  // namespace tessera
