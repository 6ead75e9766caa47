#include "kernels/cuda/adam.h"

#include <type_traits>

#include "kernels/adam_coefficients.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda {

namespace {

/// The finaliser of SplitMix64.
SIMT_DEVICE std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

SIMT_DEVICE bfloat16 round_stochastically(float x, const StochasticRounding& rounding, std::int64_t i) {
    constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15ULL;
    constexpr std::uint32_t kExponent = 0x7f800000u;
    const std::uint32_t word = simt::bits_of(x);
    if ((word & kExponent) == kExponent) {
        return simt::from_float<bfloat16>(x);
    }
    const std::uint64_t state = mix(mix(rounding.seed + kGamma) + static_cast<std::uint64_t>(rounding.step) * kGamma);
    const auto number = static_cast<std::uint64_t>(rounding.first + i);
    const auto random = static_cast<std::uint32_t>(mix(state + (number + 1) * kGamma) >> 48);
    bfloat16 result;
    result.bits = static_cast<std::uint16_t>((word + random) >> 16);
    return result;
}

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
                    rounded[i] = round_stochastically(weights[i], rounding, first + i);
                }
                return store_elements(model_weight + first, rounded);
            }
        }
        store_floats(model_weight + first, weights);
    }
};

}  // namespace

void adam(simt::Stream stream, Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight,
          const AdamStep& step, const std::optional<StochasticRounding>& rounding) {
    with_storage(model_weight.empty() ? DType::f32 : model_weight.dtype, [&](auto type) {
        using S = decltype(type);
        if (rounding.has_value() && !model_weight.empty() && !std::is_same_v<S, bfloat16>) {
            fail(ExitCode::internal, "only bf16 is rounded stochastically, not {}", name_of(model_weight.dtype));
        }
        const Adam<S> body{w.as<float>(),
                           m.as<float>(),
                           v.as<float>(),
                           gradient.as<float>(),
                           model_weight.empty() ? nullptr : model_weight.as<S>(),
                           AdamCoefficients(step),
                           rounding.value_or(StochasticRounding()),
                           rounding.has_value()};
        for_elements(stream, 1, w.cols, all_aligned<Adam<S>::kGroup>(w, m, v, gradient, model_weight), body);
    });
}

}  // namespace tessera::cuda
