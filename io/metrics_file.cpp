#include "io/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "io/file.h"

namespace tessera {

namespace {

using nlohmann::json;

// Longer lines are not ours: bounds the memory that a broken file takes.
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

/// The step of a record; nothing where the line is not a JSON object with a whole number "step".
std::optional<std::int64_t> step_of(std::string_view line) {
    const json record = json::parse(line, nullptr, false);
    if (!record.is_object()) {
        return std::nullopt;
    }
    const auto step = record.find("step");
    if (step == record.end() || !step->is_number_integer()) {
        return std::nullopt;
    }
    return step->get<std::int64_t>();
}

/// Calls visit(line, ended) for each line without its end; a line above kLongestLine is given as an empty one.
void for_each_line(const ReadOnlyFile& file, const std::function<void(std::string_view, bool ended)>& visit) {
    std::string line;
    bool too_long = false;
    bool begun = false;
    file.read_in_pieces([&](std::string_view rest) {
        while (!rest.empty()) {
            const std::size_t end = rest.find('\n');
            const std::string_view piece = rest.substr(0, end);
            begun = true;
            too_long = too_long || line.size() + piece.size() > kLongestLine;
            line.append(too_long ? std::string_view() : piece);
            if (end == std::string_view::npos) {
                break;
            }
            visit(too_long ? std::string_view() : line, true);
            line.clear();
            too_long = begun = false;
            rest.remove_prefix(end + 1);
        }
    });
    if (begun) {
        visit(too_long ? std::string_view() : line, false);
    }
}

/// What stays of a file, decided line by line.
struct Sieve {
    explicit Sieve(std::int64_t last_kept) : keep_through_step(last_kept) {}

    std::int64_t keep_through_step;
    std::int64_t number = 0;
    bool changes = false;
    std::vector<std::string> warnings;

    /// Whether the line stays. A last line without its end is kept where it is whole.
    bool keeps(std::string_view line, bool ended, const std::string& path) {
        ++number;
        const auto step = step_of(line);
        const bool stays = step && *step <= keep_through_step;
        if (!step && ended) {
            warnings.push_back(fmt::format("{}, line {}: not a record; removed", path, number));
        }
        changes = changes || !stays || !ended;
        return stays;
    }
};

}  // namespace

void MetricsRecord::add_text(std::string_view key, std::string_view value) {
    text_ += text_.empty() ? "{" : ", ";
    text_ += json(key).dump(-1, ' ', false, json::error_handler_t::replace);
    text_ += ": ";
    text_ += value;
}

void MetricsRecord::add(std::string_view key, double value) {
    if (!std::isfinite(value)) {
        add_text(key, "null");
        return;
    }
    // The shortest digits that read back as the same number; with a point, so that it stays a float for its readers.
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".e") == std::string::npos) {
        text += ".0";
    }
    add_text(key, text);
}

void MetricsRecord::add(std::string_view key, std::string_view value) {
    add_text(key, json(value).dump(-1, ' ', false, json::error_handler_t::replace));
}

MetricsFile::MetricsFile(std::string path, std::int64_t keep_through_step) : path_(std::move(path)) {
    Sieve sieve(keep_through_step);
    // Any other reason not to open it is an error, which the reader says.
    if (::access(path_.c_str(), F_OK) == 0 || errno != ENOENT) {
        for_each_line(ReadOnlyFile(path_), [&](std::string_view line, bool ended) { sieve.keeps(line, ended, path_); });
    }
    if (sieve.changes) {
        const std::string beside = path_ + ".tmp";
        DurableFile kept(beside);
        Sieve again(keep_through_step);
        std::string block;
        for_each_line(ReadOnlyFile(path_), [&](std::string_view line, bool ended) {
            if (again.keeps(line, ended, path_)) {
                block.append(line).append("\n");
            }
            if (block.size() > kLongestLine) {
                kept.write(block);
                block.clear();
            }
        });
        kept.write(block);
        kept.close();
        replace(beside, path_);
    }
    warnings_ = std::move(sieve.warnings);
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file_.is_open()) {
        fail_to_write("open", path_, errno);
    }
    sync_directory(directory_of(path_));
}

void MetricsFile::append(const MetricsRecord& record) {
    const std::string line = record.line() + "\n";
    write_all(file_.get(), line.data(), static_cast<std::int64_t>(line.size()), path_);
}

void MetricsFile::sync() {
    sync_file(file_.get(), path_);
}

void read_metrics(const std::string& path, const std::function<void(std::int64_t step, std::string_view line)>& visit) {
    for_each_line(ReadOnlyFile(path), [&](std::string_view line, bool) {
        if (const auto step = step_of(line)) {
            visit(*step, line);
        }
    });
}

}  // namespace tessera
