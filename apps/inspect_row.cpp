// `train inspect FILE --row N`: the tokens of one row, and which of them are targets.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "apps/console.h"
#include "apps/decode_tokens.h"
#include "apps/inspect.h"
#include "apps/text_layout.h"
#include "core/job.h"
#include "io/durable_file.h"
#include "io/hub_cache.h"
#include "io/rows.h"
#include "io/token_data.h"

namespace tessera {
namespace {

constexpr std::int64_t kMostShown = 1 << 16;  // tokens of a document

/// Tokens that attend to each other. What the last input predicts is shown too, where it is a target.
struct ShownSegment {
    std::vector<std::int32_t> ids;
    std::vector<bool> is_target;  // of each id
};

struct ShownRow {
    std::vector<ShownSegment> segments;
    std::int64_t inputs = 0;
    std::int64_t targets = 0;
    std::string title;
    std::string note;
};

ShownSegment take_segment(const MicroBatch& batch, std::size_t segment) {
    const std::int64_t begin = batch.starts[segment];
    const std::int64_t end = batch.starts[segment + 1];
    ShownSegment shown;
    shown.ids.assign(batch.tokens.begin() + begin, batch.tokens.begin() + end);
    shown.is_target.assign(shown.ids.size(), false);
    for (std::size_t i = 0; i < batch.target_rows.size(); ++i) {
        const std::int64_t row = batch.target_rows[i];
        if (row < begin || row >= end) {
            continue;
        }
        if (row + 1 == end) {
            shown.ids.push_back(batch.target_tokens[i]);
            shown.is_target.push_back(true);
        } else {
            shown.is_target[static_cast<std::size_t>(row + 1 - begin)] = true;
        }
    }
    return shown;
}

ShownRow packed_row(TokenData& data, const Job& job, const InspectOptions& options) {
    if (job.data.sequence_length <= 0) {
        fail(ExitCode::usage, "{}: data.sequence_length is needed to pack rows", options.config);
    }
    const std::string packing = resolve_packing(job.data.packing, data);
    Rows rows(data, packing, job.data.sequence_length, job.data.too_long);
    if (options.row >= rows.count()) {
        fail(ExitCode::usage, "--row {}: {} has {} rows of packing {}, counted from 0", options.row, options.path,
             rows.count(), packing);
    }
    MicroBatch batch;
    rows.append(options.row, batch);
    ShownRow row;
    for (std::size_t s = 0; s + 1 < batch.starts.size(); ++s) {
        row.segments.push_back(take_segment(batch, s));
    }
    row.inputs = batch.token_count();
    row.targets = batch.target_count();
    row.title = fmt::format("row {} of {}, packing {}, sequence_length {}", options.row, rows.count(), packing,
                            job.data.sequence_length);
    row.note = "rows are counted in this file alone, in file order";
    return row;
}

ShownRow document_row(TokenData& data, const InspectOptions& options) {
    if (options.row >= data.documents()) {
        fail(ExitCode::usage, "--row {}: {} has {} documents, counted from 0", options.row, options.path,
             data.documents());
    }
    const DocumentRange range = data.document_range(options.row);
    const std::int64_t count = std::min(range.size(), kMostShown);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(count));
    ShownRow row;
    ShownSegment& segment = row.segments.emplace_back();
    segment.ids.resize(mask.size());
    data.read(range.first, count, segment.ids.data());
    data.read_mask(range.first, count, mask.data());
    segment.is_target.assign(mask.begin(), mask.end());
    if (count > 0) {
        segment.is_target[0] = false;  // nothing predicts it
    }
    row.inputs = range.size();
    row.targets = std::count(segment.is_target.begin(), segment.is_target.end(), true);
    row.title = fmt::format("document {} of {}", options.row, data.documents());
    if (count < range.size()) {
        row.note = fmt::format("only the first {} of its {} tokens are shown and counted as targets",
                               with_separators(count), with_separators(range.size()));
    }
    return row;
}

/// Runs of tokens that are all targets or all not.
struct Spans {
    std::vector<Span> ids;
    std::vector<bool> is_target;
};

Spans split_spans(const ShownSegment& segment) {
    Spans spans;
    for (std::size_t i = 0; i < segment.ids.size(); ++i) {
        if (i == 0 || segment.is_target[i] != segment.is_target[i - 1]) {
            spans.ids.emplace_back();
            spans.is_target.push_back(segment.is_target[i]);
        }
        spans.ids.back().push_back(segment.ids[i]);
    }
    return spans;
}

DecodedTokens bytes_as_text(const std::vector<std::vector<Span>>& sequences) {
    DecodedTokens decoded;
    for (const std::vector<Span>& spans : sequences) {
        std::vector<std::string>& texts = decoded.texts.emplace_back();
        for (const Span& span : spans) {
            std::string& text = texts.emplace_back();
            std::ranges::transform(span, std::back_inserter(text),
                                   [](std::int32_t id) { return static_cast<char>(id); });
        }
    }
    return decoded;
}

/// The tokenizer.json of --model or, where that is not said, of the job; an absent one of the job is no error.
std::string find_tokenizer(const InspectOptions& options, const std::optional<Job>& job) {
    if (!options.model.empty()) {
        const std::string path = find_model_directory(options.model) + "/tokenizer.json";
        if (!std::filesystem::exists(path)) {
            fail(ExitCode::missing_input, "{} is not there; without --model the ids are shown", path);
        }
        return path;
    }
    if (!job) {
        return "";
    }
    try {
        const std::string path = find_model_directory(job->model_name) + "/tokenizer.json";
        return std::filesystem::exists(path) ? path : "";
    } catch (const Error&) {
        return "";
    }
}

std::string ids_with_marks(const ShownSegment& segment) {
    std::string text;
    for (std::size_t i = 0; i < segment.ids.size(); ++i) {
        text += fmt::format("{}{}{}", i > 0 ? " " : "", segment.ids[i], segment.is_target[i] ? "*" : "");
    }
    return text;
}

std::string text_with_marks(const Spans& spans, const std::vector<std::string>& texts) {
    std::string text;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        text += spans.is_target[i] ? "<*" + texts[i] + "*>" : texts[i];
    }
    return printable(text);
}

