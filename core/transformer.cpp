#include "core/transformer.h"

#include <algorithm>

#include "core/rope.h"

namespace tessera {
namespace {

/// Writes [1, n] values in the dtype of `to`.
void write_vector(Ops& ops, const Matrix& to, std::span<const double> values) {
    std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(to.dtype)));
    convert(to.dtype, bytes.data(), DType::f64, values.data(), to.cols);
    ops.write(to, bytes);
}

void read_vector(Ops& ops, std::span<double> values, const ConstMatrix& from) {
    std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_of(from.dtype)));
    ops.read(bytes, from);
    convert(DType::f64, values.data(), from.dtype, bytes.data(), from.cols);
}

template <typename T>
void write_rope_tables(Ops& ops, const ModelConfig& config, const Matrix& cos, const Matrix& sin) {
    std::vector<T> cosines(static_cast<std::size_t>(cos.elements()));
    std::vector<T> sines(cosines.size());
    fill_rope_tables(config.rope, config.head_dim, cos.rows, cosines.data(), sines.data());
    ops.write(cos, std::as_bytes(std::span(cosines)));
    ops.write(sin, std::as_bytes(std::span(sines)));
}

/// Sum of -weight * log-prob over the targets.
double weighted_loss(const MicroBatch& batch, std::span<const double> log_probs) {
    double sum = 0;
    for (std::size_t i = 0; i < log_probs.size(); ++i) {
        sum -= static_cast<double>(batch.target_weights[i]) * log_probs[i];
    }
    return sum;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const std::vector<Unit>& units, Ops& ops,
                         const TransformerLimits& limits, Carver& carver)
    : config_(config), ops_(ops), limits_(limits), activations_(carver, config, ops, limits) {
    const Matrix& cos = activations_.rope_cos;
    const Matrix& sin = activations_.rope_sin;
    if (ops.accumulate() == DType::f64) {
        write_rope_tables<double>(ops, config, cos, sin);
    } else {
        write_rope_tables<float>(ops, config, cos, sin);
    }
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        blocks_.emplace_back(config, units[static_cast<std::size_t>(layer + 1)], layer, ops);
    }
    embedding_ = &units.front().parameter("embed_tokens.weight");
    final_norm_ = &units.back().parameter("model.norm.weight");
    logits_weight_ = config.tied ? embedding_ : &units.back().parameter("lm_head.weight");
}

UnitUses Transformer::uses(const ModelConfig& config, Pass last) {
    UnitUses uses;
    std::int64_t time = 0;
    using Uses = std::vector<UnitUse>;
    const auto begin = [&](Uses& of, std::int64_t unit) { of.push_back({unit, time++, -1}); };
    const auto end = [&](Uses& of, std::int64_t unit) {
        std::find_if(of.rbegin(), of.rend(), [&](const UnitUse& use) { return use.unit == unit && use.end < 0; })->end =
            time++;
    };
    const std::int64_t head = config.num_layers + 1;
    const std::int64_t logits = config.tied ? 0 : head;
    for (std::int64_t unit = 0; unit <= head; ++unit) {
        begin(uses.parameters, unit);
        end(uses.parameters, unit);
    }
    if (last == Pass::forward) {
        begin(uses.parameters, logits);
        end(uses.parameters, logits);
        return uses;
    }
    begin(uses.parameters, head);
    begin(uses.parameters, logits);
    begin(uses.gradients, head);
    if (config.tied) {
        begin(uses.gradients, 0);
    }
    end(uses.gradients, head);
    end(uses.parameters, logits);
    end(uses.parameters, head);
    for (std::int64_t unit = config.num_layers; unit >= 1; --unit) {
        begin(uses.parameters, unit);
        begin(uses.gradients, unit);
        end(uses.gradients, unit);
        end(uses.parameters, unit);
    }
    if (!config.tied) {
        begin(uses.gradients, 0);
    }
    end(uses.gradients, 0);
    return uses;
}

Block::Tokens Transformer::describe(const MicroBatch& batch) const {
    return {batch.token_count(), batch.positions, batch.starts, {activations_.rope_cos, activations_.rope_sin}};
}

void Transformer::check(const MicroBatch& batch) const {
    const bool fits = batch.token_count() <= limits_.tokens && batch.target_count() <= limits_.tokens &&
                      batch.longest_segment() <= limits_.longest_segment &&
                      std::ranges::all_of(batch.positions, [&](auto position) { return position < limits_.positions; });
    if (!fits) {
        fail(ExitCode::internal, "a micro-batch of {} tokens exceeds what was planned ({})", batch.token_count(),
             limits_.tokens);
    }
}

void Transformer::forward(const MicroBatch& batch, ParameterSource& source) {
    check(batch);
    const Block::Tokens tokens = describe(batch);
    const auto rows = [&](const Matrix& buffer) { return buffer.row_range(0, tokens.count); };
    {
        const auto parameters = source.acquire(0, Pass::forward);
        ops_.embedding_forward(rows(activations_.input(0)), parameters.view(*embedding_), batch.tokens);
    }
    ConstMatrix x = rows(activations_.input(0));
    ConstMatrix delta;
    for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
        const auto parameters = source.acquire(static_cast<std::int64_t>(layer) + 1, Pass::forward);
        BlockActivations& kept = activations_.block(layer);
        blocks_[layer].forward(parameters, tokens, x, delta, rows(activations_.input(layer)), kept, activations_.delta,
                               false);
        x = rows(kept.middle);
        delta = rows(activations_.delta);
    }
    const auto parameters = source.acquire(head_unit(), Pass::forward);
    HeadBuffers& head = activations_.head.front();
    ops_.add_rmsnorm_forward(rows(head.norm), rows(head.rstd), rows(activations_.input(blocks_.size())), x, delta,
                             parameters.view(*final_norm_), config_.rms_norm_eps);
}

