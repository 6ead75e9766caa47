#include "kernels/cpu/rope.h"

#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"

namespace tessera::cpu {

namespace {

/// Turns the pairs (first[i], second[i]) by the angle i; `sign` -1 turns them back.
template <typename S>
void turn(S* first, S* second, const float* cosines, const float* sines, std::int64_t half, float sign) {
    const Vec direction = broadcast(sign);
    for_vectors(half, [&](std::int64_t i, auto lanes) {
        const Vec cosine = load(cosines + i, lanes);
        const Vec sine = load(sines + i, lanes) * direction;
        const Vec a = load(first + i, lanes);
        const Vec b = load(second + i, lanes);
        store(first + i, fma(a, cosine, -(b * sine)), lanes);
        store(second + i, fma(b, cosine, a * sine), lanes);
    });
}

}  // namespace

void rope(Matrix x, const RopeTable& table, std::span<const std::int32_t> positions, std::int64_t head_dim,
          bool inverse, DType storage, int threads) {
    const std::int64_t half = head_dim / 2;
    const float sign = inverse ? -1.0F : 1.0F;
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_for(threads, x.rows, x.elements(), [&](std::int64_t t) {
            const std::int64_t position = positions[static_cast<std::size_t>(t)];
            const float* cosines = table.cos.as<float>() + position * table.cos.stride;
            const float* sines = table.sin.as<float>() + position * table.sin.stride;
            S* row = x.as<S>() + t * x.stride;
            for (std::int64_t head = 0; head < x.cols; head += head_dim) {
                turn(row + head, row + head + half, cosines, sines, half, sign);
            }
        });
    });
}

}  // namespace tessera::cpu
