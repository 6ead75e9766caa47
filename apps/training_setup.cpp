#include "apps/training_setup.h"

#include <algorithm>

#include "apps/console.h"

namespace tessera {
namespace {

/// The largest unit, but at most 5e7 elements: what DeepSpeed's users know as the default.
std::int64_t default_bucket(const std::vector<Unit>& units) {
    const auto sizes = unit_sizes(units);
    return std::min<std::int64_t>(*std::ranges::max_element(sizes), 50'000'000);
}

}  // namespace

TrainingSetup::TrainingSetup(Job job, std::int64_t ranks, bool first)
    : job_(resolve_device(std::move(job))), model_(open_model(job_, first)) {
    warnings_ = model_.warnings;
    resolve_data();
    batch_ = {*job_.train_micro_batch_size_per_gpu, *job_.gradient_accumulation_steps, ranks};
    order_.emplace(train_.rows->count(), static_cast<std::uint64_t>(job_.seed), job_.data.shuffle);
    total_steps_ = job_.training.max_steps > 0
                       ? job_.training.max_steps
                       : steps_of_epochs(train_.rows->count(), job_.training.num_epochs, batch_.batch());
    resolve_memory(ranks);
}

RowSet TrainingSetup::open_rows(const std::vector<std::string>& patterns) {
    RowSet set;
    set.data = std::make_unique<TokenData>(TokenData::open(patterns, job_.data.format, model_.config().vocab_size));
    const std::string packing = resolve_packing(job_.data.packing, *set.data);
    set.rows = std::make_unique<Rows>(*set.data, packing, job_.data.sequence_length, job_.data.too_long);
    return set;
}

void TrainingSetup::resolve_data() {
    train_ = open_rows(job_.data.train);
    // Evaluation is packed like training, also where only one of the two has a loss mask.
    job_.data.packing = resolve_packing(job_.data.packing, *train_.data);
    if (!job_.data.eval.empty()) {
        eval_ = open_rows(job_.data.eval);
    }
    if (job_.data.sequence_length > model_.config().max_position_embeddings) {
        warnings_.push_back(fmt::format("data.sequence_length = {} is more than the model's max_position_embeddings = {}",
                                        job_.data.sequence_length, model_.config().max_position_embeddings));
    }
}

void TrainingSetup::resolve_memory(std::int64_t ranks) {
    Job::Zero& zero = job_.zero_optimization;
    if (!zero.reduce_bucket_size) {
        zero.reduce_bucket_size = default_bucket(model_.units);
    }
    if (!zero.allgather_bucket_size) {
        zero.allgather_bucket_size = zero.reduce_bucket_size;
    }
    partition_.emplace(unit_sizes(model_.units), ranks, *zero.reduce_bucket_size);

    std::int64_t tokens = train_.rows->max_tokens_per_row();
    std::int64_t longest = train_.rows->longest_segment();
    if (eval_) {
        tokens = std::max(tokens, eval_->rows->max_tokens_per_row());
        longest = std::max(longest, eval_->rows->longest_segment());
    }
    limits_.tokens = checked_mul(tokens, batch_.micro, "tokens of a micro-batch");
    limits_.longest_segment = longest;
    limits_.positions = longest;
    const double gib = job_.model.logits_optimization_peak_mem_size_in_gib;
    limits_.logits_rows = logits_tile_rows(model_.config(), limits_.tokens, job_.model.logits_optimization == "none",
                                           static_cast<std::int64_t>(gib * (1 << 30)));
    limits_.training = true;
    limits_.checkpointing = *job_.model.enable_gradient_checkpointing;

    plan_ = ModelStates::plan(model_.units, *partition_, states_options(0));
    for (const MemoryPlan& more :
         {ShardedOptimizer::plan(*partition_), plan_activations(model_.config(), *model_.ops, limits_)}) {
        plan_.insert(plan_.end(), more.begin(), more.end());
    }
}

ModelStates::Options TrainingSetup::states_options(std::int64_t rank) const {
    return {.storage = model_.ops->storage(),
            .stage = *job_.zero_optimization.stage,
            .rank = rank,
            .training = true};
}

ShardedOptimizer::Options TrainingSetup::optimizer_options() const {
    const Job::Training::Optimizer& optimizer = job_.training.optimizer;
    return {.decoupled = optimizer.type == "AdamW",
            .beta1 = optimizer.betas[0],
            .beta2 = optimizer.betas[1],
            .eps = optimizer.eps,
            .weight_decay = optimizer.weight_decay,
            .no_decay = optimizer.no_decay,
            .clipping = job_.gradient_clipping,
            .gather_elements = *job_.zero_optimization.allgather_bucket_size};
}

std::vector<std::pair<std::string, std::string>> TrainingSetup::summary() const {
    const ModelConfig& config = model_.config();
    std::vector<std::pair<std::string, std::string>> rows = {
        {"model", fmt::format("{}, {}", job_.model_name, model_.random ? "random weights" : "weights from its files")},
        {"architecture",
         fmt::format("{}: {} layers, hidden {}, intermediate {}, {} heads of {}, {} key-value heads, vocabulary {}{}",
                     config.family, config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads,
                     config.head_dim, config.num_kv_heads, config.vocab_size, config.tied ? ", tied" : "")},
        {"parameters", with_separators(count_parameters(model_.units))},
        {"computes in", model_.compute_dtype()},
        {"training data", fmt::format("{} tokens, {} documents, {} rows of at most {} tokens, packing {}",
                                      with_separators(train_.data->tokens()), with_separators(train_.data->documents()),
                                      with_separators(train_.rows->count()), train_.rows->max_tokens_per_row(),
                                      job_.data.packing)},
        {"batch", fmt::format("{} rows = {} a micro-batch x {} accumulated x {} ranks", batch_.batch(), batch_.micro,
                              batch_.accumulation, batch_.ranks)},
        {"steps", fmt::format("{}, {:.2f} epochs", with_separators(total_steps_),
                              static_cast<double>(total_steps_) * static_cast<double>(batch_.batch()) /
                                  static_cast<double>(train_.rows->count()))},
        {"zero", fmt::format("stage {}, buckets of {} elements", *job_.zero_optimization.stage,
                             with_separators(partition_->bucket_elements()))},
        {"checkpointing", limits_.checkpointing ? "every block is computed again in backward" : "off"},
    };
    if (eval_) {
        rows.insert(rows.begin() + 5,
                    {"evaluation data", fmt::format("{} tokens, {} rows", with_separators(eval_->data->tokens()),
                                                    with_separators(eval_->rows->count()))});
    }
    return rows;
}

}  // namespace tessera
