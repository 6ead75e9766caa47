#include "io/row_order.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/base/checked.h"
#include "core/base/error.h"

namespace tessera {

namespace {

/// A number from 64 well mixed bits that depends on all arguments.
std::uint64_t hash(std::uint64_t key, std::uint64_t a, std::uint64_t b) {
    const std::array<std::uint64_t, 2> words = {a, b};
    return XXH64(words.data(), sizeof words, key);
}

/// The upper 64 bits of a product: maps 64 random bits to [0, range).
std::uint64_t scale(std::uint64_t bits, std::uint64_t range) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(bits) * range) >> 64);
}

}  // namespace

RowOrder::RowOrder(std::int64_t rows, std::uint64_t seed, bool shuffle) : rows_(rows), seed_(seed), shuffle_(shuffle) {
    if (rows < 1) {
        fail(ExitCode::internal, "an order of {} rows was asked for", rows);
    }
}

// The shuffle is "swap or not" (Hoang, Morris and Rogaway, 2012): each round pairs x with pivot - x (mod rows) and, by
// a coin that both of a pair share, exchanges them or not. Each round is its own inverse, so the whole is a permutation
// of any number of rows; some six rounds per bit of their number make it close to uniform.
std::int64_t RowOrder::row_at(std::int64_t stream_position) const {
    const std::int64_t position = stream_position % rows_;
    if (!shuffle_ || rows_ == 1) {
        return position;
    }
    const auto rows = static_cast<std::uint64_t>(rows_);
    const std::uint64_t key = hash(seed_, static_cast<std::uint64_t>(epoch_of(stream_position)), 0);
    auto x = static_cast<std::uint64_t>(position);
    const std::uint64_t rounds = 6 * static_cast<std::uint64_t>(std::bit_width(rows)) + 16;
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t number = 2 * round;
        const std::uint64_t pivot = scale(hash(key, number, 0), rows);
        const std::uint64_t partner = pivot >= x ? pivot - x : pivot + (rows - x);
        const std::uint64_t coin = hash(key, number + 1, std::max(x, partner));
        x = (coin & 1) != 0 ? partner : x;
    }
    return static_cast<std::int64_t>(x);
}

std::int64_t first_position(const BatchShape& shape, std::int64_t step, std::int64_t micro_step, std::int64_t rank) {
    const std::int64_t start = checked_mul(step, shape.batch(), "position in the data");
    return checked_add(start, (micro_step * shape.ranks + rank) * shape.micro, "position in the data");
}

std::int64_t steps_of_epochs(std::int64_t rows, std::int64_t epochs, std::int64_t batch) {
    return ceil_div(checked_mul(rows, epochs, "rows of all epochs"), batch);
}

}  // namespace tessera
