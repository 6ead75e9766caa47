#include "apps/text_layout.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace tessera {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

/// Bytes of the UTF-8 character that begins at `at` and may be shown; 0 where there is none.
std::size_t shown_bytes(std::string_view text, std::size_t at) {
    const unsigned first = byte_at(text, at);
    if (first < 0x80) {
        return (first >= 0x20 && first != 0x7f) || first == '\n' ? 1 : 0;
    }
    const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte_at(text, at + i) & 0xc0u) != 0x80) {
            return 0;
        }
    }
    const unsigned second = byte_at(text, at + 1);
    const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
    const bool control = first == 0xc2 && second < 0xa0;  // U+0080 to U+009F steer terminals too
    return overlong || beyond || control ? 0 : length;
}

std::size_t characters(std::string_view text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80; }));
}

/// Calls part(piece) for what stands between the separators.
template <typename Part>
void split(std::string_view text, char separator, Part part) {
    for (;;) {
        const std::size_t end = text.find(separator);
        part(text.substr(0, end));
        if (end == std::string_view::npos) {
            return;
        }
        text.remove_prefix(end + 1);
    }
}

}  // namespace

std::string printable(std::string_view text) {
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t bytes = shown_bytes(text, at);
        shown += bytes > 0 ? std::string(text.substr(at, bytes)) : fmt::format("\\x{:02x}", byte_at(text, at));
        at += std::max<std::size_t>(bytes, 1);
    }
    return shown;
}

std::vector<std::string> wrap(std::string_view text, std::size_t width) {
    std::vector<std::string> lines;
    split(text, '\n', [&](std::string_view line) {
        lines.emplace_back();
        std::size_t used = 0;
        bool first = true;
        split(line, ' ', [&](std::string_view word) {
            const std::size_t length = characters(word);
            if (!first && used + 1 + length > width) {
                lines.emplace_back(word);
                used = length;
            } else {
                lines.back().append(first ? "" : " ").append(word);
                used += length + (first ? 0 : 1);
            }
            first = false;
        });
    });
    return lines;
}

std::size_t terminal_width() {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : 100;
}

}  // namespace tessera
