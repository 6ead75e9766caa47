#include "apps/training_memory.h"

#include "core/transformer.h"

namespace tessera {

ModelStates::Options training_states(const Job& job, const ModelSetup& model, std::int64_t rank) {
    return {.storage = model.ops->storage(), .stage = *job.zero_optimization.stage, .rank = rank, .training = true};
}

TrainingMemory plan_training_memory(Job& job, const ModelSetup& model, std::int64_t ranks) {
    std::vector<Unit> units = units_of(job, model.config(), ranks);
    resolve_buckets(job, units);
    Partition partition(units, ranks, *job.zero_optimization.reduce_bucket_size);
    TrainingMemory memory{.units = std::move(units),
                          .partition = std::move(partition),
                          .gradient_uses = Transformer::uses(model.config(), Pass::backward).gradients,
                          .gather_plans = {},
                          .model_states = {},
                          .exchange = {}};
    memory.gather_plans = plan_gathers(job, model, memory.partition, true);
    memory.model_states = ModelStates::plan(memory.units, memory.partition, training_states(job, model, 0));
    memory.exchange = Gradients::plan(memory.partition, memory.gradient_uses, *job.zero_optimization.stage);
    // The sums come first; what follows is at work on them.
    memory.model_states.push_back(memory.exchange.front());
    memory.exchange.erase(memory.exchange.begin());
    if (memory.gather_plans) {
        append(memory.exchange, GatheredParameters::plan(model.ops->storage(), *memory.gather_plans));
    }
    return memory;
}

TransformerLimits training_limits(const Job& job, const ModelConfig& config, std::int64_t tokens_per_row,
                                  std::int64_t longest_segment) {
    TransformerLimits limits;
    limits.tokens = checked_mul(tokens_per_row, *job.train_micro_batch_size_per_gpu, "tokens of a micro-batch");
    limits.longest_segment = longest_segment;
    limits.positions = longest_segment;
    limits.logits_rows = logits_rows_of(job, config, limits.tokens);
    limits.training = true;
    limits.checkpointing = *job.model.enable_gradient_checkpointing;
    return limits;
}

}  // namespace tessera
