#include "core/parameters.h"

#include <catch2/catch.hpp>
#include <set>

#include "core/random.h"
#include "test/core/model_memory.h"

using namespace tessera;

TEST_CASE("the units of a model hold each parameter once, groups without a gap") {
    const std::string family = GENERATE("llama", "qwen2", "qwen3", "biases");
    const ModelConfig config = testing::small_config(family);
    const std::vector<Unit> units = make_units(config);
    REQUIRE(units.size() == 4);
    std::set<std::string> names;
    for (const Unit& unit : units) {
        std::int64_t end = 0;
        for (const Parameter& parameter : unit.parameters) {
            CHECK(names.insert(parameter.name).second);
            const bool follows = parameter.name.find("k_proj") != std::string::npos ||
                                 parameter.name.find("v_proj") != std::string::npos ||
                                 parameter.name.find("up_proj") != std::string::npos;
            CHECK((follows ? parameter.offset == end : parameter.offset >= end && parameter.offset % 16 == 0));
            end = parameter.offset + parameter.elements();
        }
        CHECK(unit.elements == end);
    }
    CHECK(names.contains("lm_head.weight") == !config.tied);
    // Sizes by hand: hidden 12, intermediate 20, q 24, kv 12, vocabulary 29.
    const std::int64_t matrices = 24 * 12 + 2 * 12 * 12 + 12 * 24 + 3 * 20 * 12;
    const std::int64_t small = 2 * 12 + (config.qkv_bias ? 24 + 2 * 12 : 0) + (config.o_bias ? 12 : 0) +
                               (config.mlp_bias ? 2 * 20 + 12 : 0) + (config.qk_norm ? 2 * 6 : 0);
    CHECK(count_parameters(units) == 29 * 12 * (config.tied ? 1 : 2) + 2 * (matrices + small) + 12);
    CHECK_THROWS_AS(units[0].parameter("nothing"), Error);
}

TEST_CASE("small groups come last where they stay resident, whole groups at a time") {
    const ModelConfig config = testing::small_config("biases");
    // k has 144 elements and stays with q, which has 288; the biases and norms are small.
    const std::vector<Unit> units = make_units(config, {.largest = 150, .multiple = 48});
    const Unit& block = units[1];
    CHECK(block.resident_from == round_up(24 * 12 + 2 * 12 * 12 + 12 * 24 + 3 * 20 * 12, 48));
    for (const Parameter& parameter : block.parameters) {
        CAPTURE(parameter.name);
        CHECK((parameter.shape.size() == 1) == (parameter.offset >= block.resident_from));
    }
    CHECK(block.parameter("v_proj.weight").offset == block.parameter("q_proj.weight").offset + 24 * 12 + 12 * 12);
    CHECK(units.back().parameter("norm.weight").offset == units.back().resident_from);
    for (const Unit& unit : make_units(config, {.largest = 1'000'000, .multiple = 48})) {
        CHECK(unit.resident_from == 0);
    }
    for (const Unit& unit : make_units(config)) {
        CHECK(unit.resident_from == unit.elements);
    }
}

TEST_CASE("initial weights depend on seed, name and element, and are normal") {
    const NormalStream normal(42, "model.embed_tokens.weight");
    CHECK(normal(7) == NormalStream(42, "model.embed_tokens.weight")(7));
    CHECK(normal(7) != NormalStream(43, "model.embed_tokens.weight")(7));
    CHECK(normal(7) != NormalStream(42, "lm_head.weight")(7));
    constexpr std::int64_t kCount = 200000;
    double sum = 0;
    double squares = 0;
    double fourth = 0;
    double neighbours = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
        const double x = normal(i);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        neighbours += x * normal(i + 1);
    }
    // Five standard errors: of the mean 1/sqrt(n), of the square sqrt(2/n), of the fourth power sqrt(96/n).
    const double n = kCount;
    CHECK(std::abs(sum / n) < 5 / std::sqrt(n));
    CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2 / n));
    CHECK(std::abs(fourth / n - 3) < 5 * std::sqrt(96 / n));
    CHECK(std::abs(neighbours / n) < 5 / std::sqrt(n));
}
