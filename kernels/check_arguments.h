// Checks of the arguments of an Ops, shared by its backends. A wrong shape or dtype is a fault of the program, never of
// its input: every function throws ExitCode::internal with the operation, the argument, what it is and what it must be.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace tessera {

/// One function for each operation of Ops, under its name and with its arguments. All cost at most one pass over the
/// indices; nothing is allocated unless a check fails.
class ArgumentChecks {
  public:
    ArgumentChecks(DType storage, DType accumulate) : storage_(storage), accumulate_(accumulate) {}

    void bind_workspace(std::span<std::byte> memory, std::int64_t needed) const;

    void linear_forward(ConstMatrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) const;
    void logits_forward(ConstMatrix logits, ConstMatrix x, ConstMatrix w) const;
    void linear_backward_input(ConstMatrix dx, ConstMatrix dy, ConstMatrix w) const;
    void linear_backward_weight(ConstMatrix dw, ConstMatrix dy, ConstMatrix x) const;
    void bias_backward(ConstMatrix db, ConstMatrix dy) const;

    void embedding_forward(ConstMatrix out, ConstMatrix table, std::span<const std::int32_t> ids) const;
    void embedding_backward(ConstMatrix dtable, ConstMatrix dout, std::span<const std::int32_t> ids) const;

    void add_rmsnorm_forward(ConstMatrix y, ConstMatrix rstd, ConstMatrix sum, ConstMatrix x, ConstMatrix delta,
                             ConstMatrix weight) const;
    void rmsnorm_backward(ConstMatrix dx, ConstMatrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x,
                          ConstMatrix rstd, ConstMatrix weight) const;

    void rope(ConstMatrix x, const RopeTable& table, std::span<const std::int32_t> positions,
              std::int64_t head_dim) const;

    void attention_forward(ConstMatrix out, ConstMatrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                           const AttentionShape& shape) const;
    void attention_backward(ConstMatrix dq, ConstMatrix dk, ConstMatrix dv, ConstMatrix dout, ConstMatrix q,
                            ConstMatrix k, ConstMatrix v, ConstMatrix out, ConstMatrix lse,
                            const AttentionShape& shape) const;

    void swiglu_forward(ConstMatrix act, ConstMatrix gate_up) const;
    void swiglu_backward(ConstMatrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) const;

    void log_prob_forward(ConstMatrix log_probs, ConstMatrix entropy, ConstMatrix logits,
                          std::span<const std::int32_t> targets, double temperature) const;
    void cross_entropy(ConstMatrix log_probs, ConstMatrix dlogits, ConstMatrix logits,
                       std::span<const std::int32_t> targets, ConstMatrix weights) const;

    void read(std::span<const std::byte> to, ConstMatrix from) const;
    void write(ConstMatrix to, std::span<const std::byte> from) const;
    void zero(ConstMatrix x) const;
    void copy(ConstMatrix to, ConstMatrix from) const;
    void add(ConstMatrix y, ConstMatrix a, ConstMatrix b) const;
    void gather_rows(ConstMatrix to, ConstMatrix from, std::span<const std::int32_t> rows) const;
    void scatter_add_rows(ConstMatrix to, ConstMatrix from, std::span<const std::int32_t> rows) const;

    void sum_rows(ConstMatrix y, ConstMatrix pieces) const;
    void squared_norm(ConstMatrix x) const;
    void adam(ConstMatrix w, ConstMatrix m, ConstMatrix v, ConstMatrix gradient, ConstMatrix model_weight) const;

  private:
    DType storage_;
    DType accumulate_;
};

}  // namespace tessera
