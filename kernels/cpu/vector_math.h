// Exponentials of vectors, for softmax and SiLU.
#pragma once

#include "kernels/cpu/vector.h"

namespace tessera::cpu {

/// 2^n times `x` for n in [-126, 127], where `shifted` is 1.5 * 2^23 + n: its low bits are n.
[[nodiscard]] inline Vec scale_by_power(Vec x, Vec shifted) {
    const WordVec exponent = (reinterpret_cast<WordVec>(shifted) - 0x4b400000u + 127u) << 23;
    return x * reinterpret_cast<Vec>(exponent);
}

/// e^x within 2 units in the last place for x up to 88; beyond that e^88, and 0 below -87 (where the result would be
/// subnormal). NaN stays NaN.
[[nodiscard]] inline Vec exp(Vec x) {
    const Vec shift = broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec clamped = max(broadcast(-87.0F), min(broadcast(88.0F), x));
    const Vec shifted = fma(clamped, broadcast(1.44269504F), shift);
    const Vec n = shifted - shift;
    // ln 2 in two parts: n times the first one is exact.
    Vec r = fma(n, broadcast(-0x1.62e4p-1F), clamped);
    r = fma(n, broadcast(-0x1.7f7d1cp-20F), r);
    Vec p = broadcast(0x1.6ae720p-10F);
    p = fma(p, r, broadcast(0x1.126792p-7F));
    p = fma(p, r, broadcast(0x1.555822p-5F));
    p = fma(p, r, broadcast(0x1.55541ap-3F));
    p = fma(p, r, broadcast(0x1.fffffcp-2F));
    p = fma(p, r, broadcast(1.0F));
    p = fma(p, r, broadcast(1.0F));
    const Vec zero{};
    return x < broadcast(-87.0F) ? zero : scale_by_power(p, shifted);
}

/// 2^x within 2 units in the last place for x up to 127; 0 below -126. NaN stays NaN.
[[nodiscard]] inline Vec exp2(Vec x) {
    const Vec shift = broadcast(12582912.0F);
    const Vec clamped = max(broadcast(-126.0F), min(broadcast(127.0F), x));
    const Vec shifted = clamped + shift;
    const Vec r = clamped - (shifted - shift);
    Vec p = broadcast(0x1.41fbbap-13F);
    p = fma(p, r, broadcast(0x1.5f3e58p-10F));
    p = fma(p, r, broadcast(0x1.3b2d4cp-7F));
    p = fma(p, r, broadcast(0x1.c6aee8p-5F));
    p = fma(p, r, broadcast(0x1.ebfbdcp-3F));
    p = fma(p, r, broadcast(0x1.62e430p-1F));
    p = fma(p, r, broadcast(1.0F));
    const Vec zero{};
    return x < broadcast(-126.0F) ? zero : scale_by_power(p, shifted);
}

}  // namespace tessera::cpu
