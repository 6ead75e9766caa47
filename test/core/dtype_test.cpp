#include "core/base/dtype.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace tessera;

TEST_CASE("bfloat16 rounds to nearest, ties to even") {
    CHECK(static_cast<float>(bfloat16(1.0F)) == 1.0F);
    CHECK(static_cast<float>(bfloat16(1.0F + 0x1p-8F)) == 1.0F);              // a tie: to even
    CHECK(static_cast<float>(bfloat16(1.0F + 0x1.8p-7F)) == 1.0F + 0x1p-6F);  // a tie: to even, upwards
    CHECK(static_cast<float>(bfloat16(1.0F + 0x1.01p-8F)) == 1.0F + 0x1p-7F);
    CHECK(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
    CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7f800001u)))));
    CHECK(std::isinf(static_cast<float>(bfloat16(std::numeric_limits<float>::max()))));
}

TEST_CASE("every float16 survives a round trip, and float16 rounds like a search for the nearest") {
    for (unsigned bits = 0; bits < 0x10000u; ++bits) {
        float16 half;
        half.bits = static_cast<std::uint16_t>(bits);
        const float value = static_cast<float>(half);
        if (std::isnan(value)) {
            CHECK(std::isnan(static_cast<float>(float16(value))));
        } else {
            REQUIRE(float16(value).bits == half.bits);
        }
    }
    // Between two neighbours the nearer one wins, and a tie goes to the even one.
    for (unsigned bits = 0; bits < 0x7bffu; ++bits) {
        float16 low;
        float16 high;
        low.bits = static_cast<std::uint16_t>(bits);
        high.bits = static_cast<std::uint16_t>(bits + 1);
        const float middle = (static_cast<float>(low) + static_cast<float>(high)) / 2;
        REQUIRE(float16(middle).bits == (bits % 2 == 0 ? bits : bits + 1));
        REQUIRE(float16(std::nextafter(middle, 0.0F)).bits == bits);
        REQUIRE(float16(std::nextafter(middle, 1e6F)).bits == bits + 1);
    }
    CHECK(std::isinf(static_cast<float>(float16(65520.0F))));
    CHECK(static_cast<float>(float16(65519.0F)) == 65504.0F);
}
