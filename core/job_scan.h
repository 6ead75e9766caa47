// A look at the text of a job file before the TOML parser sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

inline constexpr int kMostParts = 16;  // of a dotted name; the longest key has three

struct TextPosition {
    std::int64_t line;    // from 1
    std::int64_t column;  // in bytes, from 1
};

/// The first place where a dotted name has more than kMostParts parts. The parser turns a.b.c into nested tables, whose
/// destructors recurse: a name of very many parts would end the stack.
[[nodiscard]] std::optional<TextPosition> find_endless_name(const std::string& text);

}  // namespace tessera
