// Run with one rank, and by ctest under mpirun with three: the end of a step against double arithmetic over all ranks.
#include "zero/sharded_optimizer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "kernels/reference/reference_ops.h"
#include "test/zero/engine.h"

using namespace tessera;
using tessera::testing::world;

namespace {

/// An engine whose weights and gradients are known numbers.
struct Fixture : testing::Engine {
    explicit Fixture(const testing::EngineOptions& chosen)
        : Engine(testing::small_config("qwen3"), chosen, world(), make_reference_ops(chosen.storage)) {
        states.load(
            [](const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) {
                for (std::int64_t i = 0; i < count; ++i) {
                    const double value = weight(parameter, first + i);
                    convert(dtype, static_cast<std::byte*>(to) + i * size_of(dtype), DType::f64, &value, 1);
                }
            },
            *ops);
    }
    static double weight(const Parameter& parameter, std::int64_t element) {
        return static_cast<double>(static_cast<float>(NormalStream(1, parameter.name)(element)));
    }
    static double gradient(const Parameter& parameter, std::int64_t element, std::int64_t rank, std::int64_t step) {
        return static_cast<double>(static_cast<float>(NormalStream(10 + rank + 100 * step, parameter.name)(element)));
    }
    /// The gradients of a step, as the backward pass of one micro-batch gives them; `spoil` may change them.
    void set_gradients(std::int64_t step, const std::function<void(const Parameter&, float*)>& spoil = {}) {
        gradients.start(1);
        for (const UnitUse& use : Transformer::uses(config, Pass::backward).gradients) {
            const auto view = gradients.begin(use.unit);
            for (const Parameter& parameter : units[static_cast<std::size_t>(use.unit)].parameters) {
                auto* values = view.view(parameter).as<float>();
                for (std::int64_t i = 0; i < parameter.elements(); ++i) {
                    values[i] = static_cast<float>(gradient(parameter, i, world().rank(), step));
                }
                if (spoil) {
                    spoil(parameter, values);
                }
            }
            gradients.done(use.unit);
        }
        gradients.finish();
    }
};

}  // namespace

TEST_CASE("two steps at every stage and bucket size agree with double arithmetic over all ranks") {
    const DType storage = GENERATE(DType::f32, DType::bf16);
    const std::int64_t stage = GENERATE(0, 1, 2, 3);
    const std::int64_t bucket = GENERATE(1, 500, 1'000'000);
    const std::int64_t gather = GENERATE(1, 5000);
    CAPTURE(name_of(storage), stage, bucket, gather);
    Fixture fixture({.storage = storage, .stage = stage, .bucket = bucket, .call = gather, .resident = 12});
    const std::int64_t ranks = world().size();

    std::map<std::string, std::vector<double>> w;
    std::map<std::string, std::vector<double>> m;
    std::map<std::string, std::vector<double>> v;
    for (std::int64_t step = 1; step <= 2; ++step) {
        double squares = 0;
        std::map<std::string, std::vector<double>> sums;
        for (const Unit& unit : fixture.units) {
            for (const Parameter& parameter : unit.parameters) {
                auto& sum = sums[parameter.name];
                for (std::int64_t i = 0; i < parameter.elements(); ++i) {
                    double total = 0;
                    for (std::int64_t r = 0; r < ranks; ++r) {
                        total += Fixture::gradient(parameter, i, r, step);
                    }
                    sum.push_back(total);
                    squares += total * total;
                    if (step == 1) {
                        w[parameter.name].push_back(Fixture::weight(parameter, i));
                        m[parameter.name].push_back(0);
                        v[parameter.name].push_back(0);
                    }
                }
            }
        }
        fixture.set_gradients(step);
        const double norm = fixture.optimizer.norm();
        // Each of up to three terms of a sum is rounded to f32: relative 2^-23 at most.
        CHECK(norm == Approx(std::sqrt(squares)).epsilon(3e-7));
        CHECK(fixture.optimizer.first_non_finite().empty());
        fixture.optimizer.step(0.01, norm, step);
        fixture.source->publish();

        const double scale = std::min(1.0, 0.5 / (std::sqrt(squares) + 1e-6));
        for (auto& [name, weights] : w) {
            const double decay = name.find("norm") != std::string::npos ? 0 : 0.1;
            for (std::size_t i = 0; i < weights.size(); ++i) {
                const double g = scale * sums[name][i];
                m[name][i] = 0.9 * m[name][i] + 0.1 * g;
                v[name][i] = 0.999 * v[name][i] + 0.001 * g * g;
                const double t = static_cast<double>(step);
                weights[i] -= 0.01 * decay * weights[i];
                weights[i] -= 0.01 * (m[name][i] / (1 - std::pow(0.9, t))) /
                              (std::sqrt(v[name][i] / (1 - std::pow(0.999, t))) + 1e-8);
            }
        }
    }
    // Parameters on every rank. An update is of order lr = 0.01 with a relative error of some 2^-22 of its own and the
    // weight's rounding 2^-24 (f32) or 2^-9 (bf16), twice.
    const double tolerance = storage == DType::f32 ? 1e-6 : 5e-3;
    for (const auto& [name, bytes] : fixture.parameters()) {
        CAPTURE(name);
        const std::vector<double>& expected = w[name];
        REQUIRE(static_cast<std::int64_t>(bytes.size()) ==
                static_cast<std::int64_t>(expected.size()) * size_of(storage));
        for (std::size_t i = 0; i < expected.size(); ++i) {
            double value = 0;
            convert(DType::f64, &value, storage, bytes.data() + static_cast<std::int64_t>(i) * size_of(storage), 1);
            REQUIRE(value == Approx(expected[i]).epsilon(tolerance).margin(tolerance / 10));
        }
    }
}

TEST_CASE("a gradient that is not finite is found and named") {
    const std::int64_t stage = GENERATE(0, 1, 2, 3);
    Fixture fixture({.stage = stage, .bucket = 1000, .call = 1000});
    const std::string name = fixture.units[1].parameter("down_proj.weight").name;
    fixture.set_gradients(1, [&](const Parameter& parameter, float* values) {
        if (parameter.name == name) {
            values[3] = std::numeric_limits<float>::quiet_NaN();
        }
    });
    CHECK(!std::isfinite(fixture.optimizer.norm()));
    std::int64_t found = fixture.optimizer.first_non_finite() == name ? 1 : 0;
    world().all_reduce_sum({&found, 1});
    CHECK(found == (stage == 0 ? world().size() : 1));  // by its owner; at stage 0 by all
}
