// The name that somebody who misspelt one most likely meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// The candidate that takes the fewest edits (insert, delete, replace or swap of neighbours; case is ignored) to become
/// `name`; ties: the first. Empty if none is within a third of the length of `name` (one edit at least, three at most).
[[nodiscard]] std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);

/// "; did you mean X?" for the nearest candidate, "" if there is none: to be put at the end of a message.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

/// Edits that turn one name into the other, as above. Takes time and memory of the product of the lengths.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace tessera
