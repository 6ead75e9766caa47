#include "apps/log_prob_setup.h"

#include <algorithm>

#include "apps/console.h"

namespace tessera {
LogProbSetup::LogProbSetup(Job job, std::int64_t ranks, bool first)
    : job_(resolve_device(std::move(job))), model_(open_model(job_, first)) {
    data_ = std::make_unique<TokenData>(
        TokenData::open(job_.log_prob.data, job_.data.format, model_.config().vocab_size));
    scoring_.emplace(job_.log_prob, model_.config().max_position_embeddings, *data_);
    // Parameters are whole on every rank; the partition only says where each unit lies.
    partition_.emplace(unit_sizes(model_.units), ranks, count_parameters(model_.units));
    limits_.tokens = std::max<std::int64_t>(scoring_->max_tokens(), 1);
    limits_.longest_segment = std::max<std::int64_t>(scoring_->longest_piece(), 1);
    limits_.positions = limits_.longest_segment;
    const double gib = job_.model.logits_optimization_peak_mem_size_in_gib;
    limits_.logits_rows = logits_tile_rows(model_.config(), limits_.tokens, job_.model.logits_optimization == "none",
                                           static_cast<std::int64_t>(gib * (1 << 30)));
    limits_.training = false;
    plan_ = ModelStates::plan(model_.units, *partition_, states_options());
    const MemoryPlan activations = plan_activations(model_.config(), *model_.ops, limits_);
    plan_.insert(plan_.end(), activations.begin(), activations.end());
}

ModelStates::Options LogProbSetup::states_options() const {
    return {.storage = model_.ops->storage(), .stage = 0, .rank = 0, .training = false};
}

std::vector<std::pair<std::string, std::string>> LogProbSetup::summary() const {
    const std::vector<std::int64_t>& offsets = scoring_->offsets();
    return {{"model", fmt::format("{}: {}, {} parameters, {}", job_.model_name, model_.config().family,
                                  with_separators(count_parameters(model_.units)),
                                  model_.random ? "random weights" : "weights from its files")},
            {"computes in", model_.compute_dtype()},
            {"data", fmt::format("{} documents, {} tokens, {} values", with_separators(data_->documents()),
                                 with_separators(data_->tokens()), with_separators(offsets.back()))},
            {"scoring", job_.log_prob.window > 0
                            ? fmt::format("windows of {} tokens, each scoring its last {}", job_.log_prob.window,
                                          job_.log_prob.stride > 0 ? job_.log_prob.stride : job_.log_prob.window)
                            : std::string("documents whole")},
            {"micro-batches", fmt::format("{} of at most {} tokens", with_separators(scoring_->batches()),
                                          with_separators(scoring_->max_tokens()))}};
}

}  // namespace tessera
