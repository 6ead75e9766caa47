#include "kernels/cuda/cross_entropy.h"

#include <limits>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda {

namespace {

constexpr int kThreads = 512;
/// Neighbouring logits that a thread takes at once.
constexpr int kGroup = 4;
/// Groups that a thread reads before it looks at any, kThreads groups apart.
constexpr int kAhead = 2;
constexpr std::int64_t kStep = kThreads * kGroup * kAhead;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Of z = logits / temperature, with d = z - max(z), over the logits that were added.
struct SoftmaxSums {
    float largest = kLowest;  // the largest logit, not divided by the temperature
    float exponentials = 0;   // sum of e^d
    float weighted = 0;       // sum of d e^d; only where asked for

    /// What is subtracted: e^d is to be 0, not NaN, as long as all logits are minus infinity.
    SIMT_DEVICE float top() const { return largest == kLowest ? 0 : largest; }

    /// Makes the sums those to a maximum that is not smaller.
    template <bool kWeighted>
    SIMT_DEVICE void raise(float new_largest, float inverse_temperature) {
        const float step = (largest - new_largest) * inverse_temperature;
        const float factor = simt::exp(step);
        if constexpr (kWeighted) {
            weighted = factor > 0 ? factor * (weighted + step * exponentials) : 0;
        }
        exponentials *= factor;
        largest = new_largest;
    }

    /// Adds logits. One that is a NaN makes the sum a NaN.
    template <bool kWeighted, int N>
    SIMT_DEVICE void add(const float (&logits)[N], float inverse_temperature) {
        float highest = logits[0];
        for (int i = 1; i < N; ++i) {
            highest = simt::max(highest, logits[i]);
        }
        if (highest > largest) {
            raise<kWeighted>(highest, inverse_temperature);
        }
        float sum = 0;
        for (int i = 0; i < N; ++i) {
            const float difference = (logits[i] - top()) * inverse_temperature;
            const float exponential = simt::exp(difference);
            sum += exponential;
            if constexpr (kWeighted) {
                weighted += exponential > 0 ? exponential * difference : 0;
            }
        }
        exponentials += sum;
    }
};

/// One pass of the block over a row of `count` logits, and the sums of all threads.
template <bool kWeighted>
SIMT_DEVICE SoftmaxSums sum_row(const float* row, std::int64_t count, float inverse_temperature, bool vectors) {
    SIMT_SHARED(float, shared, 3 * kThreads / simt::kWarp);
    SoftmaxSums sums;
    for (std::int64_t base = simt::thread() * kGroup; base < count; base += kStep) {
        float logits[kAhead][kGroup];
        for (int i = 0; i < kAhead; ++i) {
            const std::int64_t col = base + i * kThreads * kGroup;
            load_some(logits[i], row + col, count - col, vectors, kLowest);
        }
        for (int i = 0; i < kAhead; ++i) {
            sums.add<kWeighted>(logits[i], inverse_temperature);
        }
    }
    const float largest = reduce_block<Maximum, kThreads>(sums.largest, shared);
    sums.raise<kWeighted>(largest, inverse_temperature);
    sums.exponentials = reduce_block<Sum, kThreads>(sums.exponentials, shared + kThreads / simt::kWarp);
    if constexpr (kWeighted) {
        sums.weighted = reduce_block<Sum, kThreads>(sums.weighted, shared + 2 * kThreads / simt::kWarp);
    }
    return sums;
}

template <bool kWithEntropy>
struct LogProb {
    static constexpr int kThreads = cuda::kThreads;
    static constexpr int kMinBlocks = 2;
    float* log_probs;
    float* entropy;
    Rows<const float> logits;
    const std::int32_t* targets;
    std::int64_t cols;
    float inverse_temperature;
    bool vectors;

