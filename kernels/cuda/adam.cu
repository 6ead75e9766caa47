#include "kernels/cuda/adam.h"

#include <type_traits>

#include "kernels/adam_coefficients.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda {

namespace {

/// Every product that is added to something is a part of an fma: no compiler can choose otherwise for one place in a
/// range than for another.
template <typename S>
struct Adam {
    static constexpr int kGroup = 4;
    float* w;
    float* m;
    float* v;
    const float* gradient;
    S* model_weight;  // or null
    AdamCoefficients k;
    StochasticRounding rounding;
    bool stochastic;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t /*row*/, std::int64_t first) const {
        float weights[N];
        float means[N];
        float squares[N];
        float gradients[N];
        load_floats(weights, w + first);
        load_floats(means, m + first);
        load_floats(squares, v + first);
        load_floats(gradients, gradient + first);
        for (int i = 0; i < N; ++i) {
            const float g = simt::fma(k.joined_decay, weights[i], gradients[i] * k.gradient_scale);
            means[i] = simt::fma(k.beta1, means[i], k.rest1 * g);
            squares[i] = simt::fma(k.beta2, squares[i], k.rest2 * g * g);
            const float denominator = simt::fma(simt::sqrt(squares[i]), k.root, k.eps);
            weights[i] = simt::fma(k.rate, means[i] / denominator, weights[i] * k.shrink);
        }
        store_floats(w + first, weights);
        store_floats(m + first, means);
        store_floats(v + first, squares);
        if (model_weight != nullptr) {
            publish(weights, first);
        }
    }

    template <int N>
    SIMT_DEVICE void publish(const float (&weights)[N], std::int64_t first) const {
        if constexpr (std::is_same_v<S, bfloat16>) {
            if (stochastic) {
                S rounded[N];
                for (int i = 0; i < N; ++i) {
                    rounded[i].bits = rounding.round(simt::bits_of(weights[i]), first + i);
                }
                return store_elements(model_weight + first, rounded);
            }
        }
        store_floats(model_weight + first, weights);
    }
};

}  // namespace

void adam(simt::Stream stream, Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight,
          const AdamStep& step) {
    with_storage(model_weight.empty() ? DType::f32 : model_weight.dtype, [&](auto type) {
        using S = decltype(type);
        if (step.rounding.has_value() && !model_weight.empty() && !std::is_same_v<S, bfloat16>) {
            fail(ExitCode::internal, "only bf16 is rounded stochastically, not {}", name_of(model_weight.dtype));
        }
        const Adam<S> body{w.as<float>(),
                           m.as<float>(),
                           v.as<float>(),
                           gradient.as<float>(),
                           model_weight.empty() ? nullptr : model_weight.as<S>(),
                           AdamCoefficients(step),
                           step.rounding.value_or(StochasticRounding()),
                           step.rounding.has_value()};
        for_elements(stream, 1, w.cols, all_aligned<Adam<S>::kGroup>(w, m, v, gradient, model_weight), body);
    });
}

}  // namespace tessera::cuda
