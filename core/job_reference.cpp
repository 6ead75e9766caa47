// The job and the table of its keys as text.
#include <fmt/format.h>

#include "core/job.h"
#include "core/job_keys.h"
#include "core/job_literal.h"

namespace tessera {
namespace {

constexpr std::size_t kTextWidth = 100;

std::string default_of(const Key& key) {
    Job job;
    return literal(key.field(job));
}

/// The last part of the name, as it stands below its section's header.
std::string_view short_name(const Key& key) {
    return key.name.substr(key.name.rfind('.') + 1);
}

std::string available_values(const Key& key) {
    return either({key.available.begin(), key.available.end()});
}

std::string wrapped(std::string_view text) {
    std::string lines;
    std::size_t column = kTextWidth + 1;  // the first word starts a line
    while (!text.empty()) {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(word.size() + 1, text.size()));
        if (column + 1 + word.size() > kTextWidth) {
            lines += lines.empty() ? "    " : "\n    ";
            column = 4;
        } else {
            lines += ' ';
            ++column;
        }
        lines += word;
        column += word.size();
    }
    return lines + "\n";
}

std::string as_text(const Key& key) {
    const std::string limits =
        key.available.empty() ? "" : fmt::format("; in this version only {}", available_values(key));
    return fmt::format("{} = {}\n", key.name, default_of(key)) +
           wrapped(fmt::format("{}{}. Read by {}.", accepted_values(key), limits, key.reader.words)) +
           wrapped(key.meaning) + "\n";
}

std::string as_json(const Key& key) {
    return fmt::format(
        R"(  {{"key": {}, "accepts": {}, "default": {}, "available": {}, "read_by": {}, "meaning": {}}})",
        quoted(key.name), quoted(accepted_values(key)), default_of(key),
        key.available.empty() ? "null" : fmt::format("[{}]", fmt::join(key.available, ", ")), quoted(key.reader.words),
        quoted(key.meaning));
}

std::string as_row(const Key& key) {
    const std::string limits =
        key.available.empty() ? "" : fmt::format(" **This version: only {}.**", available_values(key));
    return fmt::format("| `{}` | `{}` | {} | {}{} | {} |\n", short_name(key), default_of(key), accepted_values(key),
                       key.meaning, limits, key.reader.words);
}

std::string header_of(const Section& section) {
    return fmt::format(
        "## {}\n\n{}\n\n| key | default | accepts | meaning | read by |\n| --- | --- | --- | --- | --- |\n",
        section.name.empty() ? "Top of the file" : fmt::format("[{}]", section.name), section.about);
}

}  // namespace

std::string job_to_toml(const Job& job) {
    Job copy = job;  // a field is a pointer to a member that may be set
    std::string text;
    std::string_view section;
    for (const Key& key : job_keys()) {
        if (section_of(key.name) != section) {
            section = section_of(key.name);
            text += fmt::format("\n[{}]\n", section);
        }
        text += fmt::format("{} = {}\n", short_name(key), literal(key.field(copy)));
    }
    return text;
}

std::string describe_keys(const std::string& pattern, KeyFormat format) {
    std::string text;
    const Section* current = nullptr;
    for (const Key& key : job_keys()) {
        if (key.name.find(pattern) == std::string_view::npos) {
            continue;
        }
        switch (format) {
            case KeyFormat::text:
                text += as_text(key);
                break;
            case KeyFormat::json:
                text.append(text.empty() ? "" : ",\n").append(as_json(key));
                break;
            case KeyFormat::markdown:
                if (current == nullptr || current->name != section_of(key.name)) {
                    for (const Section& section : job_sections()) {
                        current = section.name == section_of(key.name) ? &section : current;
                    }
                    text.append(text.empty() ? "" : "\n").append(header_of(*current));
                }
                text += as_row(key);
                break;
        }
    }
    return format == KeyFormat::json ? fmt::format("[\n{}\n]\n", text) : text;
}

}  // namespace tessera
