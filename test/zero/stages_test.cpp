// The same training at every stage, with and without overlap, with buckets, prefetch and resident parameters of every
// size: the same bits. One rank here, and by ctest under mpirun with 2, 3 and 4.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "test/zero/training_steps.h"

using namespace tessera;
using tessera::testing::Engine;
using tessera::testing::EngineOptions;
using tessera::testing::load_initial_weights;
using tessera::testing::TrainingSteps;
using tessera::testing::world;

namespace {

struct Outcome {
    std::vector<double> losses;
    std::vector<double> norms;
    std::map<std::string, std::vector<std::byte>> weights;

    bool operator==(const Outcome&) const = default;
};

struct Training {
    std::string family = "llama";
    DType storage = DType::f32;
    bool checkpointing = false;
    std::int64_t accumulation = 1;
};

constexpr std::int64_t kTokens = 24;

Outcome train(const Training& training, const EngineOptions& options) {
    const ModelConfig config = testing::small_config(training.family);
    Engine engine(config, options);
    load_initial_weights(engine.states, *engine.ops);
    TrainingSteps steps(engine, {.tokens = kTokens,
                                 .longest_segment = kTokens,
                                 .positions = kTokens,
                                 .logits_rows = 7,
                                 .training = true,
                                 .checkpointing = training.checkpointing});
    Outcome outcome;
    for (std::int64_t step = 1; step <= 3; ++step) {
        std::vector<MicroBatch> batches;
        for (std::int64_t m = 0; m < training.accumulation; ++m) {
            const auto seed = static_cast<unsigned>(100 * step + 10 * m + world().rank());
            batches.push_back(testing::make_batch({9, kTokens - 9}, config.vocab_size, seed));
        }
        const std::int64_t targets = world().size() * training.accumulation * (kTokens - 2);
        const TrainingSteps::Result result = steps.step(batches, targets, 0.01, step);
        outcome.losses.push_back(result.loss);
        outcome.norms.push_back(result.norm);
    }
    // Scored with the parameters as they are now; a rank without a micro-batch takes part all the same.
    if (world().rank() == 0) {
        const MicroBatch batch = testing::make_batch({kTokens}, config.vocab_size, 9);
        outcome.losses.push_back(steps.transformer.loss(batch, *engine.source));
    } else {
        engine.source->idle();
    }
    outcome.weights = engine.parameters();
    return outcome;
}

EngineOptions simplest(DType storage) {
    return {.storage = storage, .stage = 0};
}

}  // namespace

TEST_CASE("every stage and every way of exchange gives the same bits without accumulation") {
    const std::string family = GENERATE(as<std::string>(), "llama", "qwen2", "qwen3");  // qwen2: tied, biases
    const DType storage = GENERATE(DType::f32, DType::bf16);
    const bool checkpointing = GENERATE(false, true);
    // The emulator takes minutes: two sizes of buckets, and blocks are not computed again.
    const auto buckets =
        testing::kEmulated ? std::vector<std::int64_t>{333, 1'000'000} : std::vector<std::int64_t>{1, 333, 1'000'000};
    if (testing::kEmulated && checkpointing) {
        return;
    }
    const Training training{family, storage, checkpointing, 1};
    CAPTURE(family, name_of(storage), checkpointing);
    const Outcome expected = train(training, simplest(storage));
    REQUIRE(expected.norms.front() > 0);
    for (const bool overlap : {false, true}) {
        for (const std::int64_t bucket : buckets) {
            for (const ZeroStage stage : {0, 1, 2, 3}) {
                const bool gathers = stage == 3;
                const auto all = std::optional<std::int64_t>(1'000'000);
                for (const auto& prefetch :
                     gathers ? std::vector{std::optional<std::int64_t>(0), {}, all} : std::vector{all}) {
                    for (const std::int64_t resident :
                         gathers ? std::vector<std::int64_t>{0, 120, 1'000'000} : std::vector<std::int64_t>{0}) {
                        CAPTURE(overlap, bucket, stage, prefetch.value_or(-1), resident);
                        const EngineOptions options{.storage = storage,
                                                    .stage = stage,
                                                    .bucket = bucket,
                                                    .call = 1000,
                                                    .overlap = overlap,
                                                    .gather = {.prefetch = prefetch},
                                                    .resident = resident};
                        CHECK(train(training, options) == expected);
                    }
                }
            }
        }
    }
}

TEST_CASE("gradients that travel in bf16 give the same bits at every stage, and the result of f32 to their rounding") {
    const Training training{"qwen3", DType::f32, true, 1};
    const auto run = [&](ZeroStage stage, DType exchange, std::int64_t bucket, bool overlap) {
        return train(training, {.stage = stage, .exchange = exchange, .bucket = bucket, .overlap = overlap});
    };
    const Outcome expected = run(0, DType::bf16, 1'000'000, false);
    for (const bool overlap : {false, true}) {
        for (const std::int64_t bucket : {1, 333, 1'000'000}) {
            for (const ZeroStage stage : {0, 1, 2, 3}) {
                CAPTURE(overlap, bucket, stage);
                CHECK(run(stage, DType::bf16, bucket, overlap) == expected);
            }
        }
    }
    const Outcome exact = run(0, DType::f32, 1'000'000, false);
    CHECK((exact == expected) == (world().size() == 1));  // alone, nothing travels
    // Each rank's part is rounded once, by at most 2^-9 of it. Parts partly cancel: their norms add up to more than
    // that of the sum, for four independent ones to twice as much; twice that again is allowed.
    CHECK(expected.norms[0] == Approx(exact.norms[0]).epsilon(0x1p-7));
    CHECK(expected.losses[0] == exact.losses[0]);
}

TEST_CASE("with accumulation stages 0 and 1, and stages 2 and 3, give the same bits; the two pairs agree to rounding") {
    const DType exchange = GENERATE(DType::f32, DType::bf16);
    CAPTURE(name_of(exchange));
    const Training training{"llama", DType::f32, true, 3};
    const auto run = [&](ZeroStage stage, bool overlap) {
        return train(training,
                     {.stage = stage, .exchange = exchange, .bucket = 333, .overlap = overlap, .resident = 12});
    };
    const Outcome whole = run(0, false);
    CHECK(run(1, true) == whole);
    const Outcome sharded = run(2, false);
    CHECK(run(2, true) == sharded);
    CHECK(run(3, false) == sharded);
    CHECK(run(3, true) == sharded);
    // Gradients differ by roundings of 2^-24, or of 2^-9 in what travels in bf16; three steps of lr 0.01 with Adam's
    // division may enlarge them for elements near 0, each of which matters little to the loss.
    const double allowed = exchange == DType::f32 ? 1e-4 : 2e-2;
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        CHECK(sharded.losses[i] == Approx(whole.losses[i]).epsilon(allowed));
    }
    for (std::size_t i = 0; i < whole.norms.size(); ++i) {
        CHECK(sharded.norms[i] == Approx(whole.norms[i]).epsilon(allowed));
    }
}
