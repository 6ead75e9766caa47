#include "core/random.h"

#include <cmath>
#include <numbers>

#include "core/base/mix64.h"

namespace tessera {

std::uint64_t stream_key(std::int64_t seed, std::string_view name) {
    std::uint64_t key = mix64(static_cast<std::uint64_t>(seed));
    for (const char letter : name) {
        key = mix64(key ^ static_cast<unsigned char>(letter));
    }
    return key;
}

double NormalStream::operator()(std::int64_t element) const {
    // Box and Muller (1958): two uniform numbers make one normal one. 53 bits each; the first is never 0.
    const std::uint64_t first = mix64(key_ ^ mix64(2 * static_cast<std::uint64_t>(element)));
    const std::uint64_t second = mix64(key_ ^ mix64(2 * static_cast<std::uint64_t>(element) + 1));
    const double u = (static_cast<double>(first >> 11) + 1) * 0x1p-53;
    const double v = static_cast<double>(second >> 11) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace tessera
