#include "core/rope.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

using namespace tessera;

namespace {

struct Case {
    const char* name;
    RopeConfig rope;
    std::vector<double> frequencies;
};

RopeConfig make(RopeType type, double theta, double factor = 1.0, std::int64_t original = 0) {
    RopeConfig rope;
    rope.type = type;
    rope.theta = theta;
    rope.factor = factor;
    rope.original_max_position_embeddings = original;
    return rope;
}

// The numbers are those of transformers 5.24 with its float32 replaced by float64.
std::vector<Case> cases() {
    std::vector<Case> list;
    list.push_back({"default",
                    make(RopeType::standard, 1e4),
                    {1.0, 0.2154434690031884, 0.0464158883361278, 0.01, 0.0021544346900318843, 0.0004641588833612777}});
    list.push_back({"linear", make(RopeType::linear, 1e4, 2.5), {0.4, 0.04, 0.004, 0.0004}});
    list.push_back({"llama3 as in Llama 3.1",
                    make(RopeType::llama3, 5e5, 8, 8192),
                    {1.0, 0.3350316475065263, 0.11224620483093732, 0.03760603093086393, 0.012599210498948734,
                     0.004221134250744316, 0.0005248461609929547, 5.922578746599143e-05, 1.9842513149602502e-05,
                     6.647869871181236e-06, 2.227246795350847e-06, 7.461981632500261e-07}});
    RopeConfig llama3 = make(RopeType::llama3, 2e4, 32, 64);
    llama3.low_freq_factor = 1.5;
    llama3.high_freq_factor = 5.0;
    list.push_back({"llama3 with other bounds",
                    llama3,
                    {1.0, 0.030173893149722786, 0.0011512598433251209, 0.0002209708691207961, 4.2412775259295426e-05,
                     8.140636421229549e-06}});
    list.push_back({"yarn as in Qwen2.5",
                    make(RopeType::yarn, 1e6, 4, 32768),
                    {1.0, 0.31622776601683794, 0.10000000000000002, 0.03162277660168379, 0.010000000000000004,
                     0.0025693505988868075, 0.000625, 0.00013834964763236653, 2.5000000000000015e-05,
                     7.905694150420949e-06, 2.4999999999999985e-06, 7.905694150420952e-07}});
    RopeConfig smooth = make(RopeType::yarn, 1e4, 4, 256);
    smooth.truncate = false;
    list.push_back({"yarn without truncation",
                    smooth,
                    {1.0, 0.25397231355700634, 0.05539863663460478, 0.00963994285097862, 0.0025, 0.0007905694150420947,
                     0.00025, 7.905694150420948e-05}});
    RopeConfig betas = make(RopeType::yarn, 1e4, 40, 4096);
    betas.beta_fast = 16;
    betas.beta_slow = 2;
    list.push_back({"yarn with other betas",
                    betas,
                    {1.0, 0.31622776601683794, 0.1, 0.03162277660168379, 0.006750000000000002, 0.001106797181058933,
                     2.5e-05, 7.905694150420947e-06}});
    list.push_back({"yarn with an empty ramp", make(RopeType::yarn, 1e4, 4, 4), {1.0, 0.025, 0.0025, 0.00025}});
    return list;
}

}  // namespace

TEST_CASE("inverse frequencies are those of transformers") {
    for (const Case& expected : cases()) {
        INFO(expected.name);
        const std::vector<double> got =
            inverse_frequencies(expected.rope, static_cast<std::int64_t>(2 * expected.frequencies.size()));
        REQUIRE(got.size() == expected.frequencies.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
            // Both sides are double: a few roundings apart.
            CHECK(got[i] == Approx(expected.frequencies[i]).epsilon(1e-13).margin(0));
        }
    }
}

TEST_CASE("rope tables hold cos and sin of position times frequency, times yarn's attention factor") {
    RopeConfig rope = make(RopeType::yarn, 1e4, 4, 256);
    rope.attention_factor = 1.138629436111989;
    const std::int64_t positions = 700;
    const std::int64_t head_dim = 16;
    const std::vector<double> frequencies = inverse_frequencies(rope, head_dim);
    std::vector<double> cos(positions * head_dim / 2);
    std::vector<double> sin(cos.size());
    std::vector<float> cos32(cos.size());
    std::vector<float> sin32(cos.size());
    fill_rope_tables(rope, head_dim, positions, cos.data(), sin.data());
    fill_rope_tables(rope, head_dim, positions, cos32.data(), sin32.data());
    for (std::size_t i = 0; i < cos.size(); ++i) {
        const double angle = static_cast<double>(i / 8) * frequencies[i % 8];
        REQUIRE(cos[i] == rope.attention_factor * std::cos(angle));
        REQUIRE(sin[i] == rope.attention_factor * std::sin(angle));
        // One rounding from double, also far from position 0.
        REQUIRE(cos32[i] == static_cast<float>(cos[i]));
        REQUIRE(sin32[i] == static_cast<float>(sin[i]));
    }
}

TEST_CASE("only yarn has an attention factor") {
    RopeConfig rope = make(RopeType::linear, 1e4, 2);
    rope.attention_factor = 3.0;
    std::vector<float> cos(2);
    std::vector<float> sin(2);
    fill_rope_tables(rope, 4, 1, cos.data(), sin.data());
    CHECK(cos[0] == 1.0F);
    CHECK(cos[1] == 1.0F);
}
