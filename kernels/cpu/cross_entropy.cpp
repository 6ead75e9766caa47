#include "kernels/cpu/cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/support.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

namespace {

/// Logits that are read twice while they are in the first cache; their exponentials are summed in float, the runs in
/// double.
constexpr std::int64_t kRun = 1024;

/// Of z = logits / temperature, with d = z - max(z) over the row.
struct RowSums {
    float largest = -std::numeric_limits<float>::infinity();  // the largest logit
    double exponentials = 0;                                  // sum of e^d
    double weighted = 0;                                      // sum of d e^d; only where asked for

    [[nodiscard]] double log_prob(float target_logit, double inverse_temperature) const {
        const double distance = static_cast<double>(target_logit) - static_cast<double>(largest);
        return distance * inverse_temperature - std::log(exponentials);
    }
    [[nodiscard]] double entropy() const { return std::log(exponentials) - weighted / exponentials; }
};

float largest_of(const float* logits, std::int64_t count) {
    const float lowest = -std::numeric_limits<float>::infinity();
    Vec first = broadcast(lowest);
    Vec second = first;
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
        first = max(first, load(logits + i));
        second = max(second, load(logits + i + kLanes));
    }
    for (; i + kLanes <= count; i += kLanes) {
        first = max(first, load(logits + i));
    }
    if (i < count) {
        first = max(first, load(logits + i, Part{static_cast<int>(count - i)}, lowest));
    }
    return max_lane(max(first, second));
}

/// One pass over the row: a run at a time, rescaling the sums where a run has a larger logit than all before it.
template <bool kWeighted>
RowSums sum_row(const float* logits, std::int64_t count, double inverse_temperature) {
    // Beyond this distance e^d is 0, and so is d e^d, also for logits of minus infinity.
    const Vec farthest = broadcast(-100.0F);
    const Vec factor = broadcast(static_cast<float>(inverse_temperature));
    RowSums sums;
    for (std::int64_t begin = 0; begin < count; begin += kRun) {
        const std::int64_t length = std::min(kRun, count - begin);
        const float* run = logits + begin;
        const float largest = largest_of(run, length);
        if (largest > sums.largest) {
            if (sums.exponentials > 0) {
                const double step =
                    (static_cast<double>(sums.largest) - static_cast<double>(largest)) * inverse_temperature;
                const double scale = std::exp(step);
                sums.weighted = scale > 0 ? scale * (sums.weighted + step * sums.exponentials) : 0;
                sums.exponentials *= scale;
            }
            sums.largest = largest;
        }
        const Vec top = broadcast(sums.largest);
        Vec exponentials[2] = {};
        Vec weighted{};
        const auto visit = [&](std::int64_t i, auto lanes, Vec& into) {
            Vec logit;
            if constexpr (std::is_same_v<decltype(lanes), Part>) {
                logit = load(run + i, lanes, -std::numeric_limits<float>::infinity());
            } else {
                logit = load(run + i);
            }
            const Vec distance = (logit - top) * factor;
            const Vec exponential = exp(distance);
            into = into + exponential;
            if constexpr (kWeighted) {
                weighted = fma(max(farthest, distance), exponential, weighted);
            }
        };
        std::int64_t i = 0;
        for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
            visit(i, Full{}, exponentials[0]);
            visit(i + kLanes, Full{}, exponentials[1]);
        }
        for_vectors(length - i, [&](std::int64_t j, auto lanes) { visit(i + j, lanes, exponentials[0]); });
        sums.exponentials += sum_lanes(exponentials[0] + exponentials[1]);
        if constexpr (kWeighted) {
            sums.weighted += sum_lanes(weighted);
        }
    }
    return sums;
}

/// Writes weight * (softmax(logits) - onehot(target)); dlogits may be logits.
template <typename S>
void write_gradient(S* dlogits, const float* logits, std::int64_t count, std::int64_t target, const RowSums& sums,
                    double log_prob, double weight) {
    if (weight == 0) {
        std::fill_n(dlogits, count, S(0.0F));
        return;
    }
    const Vec top = broadcast(sums.largest);
    const Vec scale = broadcast(static_cast<float>(weight / sums.exponentials));
    for_vectors(count, [&](std::int64_t i, auto lanes) {
        store(dlogits + i, exp(load(logits + i, lanes) - top) * scale, lanes);
    });
    dlogits[target] = S(static_cast<float>(weight * std::expm1(log_prob)));
}

}  // namespace

void log_prob_forward(Matrix log_probs, Matrix entropy, ConstMatrix logits, std::span<const std::int32_t> targets,
                      double temperature, int threads) {
    const bool with_entropy = !entropy.empty();
    const double inverse_temperature = 1 / temperature;
    parallel_for(threads, logits.rows, logits.elements(), [&](std::int64_t r) {
        const float* row = logits.as<float>() + r * logits.stride;
        const RowSums sums = with_entropy ? sum_row<true>(row, logits.cols, inverse_temperature)
                                          : sum_row<false>(row, logits.cols, inverse_temperature);
        const float target_logit = row[targets[static_cast<std::size_t>(r)]];
        log_probs.as<float>()[r] = static_cast<float>(sums.log_prob(target_logit, inverse_temperature));
        if (with_entropy) {
            entropy.as<float>()[r] = static_cast<float>(sums.entropy());
        }
    });
}

void cross_entropy(Matrix log_probs, Matrix dlogits, ConstMatrix logits, std::span<const std::int32_t> targets,
                   ConstMatrix weights, DType storage, int threads) {
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_for(threads, logits.rows, logits.elements(), [&](std::int64_t r) {
            const float* row = logits.as<float>() + r * logits.stride;
            const std::int64_t target = targets[static_cast<std::size_t>(r)];
            const RowSums sums = sum_row<false>(row, logits.cols, 1.0);
            const double log_prob = sums.log_prob(row[target], 1.0);
            log_probs.as<float>()[r] = static_cast<float>(log_prob);
            write_gradient<S>(dlogits.as<S>() + r * dlogits.stride, row, logits.cols, target, sums, log_prob,
                              static_cast<double>(weights.as<float>()[r]));
        });
    });
}

}  // namespace tessera::cpu
