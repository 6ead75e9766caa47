#include "core/transformer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>

#include "kernels/reference/reference_ops.h"
#include "test/core/model_memory.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

TransformerLimits limits_for(const MicroBatch& batch, bool checkpointing, std::int64_t tile) {
    return {.tokens = batch.token_count(),
            .longest_segment = batch.longest_segment(),
            .positions = 64,
            .logits_rows = tile,
            .training = true,
            .checkpointing = checkpointing};
}

/// Notes when units are held and when their gradients are at work.
class Recorder : public ParameterSource, public GradientSink {
  public:
    explicit Recorder(ModelMemory& memory) : memory_(memory) {}
    void start(Pass last) override { started.push_back(last); }
    [[nodiscard]] Token acquire(std::int64_t unit, Pass pass) override {
        uses.parameters.push_back({unit, time_++, -1});
        inner_.push_back(std::make_unique<Token>(memory_.acquire(unit, pass)));
        const Token& token = *inner_.back();
        const Parameter& first = memory_.units[static_cast<std::size_t>(unit)].parameters.front();
        const ConstMatrix view = token.view(first);
        return {this, unit, view.data - first.offset * size_of(view.dtype), view.dtype};
    }
    [[nodiscard]] View begin(std::int64_t unit) override {
        if (std::ranges::none_of(uses.gradients, [&](const UnitUse& use) { return use.unit == unit; })) {
            uses.gradients.push_back({unit, time_++, -1});
        }
        return memory_.begin(unit);
    }
    void done(std::int64_t unit) override { end(uses.gradients, unit); }

    UnitUses uses;
    std::vector<Pass> started;

  protected:
    void release(std::int64_t unit) noexcept override { end(uses.parameters, unit); }

  private:
    /// The newest use of the unit that has not ended.
    void end(std::vector<UnitUse>& of, std::int64_t unit) {
        const auto use = std::find_if(of.rbegin(), of.rend(), [&](const UnitUse& one) { return one.unit == unit && one.end < 0; });
        if (use != of.rend()) {
            use->end = time_++;
        }
    }
    ModelMemory& memory_;
    std::vector<std::unique_ptr<Token>> inner_;
    std::int64_t time_ = 0;
};

}  // namespace

TEST_CASE("units are used as the model says beforehand") {
    const std::string family = GENERATE("llama", "qwen2");  // untied, tied
    const bool checkpointing = GENERATE(false, true);
    CAPTURE(family, checkpointing);
    const ModelConfig config = small_config(family);
    const MicroBatch batch = make_batch({7, 4}, config.vocab_size, 3);
    ModelMemory memory(config, DType::f32, DType::f32, 1);
    ModelRun run(config, make_reference_ops(DType::f32), limits_for(batch, checkpointing, 4), memory.units);

    Recorder training(memory);
    static_cast<void>(run.transformer->forward_backward(batch, 1, training, training));
    CHECK(training.started == std::vector{Pass::backward});
    CHECK(training.uses.parameters == Transformer::uses(config, Pass::backward).parameters);
    CHECK(training.uses.gradients == Transformer::uses(config, Pass::backward).gradients);

    Recorder scoring(memory);
    static_cast<void>(run.transformer->loss(batch, scoring));
    CHECK(scoring.started == std::vector{Pass::forward});
    CHECK(scoring.uses.parameters == Transformer::uses(config, Pass::forward).parameters);
    CHECK(Transformer::uses(config, Pass::forward).gradients.empty());
}

TEST_CASE("the gradient of every parameter agrees with finite differences in double") {
    const std::string family = GENERATE("llama", "mistral", "qwen2", "qwen3", "biases");
    const bool checkpointing = GENERATE(false, true);
    CAPTURE(family, checkpointing);
    const ModelConfig config = small_config(family);
    MicroBatch batch = make_batch({7, 1, 4}, config.vocab_size, 3);
    batch.target_weights[2] = -0.5F;  // a weight may be negative, or 0
    batch.target_weights[5] = 0;
    ModelMemory memory(config, DType::f64, DType::f64, 1);
    ModelRun run(config, make_reference_ops(DType::f64), limits_for(batch, checkpointing, 4), memory.units);
    const double scale = 0.37;
    memory.clear();
    const double loss = run.transformer->forward_backward(batch, scale, memory, memory);
    CHECK(memory.held == 0);
    CHECK(memory.finished == std::vector<std::int64_t>{3, 2, 1, 0});
    CHECK(loss == Approx(run.transformer->loss(batch, memory)).epsilon(1e-13));

    for (std::size_t u = 0; u < memory.units.size(); ++u) {
        for (const Parameter& parameter : memory.units[u].parameters) {
            CAPTURE(parameter.name);
            // A few elements of each parameter. Central differences: an error of order h^2 = 1e-10 and of
            // 1e-16 * loss / h = 1e-10 for h = 1e-5; gradients are of order 0.1 to 10.
            for (std::int64_t n = 0; n < 5; ++n) {
                const std::int64_t element = parameter.offset + (n * 7919) % parameter.elements();
                const double value = memory.value(u, element);
                const double h = 1e-5;
                memory.set(u, element, value + h);
                const double above = run.transformer->loss(batch, memory);
                memory.set(u, element, value - h);
                const double below = run.transformer->loss(batch, memory);
                memory.set(u, element, value);
                CHECK(memory.gradient(u, element) == Approx(scale * (above - below) / (2 * h)).epsilon(1e-7).margin(2e-8));
            }
        }
    }
}

