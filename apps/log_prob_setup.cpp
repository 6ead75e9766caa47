#include "apps/log_prob_setup.h"

#include <algorithm>

#include "apps/console.h"

namespace tessera {

LogProbSetup::LogProbSetup(Job job, Device& device, std::int64_t ranks, bool first, const FreeMemory& free)
    : device_(device), job_(resolve_device(std::move(job), device)), model_(open_model(job_, device, first)) {
    data_ =
        std::make_unique<TokenData>(TokenData::open(job_.log_prob.data, job_.data.format, model_.config().vocab_size));
    scoring_.emplace(job_.log_prob, model_.config().max_position_embeddings, *data_);
    limits_.tokens = std::max<std::int64_t>(scoring_->max_tokens(), 1);
    limits_.longest_segment = std::max<std::int64_t>(scoring_->longest_piece(), 1);
    limits_.positions = limits_.longest_segment;
    limits_.logits_rows = logits_rows_of(job_, model_.config(), limits_.tokens);
    limits_.training = false;
    resolve_memory(ranks, free);
}

void LogProbSetup::resolve_memory(std::int64_t ranks, const FreeMemory& free) {
    // Only stage 3 differs from the others; "auto" is 1 if that fits.
    const bool open = !job_.zero_optimization.stage;
    for (const ZeroStage stage : open ? std::vector<ZeroStage>{1, 3} : std::vector{*job_.zero_optimization.stage}) {
        job_.zero_optimization.stage = stage;
        model_.units = units_of(job_, model_.config(), ranks);
        resolve_buckets(job_, model_.units);
        partition_.emplace(model_.units, ranks, *job_.zero_optimization.reduce_bucket_size);
        gather_plans_ = plan_gathers(job_, model_, *partition_, false);
        plan_ = ModelStates::plan(model_.units, *partition_, states_options(0));
        if (gather_plans_) {
            append(plan_, GatheredParameters::plan(model_.ops->storage(), *gather_plans_));
        }
        append(plan_, plan_activations(model_.config(), *model_.ops, limits_));
        if (bytes_with_libraries(plan_, device_) <= free.bytes) {
            memory_ = fmt::format("{} bytes for a rank ({})", with_separators(free.bytes), free.source);
            return;
        }
    }
    fail(ExitCode::internal,
         "the job does not fit into memory: a rank may take {} bytes ({}) and needs {}; take {}a smaller "
         "max_token_len, or "
         "more memory",
         with_separators(free.bytes), free.source, with_separators(bytes_with_libraries(plan_, device_)),
         job_.zero_optimization.stage == 3 ? "more ranks, " : "zero_optimization.stage = 3 with more ranks, ");
}

ModelStates::Options LogProbSetup::states_options(std::int64_t rank) const {
    return {.storage = model_.ops->storage(), .stage = *job_.zero_optimization.stage, .rank = rank, .training = false};
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
                                          with_separators(scoring_->max_tokens()))},
            {"free memory", memory_}};
}

}  // namespace tessera
