#include "apps/training_setup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/console.h"
#include "apps/plan_report.h"

namespace tessera {
namespace {

struct MemoryChoice {
    ZeroStage stage;
    bool recompute;  // gradient checkpointing
};

/// Cheapest first: a higher stage costs some traffic, gradient checkpointing a third of all computation.
constexpr std::array<MemoryChoice, 8> kChoices = {
    {{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {1, true}, {2, true}, {3, true}}};

std::string name_of(const MemoryChoice& choice) {
    return fmt::format("stage {}{}", choice.stage, choice.recompute ? " with gradient checkpointing" : "");
}

/// Whether the job asks for it or leaves it open; "auto" means one of the stages 1, 2, 3.
bool is_asked(const Job& job, const MemoryChoice& choice) {
    const auto& stage = job.zero_optimization.stage;
    const auto& recompute = job.model.enable_gradient_checkpointing;
    return (stage ? choice.stage == *stage : choice.stage > 0) && (!recompute || choice.recompute == *recompute);
}

Job with(Job job, const MemoryChoice& choice) {
    job.zero_optimization.stage = choice.stage;
    job.model.enable_gradient_checkpointing = choice.recompute;
    return job;
}

}  // namespace

TrainingSetup::TrainingSetup(Job job, Device& device, std::int64_t ranks, bool first, const FreeMemory& free)
    : device_(device), job_(resolve_device(std::move(job), device)), model_(open_model(job_, device, first)) {
    warnings_ = model_.warnings;
    resolve_data();
    batch_ = {*job_.train_micro_batch_size_per_gpu, *job_.gradient_accumulation_steps, ranks};
    order_.emplace(train_.rows->count(), static_cast<std::uint64_t>(job_.seed), job_.data.shuffle);
    total_steps_ = job_.training.max_steps > 0
                       ? job_.training.max_steps
                       : steps_of_epochs(train_.rows->count(), job_.training.num_epochs, batch_.batch());
    resolve_memory(free);
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
        warnings_.push_back(
            fmt::format("data.sequence_length = {} is more than the model's max_position_embeddings = {}",
                        job_.data.sequence_length, model_.config().max_position_embeddings));
    }
}

TrainingSetup::Layout TrainingSetup::lay_out(Job job) const {
    TrainingPlan training = plan_training(job, model_, batch_.ranks);
    std::int64_t tokens = train_.rows->max_tokens_per_row();
    std::int64_t longest = train_.rows->longest_segment();
    if (eval_) {
        tokens = std::max(tokens, eval_->rows->max_tokens_per_row());
        longest = std::max(longest, eval_->rows->longest_segment());
    }
    const TransformerLimits limits = training_limits(job, model_.config(), tokens, longest);
    MemoryPlan memory = training.model_states;
    append(memory, training.exchange);
    append(memory, plan_activations(model_.config(), *model_.ops, limits));
    return {std::move(job), std::move(training), limits, std::move(memory)};
}

void TrainingSetup::resolve_memory(const FreeMemory& free) {
    std::vector<std::string> rejected;
    for (const MemoryChoice& choice : kChoices) {
        if (!is_asked(job_, choice)) {
            continue;
        }
        Layout layout = lay_out(with(job_, choice));
        const std::int64_t bytes = bytes_with_libraries(layout.memory, device_);
        if (bytes <= free.bytes) {
            layout_.emplace(std::move(layout));
            job_ = layout_->job;
            memory_ = fmt::format("{} bytes for a rank ({}){}{}", with_separators(free.bytes), free.source,
                                  rejected.empty() ? "" : "; not ", fmt::join(rejected, ", "));
            return;
        }
        rejected.push_back(fmt::format("{}: {} bytes too many", name_of(choice), with_separators(bytes - free.bytes)));
    }
    fail(ExitCode::internal, "the job does not fit into memory: a rank may take {} bytes ({}); {}; {}",
         with_separators(free.bytes), free.source, fmt::join(rejected, ", "), cheapest_change(free));
}

std::string TrainingSetup::cheapest_change(const FreeMemory& free) const {
    for (const MemoryChoice& choice : kChoices) {
        if (choice.stage == 0 || is_asked(job_, choice)) {
            continue;
        }
        Job job = with(job_, choice);
        if (job_.zero_optimization.stage && job_.zero_optimization.stage != 3) {
            job.zero_optimization.stage3_max_live_parameters.reset();  // a bound that the job's own stage does not read
        }
        const std::int64_t bytes = bytes_with_libraries(lay_out(std::move(job)).memory, device_);
        if (bytes <= free.bytes) {
            return fmt::format("{} would fit with {} bytes", name_of(choice), with_separators(bytes));
        }
    }
    return "no stage helps: take more ranks, a smaller micro-batch or shorter rows";
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
            .rounding_seed = job_.cuda.stochastic_rounding ? std::optional(job_.seed) : std::nullopt};
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
        {"training data",
         fmt::format("{} tokens, {} documents, {} rows of at most {} tokens, packing {}",
                     with_separators(train_.data->tokens()), with_separators(train_.data->documents()),
                     with_separators(train_.rows->count()), train_.rows->max_tokens_per_row(), job_.data.packing)},
        {"batch", fmt::format("{} rows = {} a micro-batch x {} accumulated x {} ranks", batch_.batch(), batch_.micro,
                              batch_.accumulation, batch_.ranks)},
        {"steps", fmt::format("{}, {:.2f} epochs", with_separators(total_steps_),
                              static_cast<double>(total_steps_) * static_cast<double>(batch_.batch()) /
                                  static_cast<double>(train_.rows->count()))},
        {"zero", fmt::format("stage {}, buckets of {} elements", *job_.zero_optimization.stage,
                             with_separators(layout_->training.partition.bucket_elements()))},
        {"checkpointing", limits().checkpointing ? "every block is computed again in backward" : "off"},
        {"sent each step", in_words(traffic())},
        {"free memory", memory_},
    };
    if (eval_) {
        rows.insert(rows.begin() + 5,
                    {"evaluation data", fmt::format("{} tokens, {} rows", with_separators(eval_->data->tokens()),
                                                    with_separators(eval_->rows->count()))});
    }
    return rows;
}

}  // namespace tessera
