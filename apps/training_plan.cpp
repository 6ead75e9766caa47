#include "apps/training_plan.h"

#include "core/transformer.h"

namespace tessera {

ModelStates::Options training_states(const Job& job, const ModelSetup& model, std::int64_t rank) {
    return {.storage = model.ops->storage(), .stage = *job.zero_optimization.stage, .rank = rank, .training = true};
}

Gradients::Options gradient_options(const Job& job) {
    return {.stage = *job.zero_optimization.stage,
            .exchange = job.communication_data_type == "bf16" ? DType::bf16 : DType::f32};
}

namespace {

TrafficPlan plan_traffic(const Job& job, const TrainingPlan& plan, DType storage) {
    if (plan.partition.ranks() == 1) {
        return {};  // nothing goes to others
    }
    const std::int64_t micro_batches = *job.gradient_accumulation_steps;
    const std::int64_t call_elements = *job.zero_optimization.allgather_bucket_size;
    const ZeroStage stage = *job.zero_optimization.stage;
    TrafficPlan traffic =
        repeated(Gradients::traffic(plan.partition, gradient_options(job)), stage >= 2 ? micro_batches : 1);
    const auto append = [&](const TrafficPlan& more) { traffic.insert(traffic.end(), more.begin(), more.end()); };
    if (plan.gather_plans) {
        append(
            repeated(GatheredParameters::traffic(plan.partition, storage, plan.gather_plans->training, call_elements),
                     micro_batches));
    }
    append(stage == 3 ? GatheredParameters::publication(plan.partition, storage, call_elements)
                      : ResidentParameters::publication(plan.partition, stage, storage, call_elements));
    return traffic;
}

}  // namespace

TrainingPlan plan_training(Job& job, const ModelSetup& model, std::int64_t ranks) {
    std::vector<Unit> units = units_of(job, model.config(), ranks);
    resolve_buckets(job, units);
    Partition partition(units, ranks, *job.zero_optimization.reduce_bucket_size);
    TrainingPlan plan{.units = std::move(units),
                      .partition = std::move(partition),
                      .gradient_uses = Transformer::uses(model.config(), Pass::backward).gradients,
                      .gather_plans = {},
                      .model_states = {},
                      .exchange = {},
                      .traffic = {}};
    plan.gather_plans = plan_gathers(job, model, plan.partition, true);
    plan.model_states = ModelStates::plan(plan.units, plan.partition, training_states(job, model, 0));
    plan.exchange = Gradients::plan(plan.partition, plan.gradient_uses, gradient_options(job));
    // The sums come first; what follows is at work on them.
    plan.model_states.push_back(plan.exchange.front());
    plan.exchange.erase(plan.exchange.begin());
    if (plan.gather_plans) {
        append(plan.exchange, GatheredParameters::plan(model.ops->storage(), *plan.gather_plans));
    }
    plan.traffic = plan_traffic(job, plan, model.ops->storage());
    return plan;
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
