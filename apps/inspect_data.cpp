// `train inspect` of token files and log-prob files.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "apps/console.h"
#include "apps/inspect.h"
#include "io/hdf5.h"
#include "io/log_prob_file.h"
#include "io/token_data.h"

namespace tessera {
namespace {

constexpr std::int64_t kBlock = 1 << 16;  // values read at once

double share(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

void add_lengths(Report& report, TokenData& data) {
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
    for (std::int64_t d = 0; d < data.documents(); ++d) {
        shortest = std::min(shortest, data.document_range(d).size());
    }
    report.add_count("documents", data.documents());
    report.add_count("tokens", data.tokens());
    report.add_count("shortest document", shortest);
    report.add_real("mean document", share(data.tokens(), data.documents()));
    report.add_count("longest document", data.longest_document());
}

struct TokenCounts {
    std::int64_t largest = 0;
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    std::int64_t kept = 0;  // by the mask
};

TokenCounts count_tokens(TokenData& data) {
    TokenCounts counts;
    std::vector<std::int32_t> ids(kBlock);
    std::vector<std::uint8_t> mask(kBlock);
    for (std::int64_t first = 0; first < data.tokens(); first += kBlock) {
        const std::int64_t count = std::min(kBlock, data.tokens() - first);
        data.read(first, count, ids.data());
        data.read_mask(first, count, mask.data());
        const auto [least, most] = std::minmax_element(ids.begin(), ids.begin() + count);
        counts.smallest = std::min<std::int64_t>(counts.smallest, *least);
        counts.largest = std::max<std::int64_t>(counts.largest, *most);
        counts.kept += std::count(mask.begin(), mask.begin() + count, std::uint8_t{1});
    }
    return counts;
}

void add_token_attributes(Report& report, const std::string& path, std::int64_t largest_id) {
    const hdf5::File file = hdf5::File::open(path);
    if (const auto size = file.integer_attribute("vocab_size")) {
        report.add_count("vocab size", *size);
        if (largest_id >= *size) {
            report.add_note(
                fmt::format("the largest id, {}, is outside the file's own vocab_size {}", largest_id, *size));
        }
    }
    if (const auto tokenizer = file.string_attribute("tokenizer")) {
        report.add_text("tokenizer", *tokenizer);
    }
    if (const auto eos = file.integer_attribute("eos_token_id")) {
        report.add_count("eos token id", *eos);
    }
}

}  // namespace

Report inspect_tokens(const std::string& path, const std::string& format) {
    TokenData data = TokenData::open({path}, format, std::numeric_limits<std::int32_t>::max());
    Report report("tokens", path, fmt::format("token file {}", path));
    report.add("format", format, format);
    add_lengths(report, data);
    const TokenCounts counts = count_tokens(data);
    report.add_count("smallest id", counts.smallest);
    report.add_count("largest id", counts.largest);
    report.add_truth("loss mask", data.has_mask());
    if (data.has_mask()) {
        report.add("mask share", share(counts.kept, data.tokens()),
                   fmt::format("{:.2f} % of the tokens may be targets", 100 * share(counts.kept, data.tokens())));
    }
    if (format == "hdf5") {
        add_token_attributes(report, path, counts.largest);
    }
    return report;
}

namespace {

/// Sums of the values of finished sequences.
struct LogProbCounts {
    std::int64_t sequences = 0;
    std::int64_t values = 0;  // finite ones
    std::int64_t non_finite = 0;
    double log_probs = 0;
    double entropies = 0;
    double least = std::numeric_limits<double>::infinity();
    std::int64_t least_sequence = 0;
    std::int64_t least_value = 0;
};

LogProbCounts count_values(const LogProbFile& file, const std::vector<bool>& done) {
    LogProbCounts counts;
    std::vector<float> values(kBlock);
    std::vector<float> entropies(file.has_entropy() ? kBlock : 0);
    counts.sequences = std::count(done.begin(), done.end(), true);
    const std::vector<std::int64_t>& offsets = file.offsets();
    std::int64_t sequence = 0;
    for (std::int64_t first = 0; first < file.values(); first += kBlock) {
        const auto count = static_cast<std::size_t>(std::min(kBlock, file.values() - first));
        file.read_log_probs(first, std::span(values).first(count));
        if (file.has_entropy()) {
            file.read_entropy(first, std::span(entropies).first(count));
        }
        for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t at = first + static_cast<std::int64_t>(i);
            while (offsets[static_cast<std::size_t>(sequence) + 1] <= at) {
                ++sequence;
            }
            if (!done[static_cast<std::size_t>(sequence)]) {
                continue;
            }
            const double value = static_cast<double>(values[i]);
            if (!std::isfinite(value)) {
                ++counts.non_finite;
                continue;
            }
            ++counts.values;
            counts.log_probs += value;
            counts.entropies += file.has_entropy() ? static_cast<double>(entropies[i]) : 0;
            if (value < counts.least) {
                counts.least = value;
                counts.least_sequence = sequence;
                counts.least_value = at - offsets[static_cast<std::size_t>(sequence)];
            }
        }
    }
    return counts;
}

void add_means(Report& report, const LogProbFile& file, const LogProbCounts& counts) {
    const double mean = counts.log_probs / static_cast<double>(counts.values);
    report.add_real("mean log-prob", mean);
    report.add_real("mean nll nats", -mean);
    report.add_real("mean nll bits", -mean / std::numbers::ln2);
    report.add_real("perplexity", std::exp(-mean));
    report.add("least log-prob",
               {{"value", counts.least}, {"sequence", counts.least_sequence}, {"position", counts.least_value}},
               fmt::format("{} at value {} of sequence {}, which scores its token {}", in_digits(counts.least),
                           counts.least_value, counts.least_sequence, counts.least_value + 1));
    if (file.has_entropy()) {
        report.add_real("mean entropy", counts.entropies / static_cast<double>(counts.values));
    }
}

}  // namespace

Report inspect_log_probs(const std::string& path) {
    const LogProbFile file(path);
    const std::vector<bool> done = file.done();
    const LogProbCounts counts = count_values(file, done);
    Report report("log_probs", path, fmt::format("log-prob file {}", path));
    report.add_truth("complete", file.complete());
    report.add_count("sequences", file.sequences());
    report.add_count("sequences done", counts.sequences);
    report.add_count("values", file.values());
    report.add_count("not finite", counts.non_finite);
    if (counts.values > 0) {
        add_means(report, file, counts);
    }
    std::vector<double> sums(done.size());
    file.read_sums(0, sums);
    double scored = 0;
    for (std::size_t n = 0; n < done.size(); ++n) {
        scored += done[n] ? sums[n] : 0;
    }
    report.add_real("sum over scored tokens", scored);
    const LogProbAttributes& attributes = file.attributes();
    report.add_text("model", attributes.model);
    report.add_text("model hash", attributes.model_hash);
    report.add_text("data", attributes.data);
    report.add_real("temperature", attributes.temperature);
    report.add_text("compute dtype", attributes.compute_dtype);
    report.add_member("job", attributes.job);
    if (!file.complete()) {
        report.add_note("the file is not complete: the numbers are those of the sequences that are done");
    }
    return report;
}

}  // namespace tessera
