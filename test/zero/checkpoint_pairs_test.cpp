// A checkpoint of any number of ranks at any stage goes on at any other: the same states to the bit, the same
// trajectory. Run by ctest under mpirun with four ranks, of which each part takes the first few; with one rank the
// stages are tried alone.
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <memory>

#include "test/core/first_ranks.h"
#include "test/io/temporary_directory.h"
#include "test/zero/element_states.h"
#include "test/zero/training_steps.h"
#include "zero/sharded_checkpoint.h"

using namespace tessera;
using tessera::testing::ElementStates;
using tessera::testing::Engine;
using tessera::testing::EngineOptions;
using tessera::testing::FirstRanks;
using tessera::testing::TrainingSteps;
using tessera::testing::world;

namespace {

constexpr std::int64_t kMicroBatches = 12;  // of all ranks in a step: for 1, 2, 3 and 4 ranks the same number each
constexpr std::int64_t kTokens = 12;
constexpr std::int64_t kDocuments = 2;
constexpr std::int64_t kSteps = 2;  // before the checkpoint, and again after it

struct Layout {
    std::int64_t ranks;
    ZeroStage stage;
    DType storage = DType::f32;

    /// Other buckets and resident parameters for each, so that ranges of a source cross those of a target.
    [[nodiscard]] EngineOptions options() const {
        const bool odd = (ranks + stage) % 2 == 1;
        return {.storage = storage, .stage = stage, .bucket = odd ? 333 : 1'000'000, .resident = odd ? 12 : 120};
    }

    /// Stages 0 and 1, and stages 2 and 3, add gradients in the same order.
    [[nodiscard]] bool same_bits(const Layout& other) const {
        return ranks == other.ranks && storage == other.storage && (stage < 2) == (other.stage < 2);
    }
};

/// Ranks at a layout in training.
struct Run {
    Run(const ModelConfig& config, const Layout& layout, const Communicator& communicator)
        : engine(config, layout.options(), communicator),
          steps(engine, {.tokens = kTokens,
                         .longest_segment = kTokens,
                         .positions = kTokens,
                         .logits_rows = kTokens,
                         .training = true,
                         .checkpointing = false}) {}

    /// The global batches are the same at any number of ranks; they and the learning rate follow from `progress`.
    std::array<TrainingSteps::Result, kSteps> train() {
        std::array<TrainingSteps::Result, kSteps> results{};
        const Communicator& communicator = engine.queue.communicator();
        const std::int64_t own = kMicroBatches / communicator.size();
        for (TrainingSteps::Result& result : results) {
            std::vector<MicroBatch> batches;
            for (std::int64_t i = communicator.rank() * own; i < (communicator.rank() + 1) * own; ++i) {
                const auto seed = static_cast<unsigned>(progress.rows + i * kDocuments);
                batches.push_back(testing::make_batch({5, kTokens - 5}, engine.config.vocab_size, seed));
            }
            result = steps.step(batches, kMicroBatches * (kTokens - kDocuments),
                                0.02 / static_cast<double>(progress.updates + 1), progress.updates + 1);
            ++progress.step;
            ++progress.updates;
            progress.rows += kMicroBatches * kDocuments;
            progress.tokens += kMicroBatches * kTokens;
        }
        return results;
    }

