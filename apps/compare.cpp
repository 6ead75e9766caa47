#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/difference.h"
#include "apps/named_weights.h"
#include "apps/path_kind.h"
#include "apps/report.h"
#include "io/log_prob_file.h"

namespace tessera {
namespace {

constexpr std::int64_t kBlock = 1 << 16;  // log-probs read at once

void add_difference(Report& report, const Difference& difference) {
    report.add("equal bits", difference.other_bits == 0,
               difference.other_bits == 0
                   ? "yes"
                   : fmt::format("no: {} of {} values differ", with_separators(difference.other_bits),
                                 with_separators(difference.count)));
    report.add_count("values", difference.count);
    report.add_count("values of other bits", difference.other_bits);
    report.add_count("not finite", difference.non_finite);
    report.add_real("mean absolute difference", difference.mean_absolute());
    report.add_real("rms difference", difference.rms());
    report.add("relative difference", difference.relative(),
               fmt::format("{} (norm of the difference / norm of the first)", in_digits(difference.relative())));
}

// ------------------------------------------------------------------------------------------------------- weights

NamedWeights open_weights(const std::string& path, PathKind kind) {
    return kind == PathKind::model ? weights_of(std::make_shared<const HfModel>(HfModel::open(path)))
                                   : weights_of(std::make_shared<ShardedCheckpoint>(open_checkpoint(path)));
}

std::map<std::string, const Parameter*> by_name(const NamedWeights& weights) {
    std::map<std::string, const Parameter*> parameters;
    for (const Unit& unit : weights.units) {
        for (const Parameter& parameter : unit.parameters) {
            parameters.emplace(parameter.name, &parameter);
        }
    }
    return parameters;
}

Difference compare_parameter(const NamedWeights& first, const NamedWeights& second, const Parameter& a,
                             const Parameter& b) {
    Difference difference;
    std::vector<float> others;
    for_each_piece(first, a, [&](std::int64_t start, const std::vector<float>& values) {
        others.resize(values.size());
        second.read(b, start, static_cast<std::int64_t>(others.size()), DType::f32, others.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
            difference.add(values[i], others[i], start + static_cast<std::int64_t>(i));
        }
    });
    return difference;
}

/// What a comparison of two sets of parameters finds, beside the numbers of each.
struct WeightComparison {
    Difference all;
    WeightPlace largest;
    std::int64_t parameters = 0;
    std::vector<std::string> only_first;
    std::vector<std::string> only_second;
    std::vector<std::string> other_shape;
    Report::Json list = Report::Json::array();  // of the parameters
    std::vector<std::string> lines;             // of those that differ
};

void add_parameter(WeightComparison& comparison, const Parameter& parameter, const Difference& difference) {
    ++comparison.parameters;
    Report::Json object = {
        {"name", parameter.name},  {"equal_bits", difference.other_bits == 0}, {"largest", difference.largest},
        {"rms", difference.rms()}, {"relative", difference.relative()},        {"not_finite", difference.non_finite}};
    if (difference.largest > comparison.all.largest) {
        comparison.largest = place_of(parameter, difference.largest_at);
    }
    comparison.all.merge(difference);
    if (difference.other_bits > 0) {
        comparison.lines.push_back(fmt::format("  {:>15}  {:>15}  {:>15}  {}", in_digits(difference.largest),
                                               in_digits(difference.rms()), in_digits(difference.relative()),
                                               parameter.name));
    }
    comparison.list.push_back(std::move(object));
}

WeightComparison compare_all(const NamedWeights& first, const NamedWeights& second) {
    WeightComparison comparison;
    std::map<std::string, const Parameter*> others = by_name(second);
    for (const Unit& unit : first.units) {
        for (const Parameter& parameter : unit.parameters) {
            const auto other = others.find(parameter.name);
            if (other == others.end()) {
                comparison.only_first.push_back(parameter.name);
                continue;
            }
            if (other->second->shape != parameter.shape) {
                comparison.other_shape.push_back(parameter.name);
            } else {
                add_parameter(comparison, parameter, compare_parameter(first, second, parameter, *other->second));
            }
            others.erase(other);
        }
    }
    std::ranges::transform(others, std::back_inserter(comparison.only_second),
                           [](const auto& entry) { return entry.first; });
    if (comparison.parameters == 0) {
        fail(ExitCode::bad_data, "{} and {} have no parameter of equal name and shape: they cannot be compared",
             first.path, second.path);
    }
    return comparison;
}

void add_names(Report& report, const std::string& name, const std::vector<std::string>& names) {
    report.add(name, names, names.empty() ? "none" : fmt::format("{}, the first is {}", names.size(), names[0]));
}

Report compare_weights(const CompareOptions& options, PathKind first_kind, PathKind second_kind) {
    const NamedWeights first = open_weights(options.first, first_kind);
    const NamedWeights second = open_weights(options.second, second_kind);
    WeightComparison comparison = compare_all(first, second);
    Report report("weights", options.first, fmt::format("{} and {}", options.first, options.second));
    report.add_member("second", options.second);
    report.add_count("parameters compared", comparison.parameters);
    add_names(report, "only in the first", comparison.only_first);
    add_names(report, "only in the second", comparison.only_second);
    add_names(report, "of other shape", comparison.other_shape);
    report.add(
        "largest difference",
        {{"absolute", comparison.all.largest}, {"name", comparison.largest.name}, {"index", comparison.largest.index}},
        comparison.largest.name.empty()
            ? "0"
            : fmt::format("{} at {}", in_digits(comparison.all.largest), comparison.largest.text()));
    add_difference(report, comparison.all);
    report.add_member("parameters", std::move(comparison.list));
    if (!comparison.lines.empty()) {
        report.add_line(fmt::format("  {:>15}  {:>15}  {:>15}  parameters that differ", "largest", "rms", "relative"));
    }
    for (std::string& line : comparison.lines) {
        report.add_line(std::move(line));
    }
    return report;
}

// ----------------------------------------------------------------------------------------------------- log-probs

void require_equal_offsets(const LogProbFile& first, const LogProbFile& second) {
    const std::vector<std::int64_t>& a = first.offsets();
    const std::vector<std::int64_t>& b = second.offsets();
    const auto [at, other] = std::ranges::mismatch(a, b);
    if (at == a.end() && other == b.end()) {
        return;
    }
    if (at == a.end() || other == b.end()) {
        fail(ExitCode::bad_data, "{} has {} sequences and {} has {}: they are not of the same data", first.path(),
             first.sequences(), second.path(), second.sequences());
    }
    fail(ExitCode::bad_data, "{} and {} are not of the same data: sequence {} has another length", first.path(),
         second.path(), at - a.begin() - 1);
}

/// Calls read(file, first, to) for both files in blocks and adds the values of sequences that `done` keeps.
template <typename Read>
Difference compare_values(const LogProbFile& first, const LogProbFile& second, const std::vector<bool>& done,
                          Read read) {
    Difference difference;
    const std::vector<std::int64_t>& offsets = first.offsets();
    std::vector<float> a(kBlock);
    std::vector<float> b(kBlock);
    for (std::size_t n = 0; n < done.size(); ++n) {
        for (std::int64_t start = offsets[n]; done[n] && start < offsets[n + 1]; start += kBlock) {
            const auto count = static_cast<std::size_t>(std::min(kBlock, offsets[n + 1] - start));
            read(first, start, std::span(a).first(count));
            read(second, start, std::span(b).first(count));
            for (std::size_t i = 0; i < count; ++i) {
                difference.add(a[i], b[i], start + static_cast<std::int64_t>(i));
            }
        }
    }
    return difference;
}

std::vector<std::string> differing_attributes(const LogProbAttributes& a, const LogProbAttributes& b) {
    std::vector<std::string> names;
    const auto compare = [&](const char* name, const auto& x, const auto& y) {
        if (x != y) {
            names.emplace_back(name);
        }
    };
    compare("model", a.model, b.model);
    compare("model_hash", a.model_hash, b.model_hash);
    compare("data", a.data, b.data);
    compare("temperature", a.temperature, b.temperature);
    compare("compute_dtype", a.compute_dtype, b.compute_dtype);
    compare("job", a.job, b.job);
    return names;
}

/// The sequence and the value in it that is number `at` of the file.
std::pair<std::int64_t, std::int64_t> place_of_value(const LogProbFile& file, std::int64_t at) {
    const auto after = std::ranges::upper_bound(file.offsets(), at);
    const std::int64_t sequence = after - file.offsets().begin() - 1;
    return {sequence, at - file.offsets()[static_cast<std::size_t>(sequence)]};
}

void add_largest(Report& report, const std::string& name, const LogProbFile& file, const Difference& difference) {
    if (difference.largest_at < 0) {
        report.add(name, {{"absolute", 0.0}, {"sequence", nullptr}, {"position", nullptr}}, "0");
        return;
    }
    const auto [sequence, position] = place_of_value(file, difference.largest_at);
    report.add(name, {{"absolute", difference.largest}, {"sequence", sequence}, {"position", position}},
               fmt::format("{} at value {} of sequence {}", in_digits(difference.largest), position, sequence));
}

Report compare_log_probs(const CompareOptions& options) {
    const LogProbFile first(options.first);
    const LogProbFile second(options.second);
    require_equal_offsets(first, second);
    std::vector<bool> done = first.done();
    const std::vector<bool> other_done = second.done();
    for (std::size_t n = 0; n < done.size(); ++n) {
        done[n] = done[n] && other_done[n];
    }
    const Difference difference = compare_values(
        first, second, done,
        [](const LogProbFile& file, std::int64_t start, std::span<float> to) { file.read_log_probs(start, to); });
    Report report("log_probs", options.first, fmt::format("{} and {}", options.first, options.second));
    report.add_member("second", options.second);
    report.add_count("sequences", first.sequences());
    report.add_count("sequences compared", std::count(done.begin(), done.end(), true));
    add_largest(report, "largest difference", first, difference);
    add_difference(report, difference);
    report.add("difference of mean nll", 0 - difference.mean(),
               fmt::format("{} nats (second - first)", in_digits(0 - difference.mean())));
    if (first.has_entropy() && second.has_entropy()) {
        const Difference entropy = compare_values(
            first, second, done,
            [](const LogProbFile& file, std::int64_t start, std::span<float> to) { file.read_entropy(start, to); });
        add_largest(report, "largest difference of entropy", first, entropy);
    } else if (first.has_entropy() != second.has_entropy()) {
        report.add_note(fmt::format("only {} has entropies", first.has_entropy() ? options.first : options.second));
    }
    const std::vector<std::string> attributes = differing_attributes(first.attributes(), second.attributes());
    report.add("attributes that differ", attributes,
               attributes.empty() ? "none" : fmt::format("{}", fmt::join(attributes, ", ")));
    if (!first.complete() || !second.complete()) {
        report.add_note("a file is not complete: sequences that are done in both were compared");
    }
    return report;
}

bool has_weights(PathKind kind) {
    return kind == PathKind::model || kind == PathKind::checkpoint;
}

}  // namespace

void command_compare(const CompareOptions& options) {
    const PathKind first = find_kind(options.first).kind;
    const PathKind second = find_kind(options.second).kind;
    if (has_weights(first) && has_weights(second)) {
        compare_weights(options, first, second).print(options.json);
    } else if (first == PathKind::log_probs && second == PathKind::log_probs) {
        compare_log_probs(options).print(options.json);
    } else {
        fail(ExitCode::bad_data,
             "{} and {} cannot be compared: give two of model directories and checkpoints, or two log-prob files",
             options.first, options.second);
    }
}

}  // namespace tessera
