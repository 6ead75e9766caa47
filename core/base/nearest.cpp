#include "core/base/nearest.h"

#include <algorithm>
#include <vector>

namespace tessera {
namespace {

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::size_t gap(std::size_t a, std::size_t b) {
    return a > b ? a - b : b - a;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
    // Row i holds the edits from the first i characters of a to each prefix of b; a swap looks back two rows.
    std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) {
        row[j] = j;
    }
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::swap(before, above);
        std::swap(above, row);
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const bool same = lower(a[i - 1]) == lower(b[j - 1]);
            row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
                row[j] = std::min(row[j], before[j - 2] + 1);
            }
        }
    }
    return row[b.size()];
}

std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates) {
    std::size_t limit = std::clamp<std::size_t>(name.size() / 3, 1, 3) + 1;
    std::string_view best;
    for (const std::string_view candidate : candidates) {
        // The difference of the lengths bounds the distance from below: an endless name costs nothing.
        if (gap(name.size(), candidate.size()) >= limit) {
            continue;
        }
        const std::size_t distance = edit_distance(name, candidate);
        if (distance < limit) {
            limit = distance;
            best = candidate;
        }
    }
    return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
    const std::string_view found = nearest(name, candidates);
    return found.empty() ? std::string() : "; did you mean " + std::string(found) + "?";
}

}  // namespace tessera
