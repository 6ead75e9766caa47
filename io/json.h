// JSON from files that may be hostile: no key twice, no deep nesting, errors with file and byte.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tessera {

/// Arrays and objects may be nested so deep.
inline constexpr int kMaxJsonDepth = 64;

/// Parses one JSON value. `path` and `offset` (of the text in the file) are for messages. Throws bad_data for what is
/// not strict JSON in UTF-8, for a key that an object has twice, and for nesting deeper than kMaxJsonDepth.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& path, std::size_t offset = 0);

/// Text from a file as a message may show it: in quotes, control characters escaped, cut after 120 bytes.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// A JSON value as a message may show it: one line, cut after 120 bytes.
[[nodiscard]] std::string shown(const nlohmann::json& value);

}  // namespace tessera