    Engine engine;
    TrainingSteps steps;
    TrainingProgress progress;
};

/// A run that saved a checkpoint and went on without a stop; known to every rank of the world.
struct Source {
    Layout layout;
    std::string checkpoint;
    TrainingProgress progress;
    ElementStates saved;
    ElementStates last;
    std::array<TrainingSteps::Result, kSteps> results;
};

/// What the ranks of the world share in a test.
struct Place {
    std::unique_ptr<TemporaryDirectory> of_rank_0 =
        world().rank() == 0 ? std::make_unique<TemporaryDirectory>() : nullptr;
    std::string directory = world().broadcast(of_rank_0 ? of_rank_0->path() : "");
    FirstRanks first_ranks;
};

/// Rank 0's value on every rank.
double of_rank_0(double value) {
    std::int64_t bits = world().rank() == 0 ? std::bit_cast<std::int64_t>(value) : 0;
    world().all_reduce_sum({&bits, 1});
    return std::bit_cast<double>(bits);
}

Source train_and_save(const Place& place, const ModelConfig& config, const Layout& layout) {
    const std::string root =
        fmt::format("{}/{}-{}-{}", place.directory, layout.ranks, layout.stage, name_of(layout.storage));
    const TrainingProgress progress{.step = kSteps,
                                    .updates = kSteps,
                                    .rows = kSteps * kMicroBatches * kDocuments,
                                    .tokens = kSteps * kMicroBatches * kTokens};
    Source source{layout, root + "/" + checkpoint_name(kSteps), progress, ElementStates(config), ElementStates(config),
                  {}};
    place.first_ranks.run(layout.ranks, [&](const Communicator& communicator) {
        Run run(config, layout, communicator);
        testing::load_initial_weights(run.engine.states, *run.engine.ops);
        (void)run.train();
        CHECK(run.progress == progress);
        save_checkpoint(root, run.engine.states, *run.engine.ops, communicator, run.progress,
                        {"model", std::string(name_of(layout.storage)), "job"});
        source.saved.set(run.engine.states);
        source.results = run.train();
        source.last.set(run.engine.states);
    });
    source.saved.exchange();
    source.last.exchange();
    for (TrainingSteps::Result& result : source.results) {
        result = {of_rank_0(result.loss), of_rank_0(result.norm)};
    }
    return source;
}

void check_bits(Run& run, const ElementStates& expected) {
    for (const ElementStates::Difference& difference : expected.differences(run.engine.states)) {
        CHECK(difference.bits == 0);
    }
    const auto parameters = run.engine.parameters();
    for (const Unit& unit : run.engine.units) {
        for (const Parameter& parameter : unit.parameters) {
            CAPTURE(parameter.name);
            const bool same = parameters.at(parameter.name) == expected.masters(parameter, run.engine.options.storage);
            CHECK(same);  // without printing all bytes
        }
    }
}

/// How near a trajectory at another layout stays. At two layouts an element's gradient is the same terms added in fp32
/// in another order: each addition may round by 2^-24 of its sum.
struct Tolerance {
    double first_loss;  // relative; before any update
    double first_norm;
    double loss;  // relative; after one update
    double norm;
    double weights;  // absolute, of any element, in the end
    double moments;  // of any element, to the root mean square of all
};

Tolerance tolerance(const Layout& from, const Layout& to) {
    if (from.storage != to.storage) {
        // Parameters, activations and their gradients round to 2^-9 at one of the two: what the source computed is
        // near, no more. Gradients that are all rounding may have either sign, which turns the two updates, of lr
        // 0.0067 and 0.005, around: 0.023.
        return {1e-3, 1e-2, 1e-3, 1e-2, 0.03, 0.5};
    }
    // The first loss is computed with the same bits of weights: 12 sums are added in double in another order. The first
    // norm has the gradients' roundings, of either sign and over thousands of elements: one rounding to fp32 is left.
    if (to.storage == DType::bf16) {
        // A difference of 2^-24 in a master may turn the rounding of its weight, by 2^-8 of it, some 1e-3. One weight
        // of thousands so moved moves the other gradients by less than 1e-2 of them, and updates of lr 0.005 by as
        // little.
        return {1e-14, 1e-6, 1e-3, 1e-3, 1e-4, 1e-2};
    }
    // The moments before are the same bits and hold two earlier gradients: where the new gradient is near 0, the update
    // depends on its rounding relative to them, not on its sign. Weights near 1 round by 2^-24 = 6e-8 themselves,
    // twice. Reached: loss 1e-8, norm 8e-8, weights 1.2e-7, first moments 2e-6, second moments 6e-6.
    return {1e-14, 1e-6, 1e-6, 1e-6, 2e-6, 1e-4};
}

void check_near(const Source& source, const Layout& layout, const std::array<TrainingSteps::Result, kSteps>& results,
                const ElementStates::Differences& differences) {
    const Tolerance allowed = tolerance(source.layout, layout);
    CHECK(results[0].loss == Approx(source.results[0].loss).epsilon(allowed.first_loss));
    CHECK(results[0].norm == Approx(source.results[0].norm).epsilon(allowed.first_norm));
    CHECK(results[1].loss == Approx(source.results[1].loss).epsilon(allowed.loss));
    CHECK(results[1].norm == Approx(source.results[1].norm).epsilon(allowed.norm));
    CHECK(differences[0].largest <= allowed.weights);
    for (const std::size_t moment : {1U, 2U}) {
        CHECK(differences[moment].largest <= allowed.moments * source.last.root_mean_square(moment));
    }
}

void check_pair(const Place& place, const Source& source, const ModelConfig& config, const Layout& layout) {
    CAPTURE(source.layout.ranks, source.layout.stage, name_of(source.layout.storage));
    CAPTURE(layout.ranks, layout.stage, name_of(layout.storage));
    place.first_ranks.run(layout.ranks, [&](const Communicator& communicator) {
        Run run(config, layout, communicator);
        communicator.agree([&] {
            ShardedCheckpoint checkpoint(open_checkpoint(source.checkpoint));
            checkpoint.load(run.engine.states, *run.engine.ops);
            run.progress = checkpoint.progress();
        });
        CHECK(run.progress == source.progress);
        check_bits(run, source.saved);
        const auto results = run.train();
        if (source.layout.same_bits(layout)) {
            for (std::size_t step = 0; step < results.size(); ++step) {
                CHECK(results[step].loss == source.results[step].loss);
                CHECK(results[step].norm == source.results[step].norm);
            }
            check_bits(run, source.last);
        } else {
            check_near(source, layout, results, source.last.differences(run.engine.states));
        }
    });
}

}  // namespace

TEST_CASE("saved at any number of ranks and any stage, a run goes on at any other") {
    const Place place;
    const ModelConfig config = testing::small_config("llama");
    for (std::int64_t ranks = 1; ranks <= world().size(); ++ranks) {
        for (const ZeroStage stage : {0, 1, 2, 3}) {
            const Source source = train_and_save(place, config, {ranks, stage});
            CHECK(source.results[0].norm > 0);
            for (std::int64_t target_ranks = 1; target_ranks <= world().size(); ++target_ranks) {
                for (const ZeroStage target_stage : {0, 1, 2, 3}) {
                    check_pair(place, source, config, {target_ranks, target_stage});
                }
            }
        }
    }
}

TEST_CASE("saved at any precision, a run goes on at any other") {
    const Place place;
    const ModelConfig config = testing::small_config("qwen2");  // tied, biases
    const auto stages = {std::pair<ZeroStage, ZeroStage>(0, 3), {3, 1}, {2, 2}};
    for (const auto& [stage, target_stage] : stages) {
        for (std::int64_t ranks = 1; ranks <= world().size(); ranks *= 2) {
            for (const DType storage : {DType::f32, DType::bf16}) {
                const Source source = train_and_save(place, config, {ranks, stage, storage});
                for (std::int64_t target_ranks = 1; target_ranks <= world().size(); target_ranks *= 2) {
                    check_pair(place, source, config, {target_ranks, target_stage, DType::bf16});
                    if (storage == DType::bf16) {
                        check_pair(place, source, config, {target_ranks, target_stage, DType::f32});
                    }
                }
            }
        }
    }
}
