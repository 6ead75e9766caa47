#include "apps/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/console.h"
#include "io/json.h"

namespace tessera {

std::string in_digits(double value) {
    return fmt::format("{:.9g}", value);
}

Report::Report(const std::string& kind, const std::string& path, std::string title) : title_(std::move(title)) {
    object_["kind"] = kind;
    object_["path"] = path;
}

void Report::add(const std::string& name, Json value, const std::string& text) {
    std::string key = name;
    std::ranges::replace(key, ' ', '_');
    std::ranges::replace(key, '-', '_');
    object_[key] = std::move(value);
    rows_.emplace_back(name, text);
}

void Report::add_count(const std::string& name, std::int64_t count) {
    add(name, count, with_separators(count));
}

void Report::add_bytes(const std::string& name, std::int64_t bytes) {
    add(name, bytes, in_bytes(bytes));
}

void Report::add_real(const std::string& name, double value) {
    add(name, value, in_digits(value));
}

void Report::add_truth(const std::string& name, bool value) {
    add(name, value, value ? "yes" : "no");
}

void Report::add_text(const std::string& name, const std::string& value) {
    add(name, value, in_quotes(value));
}

void Report::add_note(const std::string& text) {
    notes_.push_back(text);
}

void Report::print(bool json) const {
    if (json) {
        Json object = object_;
        object["notes"] = notes_;
        // Names in files need not be UTF-8.
        fmt::print("{}\n", object.dump(2, ' ', false, Json::error_handler_t::replace));
        return;
    }
    Console console(true);
    console.table(title_, rows_);
    for (const std::string& line : lines_) {
        console.line(line);
    }
    for (const std::string& note : notes_) {
        console.line("note: " + note);
    }
}

}  // namespace tessera
