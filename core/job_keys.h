// The table of the job file: one row a key. Parsing, writing, `train keys` and docs/job.md all derive from it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/job.h"

namespace tessera {

/// The member of a Job that a key sets. Its type is the type of the key; Auto types take "auto" too.
using Field = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                           std::array<double, 2>*, Auto<bool>*, Auto<std::int64_t>*>;

/// Whole numbers stay at or below this (the seed excepted), so that counts of bytes made from them fit 63 bits.
inline constexpr std::int64_t kLargestCount = 1'000'000'000'000'000;

/// Range of a number, of each number of a list.
struct Range {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    bool above = false;    // low itself is excluded
    bool below = false;    // high itself is excluded
    bool or_zero = false;  // 0 is accepted as well
};

/// One of the words that a string key accepts. `alias` is read as `value`.
struct Choice {
    std::string_view value;
    std::string_view alias = {};
};

/// What a string may be besides the choices. Without both, any string is accepted.
struct Text {
    std::string_view words;  // "a path", for messages
    bool (*fits)(const std::string&) = nullptr;
};

/// Who reads a key; a key that the job does not read is reported as unused.
struct Reader {
    std::string_view words;
    bool (*reads)(const Job&);
};

struct Key {
    std::string_view name;  // dotted; the part before the last dot is the section
    Field (*field)(Job&);
    Reader reader;
    std::string_view meaning;
    Range range = {};
    std::vector<Choice> choices = {};
    Text text = {};
    // TOML literals of the only values that this version works with; empty: all. To make a value work, add it here or
    // remove the list.
    std::vector<std::string_view> available = {};
};

struct Section {
    std::string_view name;  // "" for the top of the file
    std::string_view about;
};

/// All keys in the order of the file, those of a section together.
[[nodiscard]] const std::vector<Key>& job_keys();

/// All sections in the order of the file.
[[nodiscard]] const std::vector<Section>& job_sections();

/// nullptr if there is no such key.
[[nodiscard]] const Key* find_key(std::string_view name);

/// "training.optimizer" of "training.optimizer.lr"; "" of "seed".
[[nodiscard]] std::string_view section_of(std::string_view name);

}  // namespace tessera
