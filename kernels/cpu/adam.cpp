#include "kernels/cpu/adam.h"

#include "kernels/adam_coefficients.h"
#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"

namespace tessera::cpu {

namespace {

/// The step's numbers in every element of a vector.
struct Coefficients {
    explicit Coefficients(const AdamCoefficients& k)
        : gradient_scale(broadcast(k.gradient_scale)),
          joined_decay(broadcast(k.joined_decay)),
          shrink(broadcast(k.shrink)),
          beta1(broadcast(k.beta1)),
          rest1(broadcast(k.rest1)),
          beta2(broadcast(k.beta2)),
          rest2(broadcast(k.rest2)),
          root(broadcast(k.root)),
          eps(broadcast(k.eps)),
          rate(broadcast(k.rate)) {}

    Vec gradient_scale;
    Vec joined_decay;
    Vec shrink;
    Vec beta1;
    Vec rest1;
    Vec beta2;
    Vec rest2;
    Vec root;
    Vec eps;
    Vec rate;
};

}  // namespace

void adam(Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight, const AdamStep& step, DType storage,
          int threads) {
    const bool publishes = !model_weight.empty();
    const Coefficients k{AdamCoefficients(step)};
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        S* published = publishes ? model_weight.as<S>() : nullptr;
        parallel_pieces(threads, 1, w.cols, [&](std::int64_t /*row*/, std::int64_t first, std::int64_t count) {
            float* weights = w.as<float>() + first;
            float* means = m.as<float>() + first;
            float* squares = v.as<float>() + first;
            const float* gradients = gradient.as<float>() + first;
            for_vectors(count, [&](std::int64_t i, auto lanes) {
                Vec weight = load(weights + i, lanes);
                const Vec g = fma(k.joined_decay, weight, load(gradients + i, lanes) * k.gradient_scale);
                const Vec mean = fma(k.beta1, load(means + i, lanes), k.rest1 * g);
                const Vec square = fma(k.beta2, load(squares + i, lanes), k.rest2 * g * g);
                const Vec denominator = fma(sqrt(square), k.root, k.eps);
                weight = fma(k.rate, mean / denominator, weight * k.shrink);
                store(means + i, mean, lanes);
                store(squares + i, square, lanes);
                store(weights + i, weight, lanes);
                if (published != nullptr) {
                    store(published + first + i, weight, lanes);
                }
            });
        });
    });
}

}  // namespace tessera::cpu