Matrix Transformer::tile_logits(const MicroBatch& batch, std::int64_t first, std::int64_t count, ConstMatrix weight) {
    HeadBuffers& head = activations_.head.front();
    const Matrix rows = head.rows.row_range(0, count);
    const Matrix logits = head.logits.row_range(0, count);
    ops_.gather_rows(
        rows, head.norm,
        std::span(batch.target_rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
    ops_.logits_forward(logits, rows, weight);
    return logits;
}

void Transformer::score(const MicroBatch& batch, double temperature, ParameterSource& source,
                        std::span<double> log_probs, std::span<double> entropy) {
    source.start(Pass::forward);
    forward(batch, source);
    HeadBuffers& head = activations_.head.front();
    const auto parameters = source.acquire(logits_unit(), Pass::forward);
    for (std::int64_t first = 0; first < batch.target_count(); first += limits_.logits_rows) {
        const std::int64_t count = std::min(limits_.logits_rows, batch.target_count() - first);
        const Matrix logits = tile_logits(batch, first, count, parameters.view(*logits_weight_));
        const auto targets =
            std::span(batch.target_tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
        ops_.log_prob_forward(head.log_probs.col_range(first, count),
                              entropy.empty() ? Matrix{} : head.entropy.col_range(first, count), logits, targets,
                              temperature);
    }
    read_vector(ops_, log_probs, head.log_probs.col_range(0, batch.target_count()));
    if (!entropy.empty()) {
        read_vector(ops_, entropy, head.entropy.col_range(0, batch.target_count()));
    }
}

double Transformer::loss(const MicroBatch& batch, ParameterSource& source) {
    std::vector<double> log_probs(batch.target_rows.size());
    score(batch, 1.0, source, log_probs, {});
    return weighted_loss(batch, log_probs);
}

double Transformer::forward_backward(const MicroBatch& batch, double scale, ParameterSource& source,
                                     GradientSink& sink) {
    source.start(Pass::backward);
    forward(batch, source);
    head_backward(batch, scale, source, sink);
    blocks_backward(batch, source, sink);
    // Last, so that a device computes while the host asks it for more.
    std::vector<double> log_probs(batch.target_rows.size());
    read_vector(ops_, log_probs, activations_.head.front().log_probs.col_range(0, batch.target_count()));
    return weighted_loss(batch, log_probs);
}

void Transformer::head_backward(const MicroBatch& batch, double scale, ParameterSource& source, GradientSink& sink) {
    HeadBuffers& head = activations_.head.front();
    BackwardBuffers& backward = activations_.backward.front();
    const std::int64_t tokens = batch.token_count();
    const Matrix dnorm = backward.norm.row_range(0, tokens);
    ops_.zero(dnorm);

    const auto parameters = source.acquire(head_unit(), Pass::backward);
    const auto logits_parameters = source.acquire(logits_unit(), Pass::backward);
    const GradientSink::View gradients = sink.begin(head_unit());
    const ConstMatrix weight = logits_parameters.view(*logits_weight_);
    const Matrix dweight = sink.begin(logits_unit()).view(*logits_weight_);
    std::vector<double> weights(batch.target_weights.begin(), batch.target_weights.end());
    std::ranges::for_each(weights, [scale](double& target_weight) { target_weight *= scale; });
    write_vector(ops_, head.weights.col_range(0, batch.target_count()), weights);
    for (std::int64_t first = 0; first < batch.target_count(); first += limits_.logits_rows) {
        const std::int64_t count = std::min(limits_.logits_rows, batch.target_count() - first);
        const auto piece = [&](const std::vector<std::int32_t>& values) {
            return std::span(values).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
        };
        const Matrix logits = tile_logits(batch, first, count, weight);
        const Matrix dlogits = head.dlogits.row_range(0, count);
        ops_.cross_entropy(head.log_probs.col_range(first, count), dlogits, logits, piece(batch.target_tokens),
                           head.weights.col_range(first, count));
        const Matrix rows = head.rows.row_range(0, count);
        ops_.linear_backward_weight(dweight, dlogits, rows);
        ops_.linear_backward_input(rows, dlogits, weight);
        ops_.scatter_add_rows(dnorm, rows, piece(batch.target_rows));
    }
    ops_.rmsnorm_backward(backward.residual.row_range(0, tokens), gradients.view(*final_norm_), {}, dnorm,
                          activations_.input(blocks_.size()).row_range(0, tokens), head.rstd.row_range(0, tokens),
                          parameters.view(*final_norm_));
    sink.done(head_unit());
}

void Transformer::blocks_backward(const MicroBatch& batch, ParameterSource& source, GradientSink& sink) {
    const Block::Tokens tokens = describe(batch);
    BackwardBuffers& backward = activations_.backward.front();
    for (std::size_t layer = blocks_.size(); layer-- > 0;) {
        const auto unit = static_cast<std::int64_t>(layer) + 1;
        // One acquisition spans recomputation and gradient, so that checkpointing costs no second gather.
        const auto parameters = source.acquire(unit, Pass::backward);
        const Matrix input = activations_.input(layer).row_range(0, tokens.count);
        BlockActivations& kept = activations_.block(layer);
        // The last block's activations are still there from the forward pass.
        if (limits_.checkpointing && layer + 1 != blocks_.size()) {
            blocks_[layer].forward(parameters, tokens, input, {}, input, kept, activations_.delta, true);
        }
        blocks_[layer].backward(parameters, sink.begin(unit), tokens, input, kept, backward);
        sink.done(unit);
    }
    ops_.embedding_backward(sink.begin(0).view(*embedding_), backward.residual.row_range(0, tokens.count),
                            batch.tokens);
    sink.done(0);
}

}  // namespace tessera
