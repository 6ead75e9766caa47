#include "kernels/cuda/rope.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda {

namespace {

/// Columns count the pairs of all heads of a token.
template <typename S>
struct Rope {
    static constexpr int kGroup = 8;
    Rows<S> x;
    Rows<const float> cosines;
    Rows<const float> sines;
    const std::int32_t* positions;
    int half;  // pairs of a head
    float direction;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t token, std::int64_t pair) const {
        const std::int64_t head = pair / half;
        const std::int64_t first = pair - head * half;
        S* low = x[token] + head * 2 * half + first;
        S* high = low + half;
        const std::int64_t position = positions[token];
        float a[N];
        float b[N];
        float c[N];
        float s[N];
        load_floats(a, low);
        load_floats(b, high);
        load_floats(c, cosines[position] + first);
        load_floats(s, sines[position] + first);
        for (int i = 0; i < N; ++i) {
            const float turn = direction * s[i];
            const float turned = a[i] * c[i] - b[i] * turn;
            b[i] = b[i] * c[i] + a[i] * turn;
            a[i] = turned;
        }
        store_floats(low, a);
        store_floats(high, b);
    }
};

}  // namespace

void rope(simt::Stream stream, Matrix x, const RopeTable& table, const std::int32_t* positions, std::int64_t head_dim,
          bool inverse) {
    const std::int64_t half = head_dim / 2;
    // A group must lie within a head, and its other half must be aligned too.
    const bool vectors = half % 8 == 0 && all_aligned<8>(x, table.cos, table.sin);
    with_storage(x.dtype, [&](auto type) {
        using S = decltype(type);
        const Rope<S> body{rows_of<S>(x), rows_of<float>(table.cos), rows_of<float>(table.sin),
                           positions,     static_cast<int>(half),    inverse ? -1.0F : 1.0F};
        for_elements(stream, x.rows, x.cols / 2, vectors, body);
    });
}

}  // namespace tessera::cuda