TEST_CASE("gradient checkpointing and the size of the logits tile change no bit of a gradient") {
    const ModelConfig config = small_config(GENERATE("llama", "qwen3"));
    const MicroBatch batch = make_batch({5, 9, 2}, config.vocab_size, 5);
    ModelMemory kept(config, DType::f32, DType::f32, 2);
    ModelMemory again(config, DType::f32, DType::f32, 2);
    ModelRun run_kept(config, make_reference_ops(DType::f32), limits_for(batch, false, 16), kept.units);
    ModelRun run_again(config, make_reference_ops(DType::f32), limits_for(batch, true, 16), again.units);
    kept.clear();
    again.clear();
    const double loss_kept = run_kept.transformer->forward_backward(batch, 1, kept, kept);
    const double loss_again = run_again.transformer->forward_backward(batch, 1, again, again);
    CHECK(loss_kept == loss_again);
    CHECK(kept.gradients == again.gradients);

    ModelMemory tiled(config, DType::f32, DType::f32, 2);
    ModelRun run_tiled(config, make_reference_ops(DType::f32), limits_for(batch, false, 3), tiled.units);
    tiled.clear();
    CHECK(run_tiled.transformer->forward_backward(batch, 1, tiled, tiled) == loss_kept);
    CHECK(tiled.gradients.back() == kept.gradients.back());
}

TEST_CASE("a packed document has the log-probs and gradients of the same document alone") {
    const ModelConfig config = small_config(GENERATE("llama", "mistral", "qwen3"));
    const MicroBatch packed = make_batch({6, 3, 8}, config.vocab_size, 9);
    ModelMemory together(config, DType::f64, DType::f64, 4);
    ModelMemory alone(config, DType::f64, DType::f64, 4);
    ModelRun run(config, make_reference_ops(DType::f64), limits_for(packed, true, 32), together.units);
    together.clear();
    alone.clear();
    std::vector<double> log_probs(packed.target_rows.size());
    run.transformer->score(packed, 1.0, together, log_probs, {});
    const double loss = run.transformer->forward_backward(packed, 1, together, together);

    double sum = 0;
    std::size_t at = 0;
    for (std::size_t s = 0; s + 1 < packed.starts.size(); ++s) {
        MicroBatch document;
        const auto first = static_cast<std::ptrdiff_t>(packed.starts[s]);
        const auto end = static_cast<std::ptrdiff_t>(packed.starts[s + 1]);
        document.tokens.assign(packed.tokens.begin() + first, packed.tokens.begin() + end);
        document.positions.assign(packed.positions.begin() + first, packed.positions.begin() + end);
        document.starts.push_back(end - first);
        for (std::int32_t i = 0; i + 1 < end - first; ++i) {
            document.target_rows.push_back(i);
            document.target_tokens.push_back(document.tokens[static_cast<std::size_t>(i) + 1]);
            document.target_weights.push_back(1);
        }
        std::vector<double> own(document.target_rows.size());
        run.transformer->score(document, 1.0, alone, own, {});
        for (const double value : own) {
            CHECK(value == Approx(log_probs[at++]).epsilon(1e-12));
        }
        sum += run.transformer->forward_backward(document, 1, alone, alone);
    }
    CHECK(sum == Approx(loss).epsilon(1e-13));
    for (std::size_t u = 0; u < together.units.size(); ++u) {
        for (std::int64_t i = 0; i < together.units[u].elements; ++i) {
            REQUIRE(together.gradient(u, i) == Approx(alone.gradient(u, i)).epsilon(1e-9).margin(1e-12));
        }
    }
}

TEST_CASE("a batch without targets has loss 0 and gradient 0") {
    const ModelConfig config = small_config("llama");
    MicroBatch batch = make_batch({6}, config.vocab_size, 9);
    batch.target_rows.clear();
    batch.target_tokens.clear();
    batch.target_weights.clear();
    ModelMemory memory(config, DType::f32, DType::f32, 4);
    ModelRun run(config, make_reference_ops(DType::f32), limits_for(batch, true, 8), memory.units);
    memory.clear();
    CHECK(run.transformer->forward_backward(batch, 1, memory, memory) == 0);
    for (const auto& gradient : memory.gradients) {
        CHECK(std::ranges::all_of(gradient, [](std::byte byte) { return byte == std::byte{0} || byte == std::byte{0x80}; }));
    }
}

TEST_CASE("a micro-batch beyond the plan is an error") {
    const ModelConfig config = small_config("llama");
    const MicroBatch batch = make_batch({6}, config.vocab_size, 9);
    const MicroBatch larger = make_batch({7}, config.vocab_size, 9);
    ModelMemory memory(config, DType::f32, DType::f32, 4);
    ModelRun run(config, make_reference_ops(DType::f32), limits_for(batch, true, 8), memory.units);
    CHECK_THROWS_AS(run.transformer->loss(larger, memory), Error);
}
