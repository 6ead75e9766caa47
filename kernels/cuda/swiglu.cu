#include "kernels/cuda/swiglu.h"

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda {

namespace {

/// 1 + e^-x, with which sigmoid(x) = 1 / (1 + e^-x). The cheap exponential is right to 2^-17 for |x| < 88, far below
/// what 16 bits hold; where they are all that is stored, the precise one would cost more than the memory does.
template <typename S>
SIMT_DEVICE float sigmoid_denominator(float x) {
    if constexpr (sizeof(S) == 2) {
        constexpr float kLog2E = 1.44269504F;
        return 1 + simt::exp2_approx(-kLog2E * x);
    } else {
        return 1 + simt::exp(-x);
    }
}

template <typename S>
struct SwigluForward {
    static constexpr int kGroup = 8;
    Rows<S> act;
    Rows<const S> gates;
    Rows<const S> ups;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t row, std::int64_t col) const {
        float gate[N];
        float up[N];
        load_floats(gate, gates[row] + col);
        load_floats(up, ups[row] + col);
        for (int i = 0; i < N; ++i) {
            up[i] *= gate[i] / sigmoid_denominator<S>(gate[i]);
        }
        store_floats(act[row] + col, up);
    }
};

template <typename S>
struct SwigluBackward {
    static constexpr int kGroup = 8;
    Rows<S> dgates;
    Rows<S> dups;
    Rows<const S> dact;
    Rows<const S> gates;
    Rows<const S> ups;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t row, std::int64_t col) const {
        float gradient[N];
        float gate[N];
        float up[N];
        load_floats(gradient, dact[row] + col);
        load_floats(gate, gates[row] + col);
        load_floats(up, ups[row] + col);
        for (int i = 0; i < N; ++i) {
            const float s = 1 / sigmoid_denominator<S>(gate[i]);
            const float dgate = gradient[i] * up[i] * (s * (1 + gate[i] * (1 - s)));
            up[i] = gradient[i] * (gate[i] * s);
            gate[i] = dgate;
        }
        store_floats(dgates[row] + col, gate);
        store_floats(dups[row] + col, up);
    }
};

}  // namespace

void swiglu_forward(simt::Stream stream, Matrix act, ConstMatrix gate_up) {
    const std::int64_t width = act.cols;
    const ConstMatrix gates = gate_up.col_range(0, width);
    const ConstMatrix ups = gate_up.col_range(width, width);
    with_storage(act.dtype, [&](auto type) {
        using S = decltype(type);
        const SwigluForward<S> body{rows_of<S>(act), rows_of<S>(gates), rows_of<S>(ups)};
        for_elements(stream, act.rows, width, all_aligned<8>(act, gates, ups), body);
    });
}

void swiglu_backward(simt::Stream stream, Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) {
    const std::int64_t width = dact.cols;
    const Matrix dgates = dgate_up.col_range(0, width);
    const Matrix dups = dgate_up.col_range(width, width);
    const ConstMatrix gates = gate_up.col_range(0, width);
    const ConstMatrix ups = gate_up.col_range(width, width);
    with_storage(dact.dtype, [&](auto type) {
        using S = decltype(type);
        const SwigluBackward<S> body{rows_of<S>(dgates), rows_of<S>(dups), rows_of<S>(dact), rows_of<S>(gates),
                                     rows_of<S>(ups)};
        for_elements(stream, dact.rows, width, all_aligned<8>(dgates, dups, dact, gates, ups), body);
    });
}

}  // namespace tessera::cuda