    SIMT_DEVICE void operator()() const {
        const std::int64_t r = simt::block_x();
        const float* row = logits[r];
        const SoftmaxSums sums = sum_row<kWithEntropy>(row, cols, inverse_temperature, vectors);
        if (simt::thread() == 0) {
            const float log_sum = simt::log(sums.exponentials);
            log_probs[r] = (row[targets[r]] - sums.largest) * inverse_temperature - log_sum;
            if constexpr (kWithEntropy) {
                entropy[r] = log_sum - sums.weighted / sums.exponentials;
            }
        }
    }
};

template <typename S>
struct CrossEntropy {
    static constexpr int kThreads = cuda::kThreads;
    static constexpr int kMinBlocks = 2;
    float* log_probs;
    Rows<S> dlogits;  // may lie where the logits do
    Rows<const float> logits;
    const std::int32_t* targets;
    const float* weights;
    std::int64_t cols;
    bool vectors;

    SIMT_DEVICE void operator()() const {
        const std::int64_t r = simt::block_x();
        const float* row = logits[r];
        const std::int64_t target = targets[r];
        const float weight = weights[r];
        const float target_logit = row[target];  // before any thread can write
        const SoftmaxSums sums = sum_row<false>(row, cols, 1, vectors);
        if (simt::thread() == 0) {
            log_probs[r] = target_logit - sums.largest - simt::log(sums.exponentials);
        }
        // From the end: what was read last is the likeliest to lie in a cache still.
        const std::int64_t last = (cols - 1) / kStep * kStep;
        for (std::int64_t base = last; base >= 0; base -= kStep) {
            float values[kAhead][kGroup];
            for (int i = 0; i < kAhead; ++i) {
                const std::int64_t col = base + (i * kThreads + simt::thread()) * kGroup;
                load_some(values[i], row + col, cols - col, vectors, kLowest);
            }
            for (int i = 0; i < kAhead; ++i) {
                const std::int64_t col = base + (i * kThreads + simt::thread()) * kGroup;
                make_gradient(values[i], col, target, weight, sums);
                store_some(dlogits[r] + col, values[i], cols - col, vectors);
            }
        }
    }

    /// Logits from column `col` on become their gradients.
    SIMT_DEVICE static void make_gradient(float (&values)[kGroup], std::int64_t col, std::int64_t target, float weight,
                                          const SoftmaxSums& sums) {
        for (int i = 0; i < kGroup; ++i) {
            const float probability = simt::exp(values[i] - sums.top()) / sums.exponentials;
            const float gradient = weight * (col + i == target ? probability - 1 : probability);
            values[i] = weight == 0 ? 0 : gradient;  // not 0 times something that may be negative, infinite or NaN
        }
    }
};

}  // namespace

void log_prob_forward(simt::Stream stream, Matrix log_probs, Matrix entropy, ConstMatrix logits,
                      const std::int32_t* targets, double temperature) {
    if (logits.empty()) {
        return;
    }
    const auto run = [&](auto kernel) { simt::launch(stream, {.x = logits.rows}, kernel); };
    const Rows<const float> rows = rows_of<float>(logits);
    const auto factor = static_cast<float>(1 / temperature);
    const bool vectors = aligned<kGroup>(logits);
    if (entropy.empty()) {
        run(LogProb<false>{log_probs.as<float>(), nullptr, rows, targets, logits.cols, factor, vectors});
    } else {
        run(LogProb<true>{log_probs.as<float>(), entropy.as<float>(), rows, targets, logits.cols, factor, vectors});
    }
}

void cross_entropy(simt::Stream stream, Matrix log_probs, Matrix dlogits, ConstMatrix logits,
                   const std::int32_t* targets, ConstMatrix weights) {
    if (logits.empty()) {
        return;
    }
    with_storage(dlogits.dtype, [&](auto type) {
        using S = decltype(type);
        const CrossEntropy<S> kernel{log_probs.as<float>(),
                                     rows_of<S>(dlogits),
                                     rows_of<float>(logits),
                                     targets,
                                     weights.as<float>(),
                                     logits.cols,
                                     all_aligned<kGroup>(dlogits, logits)};
        simt::launch(stream, {.x = logits.rows}, kernel);
    });
}

}  // namespace tessera::cuda
