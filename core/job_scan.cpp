#include "core/job_scan.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera {
namespace {

/// The end of the string or comment that starts at `at`, or at + 1 if neither does. An unfinished one ends with the
/// text.
std::size_t skip_quoted(const std::string& text, std::size_t at) {
    const char c = text[at];
    if (c == '#') {
        return std::min(text.find('\n', at), text.size());
    }
    if (c != '"' && c != '\'') {
        return at + 1;
    }
    const std::string three(3, c);
    const bool multiline = text.compare(at, 3, three) == 0;
    std::size_t i = at + (multiline ? 3 : 1);
    while (i < text.size()) {
        if (c == '"' && text[i] == '\\') {
            i += 2;
        } else if (multiline ? text.compare(i, 3, three) == 0 : text[i] == c || text[i] == '\n') {
            return std::min(i + (multiline ? 3 : 1), text.size());
        } else {
            ++i;
        }
    }
    return text.size();
}

}  // namespace

std::optional<TextPosition> find_endless_name(const std::string& text) {
    int parts = 1;
    for (std::size_t i = 0; i < text.size(); i = skip_quoted(text, i)) {
        const char c = text[i];
        if (c == '.' && ++parts > kMostParts) {
            const std::size_t line = i == 0 ? 0 : text.rfind('\n', i - 1) + 1;
            const auto end = text.begin() + static_cast<std::ptrdiff_t>(i);
            return TextPosition{std::count(text.begin(), end, '\n') + 1, static_cast<std::int64_t>(i - line) + 1};
        }
        if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) {
            parts = 1;
        }
    }
    return std::nullopt;
}

}  // namespace tessera
