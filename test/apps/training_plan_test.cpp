#include "apps/training_plan.h"

#include <array>
#include <catch2/catch.hpp>

#include "kernels/cpu/cpu_device.h"
#include "test/io/expect_error.h"
#include "test/io/temporary_directory.h"

using namespace tessera;

namespace {

/// Llama-2-7B as a directory that has no weights: 6,738,415,616 parameters.
constexpr const char* kConfig = R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "tie_word_embeddings": false})";

struct Planned {
    ModelSetup model;
    TrainingPlan plan;
};

Planned plan(const std::string& directory, std::int64_t stage, bool bf16, std::int64_t ranks) {
    Job job;
    job.model_name = directory;
    job.zero_optimization.stage = stage;
    job.bf16.enabled = bf16;
    const std::unique_ptr<Device> device = make_cpu_device();
    ModelSetup model = open_model(job, *device, false);
    TrainingPlan training = plan_training(job, model, ranks);
    return {std::move(model), std::move(training)};
}

/// Bytes a parameter as the ZeRO paper counts them: what each rank has whole, and what it shares out over N ranks.
struct Formula {
    double whole;
    double shared;
};
constexpr std::array<Formula, 4> kF32 = {{{16, 0}, {8, 8}, {4, 12}, {0, 16}}};    // weights are their own masters
constexpr std::array<Formula, 4> kBf16 = {{{18, 0}, {6, 12}, {2, 16}, {0, 18}}};  // gradients and masters in fp32

}  // namespace

TEST_CASE("the plan's model states follow the formulas of ZeRO, padding aside") {
    const TemporaryDirectory directory;
    directory.write("config.json", kConfig);
    for (const bool bf16 : {false, true}) {
        for (std::int64_t stage = 0; stage < 4; ++stage) {
            for (const std::int64_t ranks : {1, 2, 3, 4, 8, 64}) {
                INFO((bf16 ? "bf16" : "f32") << ", stage " << stage << ", " << ranks << " ranks");
                const Planned planned = plan(directory.path(), stage, bf16, ranks);
                const auto parameters = static_cast<double>(count_parameters(planned.plan.units));
                REQUIRE(parameters == 6'738'415'616);
                const Formula& formula = (bf16 ? kBf16 : kF32)[static_cast<std::size_t>(stage)];
                const double each = formula.whole + formula.shared / static_cast<double>(ranks);
                // What a plan may have more: a unit's groups (six here, at most) are rounded up to 16 elements, its two
                // parts (shared out and resident) to 16 elements a rank; each of six vectors to 64 bytes; and at stage
                // 3 every rank keeps the norms whole besides its shard of them: two a block and the last, 4096 each.
                const auto units = static_cast<double>(planned.plan.units.size());
                const double padding = units * (6 * 16 + 2 * 16 * static_cast<double>(ranks)) * each + 6 * 64;
                const double resident = stage == 3 ? (2 * 32 + 1) * 4096 * (bf16 ? 2 : 4) + padding : 0;
                const double more = static_cast<double>(total_bytes(planned.plan.model_states)) - parameters * each;
                CHECK(more >= 0);
                CHECK(more <= padding + resident);
                CHECK(padding + resident < 0.001 * parameters * each);  // so the comparison means something
            }
        }
    }
}

TEST_CASE("beside the model states a stage needs buffers of the size of units, not of the model") {
    const TemporaryDirectory directory;
    directory.write("config.json", kConfig);
    const auto bytes = [&](std::int64_t stage, const std::string& purpose) {
        const Planned planned = plan(directory.path(), stage, false, 4);
        std::int64_t sum = 0;
        for (const MemoryUse& use : planned.plan.exchange) {
            sum += use.purpose == purpose ? use.bytes : 0;
        }
        return sum;
    };
    const std::int64_t block = 4 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096);  // bytes in f32
    CHECK(bytes(1, "gradients of units at work") == 0);
    CHECK(bytes(2, "gradients of units at work") >= block);
    CHECK(bytes(2, "gradients of units at work") < 3 * block);
    CHECK(bytes(2, "gathered parameters") == 0);
    CHECK(bytes(3, "gathered parameters") >= block);
    CHECK(bytes(3, "gathered parameters") < 3 * block);
    for (std::int64_t stage = 0; stage < 4; ++stage) {
        // A bucket of 50 million elements, rounded up to 16 elements a rank.
        CHECK(bytes(stage, "exchange of gradients") >= 200'000'000);
        CHECK(bytes(stage, "exchange of gradients") <= 200'000'000 + 4 * 16 * 4);
    }
}

TEST_CASE("a model of more parameters than can be counted is refused") {
    const TemporaryDirectory directory;
    directory.write("config.json", R"({"model_type": "llama", "vocab_size": 2147483647, "hidden_size": 2147483646,
        "intermediate_size": 2147483647, "num_hidden_layers": 10000, "num_attention_heads": 1})");
    expect_error(ExitCode::bad_data, {"too large"}, [&] { static_cast<void>(plan(directory.path(), 1, false, 4)); });
}
