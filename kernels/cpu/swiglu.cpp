#include "kernels/cpu/swiglu.h"

#include "kernels/cpu/support.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

namespace {

Vec sigmoid(Vec x) {
    const Vec one = broadcast(1.0F);
    return one / (one + exp(-x));
}

}  // namespace

void swiglu_forward(Matrix act, ConstMatrix gate_up, DType storage, int threads) {
    const std::int64_t inner = act.cols;
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_pieces(threads, act.rows, inner, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
            S* result = act.as<S>() + row * act.stride + first;
            const S* gate = gate_up.as<S>() + row * gate_up.stride + first;
            const S* up = gate + inner;
            for_vectors(count, [&](std::int64_t i, auto lanes) {
                const Vec g = load(gate + i, lanes);
                store(result + i, g * sigmoid(g) * load(up + i, lanes), lanes);
            });
        });
    });
}

void swiglu_backward(Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up, DType storage, int threads) {
    const std::int64_t inner = dact.cols;
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_pieces(threads, dact.rows, inner, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
            S* dgate = dgate_up.as<S>() + row * dgate_up.stride + first;
            S* dup = dgate + inner;
            const S* gradient = dact.as<S>() + row * dact.stride + first;
            const S* gate = gate_up.as<S>() + row * gate_up.stride + first;
            const S* up = gate + inner;
            const Vec one = broadcast(1.0F);
            for_vectors(count, [&](std::int64_t i, auto lanes) {
                const Vec d = load(gradient + i, lanes);
                const Vec g = load(gate + i, lanes);
                const Vec u = load(up + i, lanes);
                const Vec s = sigmoid(g);
                // silu'(g) = s (1 + g (1 - s))
                store(dgate + i, d * u * s * fma(g, one - s, one), lanes);
                store(dup + i, d * g * s, lanes);
            });
        });
    });
}

}  // namespace tessera::cpu
