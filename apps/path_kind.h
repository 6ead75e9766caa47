// What a path that a user names is, told by what is there and not by its name.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class PathKind : std::uint8_t { model, checkpoint, run, tokens, log_probs, metrics };

struct FoundPath {
    PathKind kind = PathKind::model;
    std::string token_format;  // tokens: as [data].format names it
};

/// Throws missing_input where there is nothing, bad_data where it is none of the kinds.
[[nodiscard]] FoundPath find_kind(const std::string& path);

}  // namespace tessera