void add_segments(Report& report, const ShownRow& row, const DecodedTokens& decoded, const std::vector<Spans>& spans) {
    Report::Json list = Report::Json::array();
    for (std::size_t s = 0; s < row.segments.size(); ++s) {
        const ShownSegment& segment = row.segments[s];
        const bool as_text = !decoded.texts.empty();
        const std::string text = as_text ? text_with_marks(spans[s], decoded.texts[s]) : ids_with_marks(segment);
        Report::Json object = {{"ids", segment.ids}, {"targets", Report::Json::array()}};
        for (std::size_t i = 0; i < segment.ids.size(); ++i) {
            if (segment.is_target[i]) {
                object["targets"].push_back(i);
            }
        }
        if (as_text) {
            object["text"] = text;
        }
        list.push_back(std::move(object));
        report.add_line("");
        if (row.segments.size() > 1) {
            report.add_line(fmt::format("segment {}", s));
        }
        for (std::string& line : wrap(text, terminal_width())) {
            report.add_line(std::move(line));
        }
    }
    report.add("segments", std::move(list), fmt::format("{}", row.segments.size()));
}

}  // namespace

Report inspect_row(const InspectOptions& options, const std::string& format) {
    std::optional<Job> job;
    if (!options.config.empty()) {
        job = parse_job(read_text_file(options.config, 16 << 20), options.config, {}).job;
    }
    TokenData data = TokenData::open({options.path}, format, std::numeric_limits<std::int32_t>::max());
    const ShownRow row = job ? packed_row(data, *job, options) : document_row(data, options);
    std::vector<Spans> spans;
    std::vector<std::vector<Span>> sequences;
    for (const ShownSegment& segment : row.segments) {
        spans.push_back(split_spans(segment));
        sequences.push_back(spans.back().ids);
    }
    DecodedTokens decoded;
    const std::string tokenizer = find_tokenizer(options, job);
    if (format == "bytes") {
        decoded = bytes_as_text(sequences);
    } else if (!tokenizer.empty()) {
        decoded = decode_tokens(tokenizer, sequences);
    }
    Report report("row", options.path, fmt::format("{}: {}", options.path, row.title));
    report.add("row", options.row, fmt::format("{}", options.row));
    report.add_count("tokens", row.inputs);
    report.add_count("targets", row.targets);
    report.add("marked", decoded.texts.empty() ? "ids" : "text",
               decoded.texts.empty() ? "targets as 12*" : "targets between <* and *>");
    add_segments(report, row, decoded, spans);
    if (!decoded.failure.empty()) {
        report.add_note(fmt::format("shown as ids: {}", decoded.failure));
    }
    if (!row.note.empty()) {
        report.add_note(row.note);
    }
    return report;
}

}  // namespace tessera
