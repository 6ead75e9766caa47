#include "core/flops.h"

#include <algorithm>

namespace tessera {

double flops_of_step(const ModelConfig& config, const StepShape& shape) {
    const auto hidden = static_cast<double>(config.hidden_size);
    const auto length = static_cast<double>(shape.length);
    const double tokens = static_cast<double>(shape.rows) * length;
    const double block_weights = hidden * static_cast<double>(config.qkv_size() + config.q_size()) +
                                 3 * hidden * static_cast<double>(config.intermediate_size);
    const double down = 2 * hidden * static_cast<double>(config.intermediate_size) * tokens;
    double blocks = 0;  // forward
    double again = 0;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        const std::int64_t window = config.window.empty() ? 0 : config.window[static_cast<std::size_t>(layer)];
        const double visible = window > 0 ? std::min(static_cast<double>(window), length) : length;
        // Of the keys that a query sees the first `visible` queries have 1, 2, ..., and all later ones `visible`.
        const double pairs = visible * (visible + 1) / 2 + (length - visible) * visible;
        const double block = 2 * block_weights * tokens +
                             4 * static_cast<double>(shape.rows) * pairs * static_cast<double>(config.q_size());
        blocks += block;
        again += layer + 1 < config.num_layers ? block - down : 0;
    }
    const double head = 2 * hidden * static_cast<double>(config.vocab_size) * tokens;
    return 3 * (blocks + head) + (shape.recompute ? again : 0);
}

}  // namespace tessera
