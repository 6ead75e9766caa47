// Values of the job file in TOML's spelling, and the words for what a key accepts.
#pragma once

#include <string>
#include <string_view>

#include "core/job_keys.h"

namespace tessera {

/// `text` in double quotes with escapes, as both TOML and JSON read it.
[[nodiscard]] std::string quoted(std::string_view text);

/// The shortest decimal that reads back as exactly this (finite) number, recognisable as a float.
[[nodiscard]] std::string literal(double value);

/// The value of a field in TOML (which JSON reads too); "auto" in quotes for an empty Auto.
[[nodiscard]] std::string literal(const Field& field);

/// What a key accepts, for "must be ...": `a whole number of at least 1 or "auto"`.
[[nodiscard]] std::string accepted_values(const Key& key);

/// `"none" or "cpu"`: words joined for a sentence.
[[nodiscard]] std::string either(const std::vector<std::string>& words);

}  // namespace tessera
