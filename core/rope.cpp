#include "core/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace tessera {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

/// Long waves are stretched by `factor`, short ones stay, those between are blended.
double llama3_frequency(const RopeConfig& rope, double frequency) {
    const double turns = static_cast<double>(rope.original_max_position_embeddings) * frequency / kTurn;
    if (turns < rope.low_freq_factor) {
        return frequency / rope.factor;
    }
    if (turns > rope.high_freq_factor) {
        return frequency;
    }
    const double share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    return (1 - share) * frequency / rope.factor + share * frequency;
}

/// YaRN: dimensions that turn more than beta_fast times over the original length stay, those that turn less than
/// beta_slow times are stretched by `factor`, and between the two the share of stretching rises linearly.
class YarnRamp {
  public:
    YarnRamp(const RopeConfig& rope, std::int64_t head_dim) {
        low_ = dimension_that_turns(rope, rope.beta_fast, head_dim);
        high_ = dimension_that_turns(rope, rope.beta_slow, head_dim);
        if (rope.truncate) {
            low_ = std::floor(low_);
            high_ = std::ceil(high_);
        }
        low_ = std::max(low_, 0.0);
        high_ = std::min(high_, static_cast<double>(head_dim - 1));
        if (low_ == high_) {
            high_ += 0.001;  // a step, without division by zero
        }
    }
    [[nodiscard]] double stretched_share(std::int64_t pair) const {
        return std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
    }

  private:
    static double dimension_that_turns(const RopeConfig& rope, double turns, std::int64_t head_dim) {
        const double length = static_cast<double>(rope.original_max_position_embeddings);
        return static_cast<double>(head_dim) * std::log(length / (turns * kTurn)) / (2 * std::log(rope.theta));
    }

    double low_ = 0;
    double high_ = 0;
};

}  // namespace

std::vector<double> inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
    if (head_dim <= 0 || head_dim % 2 != 0) {
        fail(ExitCode::internal, "rope on a head of {} dimensions", head_dim);
    }
    std::vector<double> frequencies(static_cast<std::size_t>(head_dim / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    }
    switch (rope.type) {
        case RopeType::standard:
            break;
        case RopeType::linear:
            for (double& frequency : frequencies) {
                frequency /= rope.factor;
            }
            break;
        case RopeType::llama3:
            for (double& frequency : frequencies) {
                frequency = llama3_frequency(rope, frequency);
            }
            break;
        case RopeType::yarn: {
            const YarnRamp ramp(rope, head_dim);
            for (std::size_t i = 0; i < frequencies.size(); ++i) {
                const double share = ramp.stretched_share(static_cast<std::int64_t>(i));
                frequencies[i] = share * frequencies[i] / rope.factor + (1 - share) * frequencies[i];
            }
            break;
        }
    }
    return frequencies;
}

template <typename T>
void fill_rope_tables(const RopeConfig& rope, std::int64_t head_dim, std::int64_t positions, T* cos, T* sin) {
    const std::vector<double> frequencies = inverse_frequencies(rope, head_dim);
    // Only yarn has a factor other than 1 (RopeConfig).
    const double scale = rope.type == RopeType::yarn ? rope.attention_factor : 1.0;
    std::int64_t at = 0;
    for (std::int64_t position = 0; position < positions; ++position) {
        for (const double frequency : frequencies) {
            const double angle = static_cast<double>(position) * frequency;
            cos[at] = static_cast<T>(scale * std::cos(angle));
            sin[at] = static_cast<T>(scale * std::sin(angle));
            ++at;
        }
    }
}

template void fill_rope_tables(const RopeConfig&, std::int64_t, std::int64_t, float*, float*);
template void fill_rope_tables(const RopeConfig&, std::int64_t, std::int64_t, double*, double*);

}  // namespace tessera
