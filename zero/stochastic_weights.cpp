#include "zero/stochastic_weights.h"

#include "core/random.h"

namespace tessera {

StochasticRounding rounding_of(std::int64_t seed, const Parameter& parameter, std::int64_t first, std::int64_t update) {
    return {stream_key(seed, parameter.name), update, first};
}

ReadParameter rounded_at_random(ReadParameter read, std::int64_t seed, std::int64_t update) {
    return [read = std::move(read), seed, update](const Parameter& parameter, std::int64_t first, std::int64_t count,
                                                  DType dtype, void* to) {
        if (dtype != DType::bf16) {
            return read(parameter, first, count, dtype, to);
        }
        std::vector<float> masters(static_cast<std::size_t>(count));
        read(parameter, first, count, DType::f32, masters.data());
        const StochasticRounding rounding = rounding_of(seed, parameter, first, update);
        auto* weights = static_cast<bfloat16*>(to);
        for (std::int64_t i = 0; i < count; ++i) {
            weights[i].bits = rounding.round(std::bit_cast<std::uint32_t>(masters[static_cast<std::size_t>(i)]), i);
        }
    };
}

}  // namespace tessera
