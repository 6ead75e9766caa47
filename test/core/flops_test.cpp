// Against a count over every matrix and every visible pair of a small model.
#include "core/flops.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "core/parameters.h"
#include "test/core/model_memory.h"

using namespace tessera;

TEST_CASE("operations of a step are those of its matrices and of the pairs that see each other") {
    const std::string family = GENERATE(as<std::string>(), "llama", "mistral", "qwen2", "qwen3");
    const std::int64_t length = GENERATE(1, 5, 40);
    const bool recompute = GENERATE(false, true);
    CAPTURE(family, length, recompute);
    ModelConfig config = testing::small_config(family);
    constexpr std::int64_t kRows = 3;

    std::int64_t in_blocks = 0;  // multiplications and additions of a forward pass
    std::int64_t again = 0;      // of them those that backward repeats
    const std::string last = fmt::format("layers.{}.", config.num_layers - 1);
    std::int64_t in_head = 2 * config.vocab_size * config.hidden_size * kRows * length;
    for (const Unit& unit : make_units(config)) {
        for (const Parameter& parameter : unit.parameters) {
            if (parameter.name.find("layers.") != std::string::npos && parameter.name.ends_with("proj.weight")) {
                const std::int64_t product = 2 * parameter.elements() * kRows * length;
                const bool repeated = parameter.name.find(last) == std::string::npos &&
                                      parameter.name.find("down_proj") == std::string::npos;
                in_blocks += product;
                again += repeated ? product : 0;
            }
        }
    }
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        const std::int64_t window = config.window[static_cast<std::size_t>(layer)];
        for (std::int64_t query = 0; query < length; ++query) {
            for (std::int64_t key = 0; key <= query; ++key) {
                const bool visible = window == 0 || query - key < window;
                // q.k and the sum of v, both over head_dim, for every head
                const std::int64_t pair = visible ? kRows * 2 * 2 * config.num_heads * config.head_dim : 0;
                in_blocks += pair;
                again += layer + 1 < config.num_layers ? pair : 0;
            }
        }
    }
    const std::int64_t expected = 3 * (in_blocks + in_head) + (recompute ? again : 0);
    CHECK(flops_of_step(config, {kRows, length, recompute}) == static_cast<double>(expected));
}
