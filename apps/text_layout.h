// Text of unknown origin on a terminal: nothing that steers it, lines no longer than it is wide.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The text as UTF-8: control characters but line ends, and bytes that are no UTF-8, become \xNN.
[[nodiscard]] std::string printable(std::string_view text);

/// The lines of a text, each broken at spaces so that it has at most `width` characters where its words allow it.
[[nodiscard]] std::vector<std::string> wrap(std::string_view text, std::size_t width);

/// Characters in a line of the terminal that standard output is, 100 where it is none.
[[nodiscard]] std::size_t terminal_width();

}  // namespace tessera
