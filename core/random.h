// Random numbers as functions of what they are for: no state, so that layout and order do not matter.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// Of a stream of random numbers.
[[nodiscard]] std::uint64_t stream_key(std::int64_t seed, std::string_view name);

/// Standard normal numbers, a function of (seed, name, element) only.
class NormalStream {
  public:
    NormalStream(std::int64_t seed, std::string_view name) : key_(stream_key(seed, name)) {}
    [[nodiscard]] double operator()(std::int64_t element) const;

  private:
    std::uint64_t key_;
};

}  // namespace tessera
