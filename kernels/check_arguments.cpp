#include "kernels/check_arguments.h"

#include <cstdint>

namespace tessera {
namespace {

/// The matrix `name` of `operation` must be [rows, cols] of `dtype`, and in memory where it has elements.
void require(const char* operation, const char* name, ConstMatrix m, DType dtype, std::int64_t rows,
             std::int64_t cols) {
    if (m.dtype != dtype || m.rows != rows || m.cols != cols) {
        fail(ExitCode::internal, "{}: {} is {} [{}, {}], expected {} [{}, {}]", operation, name, name_of(m.dtype),
             m.rows, m.cols, name_of(dtype), rows, cols);
    }
    if (rows < 0 || cols < 0 || (rows > 1 && m.stride < cols)) {
        fail(ExitCode::internal, "{}: {} is [{}, {}] with stride {}", operation, name, rows, cols, m.stride);
    }
    if (m.data == nullptr && rows > 0 && cols > 0) {
        fail(ExitCode::internal, "{}: {} has no memory", operation, name);
    }
}

/// A vector of no elements may be any empty view.
void require_vector(const char* operation, const char* name, ConstMatrix m, DType dtype, std::int64_t length) {
    if (length == 0 && m.empty()) {
        return;
    }
    require(operation, name, m, dtype, 1, length);
}

void require_length(const char* operation, const char* name, std::size_t length, std::int64_t expected) {
    if (static_cast<std::int64_t>(length) != expected) {
        fail(ExitCode::internal, "{}: {} {}, expected {}", operation, length, name, expected);
    }
}

/// The other side of a matrix that is moved as it lies there.
void require_bytes(const char* operation, ConstMatrix m, std::size_t bytes) {
    if (!m.contiguous() || static_cast<std::int64_t>(bytes) != m.elements() * size_of(m.dtype)) {
        fail(ExitCode::internal, "{}: {} bytes for a {}contiguous {} [{}, {}]", operation, bytes,
             m.contiguous() ? "" : "not ", name_of(m.dtype), m.rows, m.cols);
    }
}

/// Every index must lie in [0, bound).
void require_below(const char* operation, const char* name, std::span<const std::int32_t> indices, std::int64_t bound) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
        if (indices[i] < 0 || indices[i] >= bound) {
            fail(ExitCode::internal, "{}: {}[{}] = {} is not in [0, {})", operation, name, i, indices[i], bound);
        }
    }
}

void require_attention_shape(const char* operation, const AttentionShape& shape, std::int64_t tokens) {
    if (shape.heads < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || shape.heads % shape.kv_heads != 0) {
        fail(ExitCode::internal, "{}: {} heads over {} key-value heads of size {}", operation, shape.heads,
             shape.kv_heads, shape.head_dim);
    }
    if (shape.window < 0) {
        fail(ExitCode::internal, "{}: a window of {} tokens", operation, shape.window);
    }
    if (shape.starts.empty() || shape.starts.front() != 0 || shape.starts.back() != tokens) {
        fail(ExitCode::internal, "{}: the segments do not cover the {} tokens from first to last", operation, tokens);
    }
    for (std::size_t i = 1; i < shape.starts.size(); ++i) {
        if (shape.starts[i] < shape.starts[i - 1]) {
            fail(ExitCode::internal, "{}: segment {} ends at {} before it starts at {}", operation, i - 1,
                 shape.starts[i], shape.starts[i - 1]);
        }
    }
}

/// Columns of one group of a norm that has `weight`.
std::int64_t norm_groups(const char* operation, std::int64_t cols, ConstMatrix weight) {
    if (weight.cols < 1 || cols % weight.cols != 0) {
        fail(ExitCode::internal, "{}: a weight of {} columns does not divide a row of {}", operation, weight.cols,
             cols);
    }
    return cols / weight.cols;
}

}  // namespace

void ArgumentChecks::bind_workspace(std::span<std::byte> memory, std::int64_t needed) const {
    if (static_cast<std::int64_t>(memory.size()) < needed) {
        fail(ExitCode::internal, "bind_workspace: {} bytes, {} are needed", memory.size(), needed);
    }
    if (reinterpret_cast<std::uintptr_t>(memory.data()) % 64 != 0) {
        fail(ExitCode::internal, "bind_workspace: the memory is not aligned to 64 bytes");
    }
}

void ArgumentChecks::linear_forward(ConstMatrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) const {
    require("linear_forward", "x", x, storage_, y.rows, w.cols);
    require("linear_forward", "w", w, storage_, y.cols, w.cols);
    require("linear_forward", "y", y, storage_, y.rows, y.cols);
    if (!bias.empty()) {
        require_vector("linear_forward", "bias", bias, storage_, y.cols);
    }
}

void ArgumentChecks::logits_forward(ConstMatrix logits, ConstMatrix x, ConstMatrix w) const {
    require("logits_forward", "x", x, storage_, logits.rows, w.cols);
    require("logits_forward", "w", w, storage_, logits.cols, w.cols);
    require("logits_forward", "logits", logits, accumulate_, logits.rows, logits.cols);
}

void ArgumentChecks::linear_backward_input(ConstMatrix dx, ConstMatrix dy, ConstMatrix w) const {
    require("linear_backward_input", "dy", dy, storage_, dx.rows, w.rows);
    require("linear_backward_input", "w", w, storage_, w.rows, dx.cols);
    require("linear_backward_input", "dx", dx, storage_, dx.rows, dx.cols);
}

void ArgumentChecks::linear_backward_weight(ConstMatrix dw, ConstMatrix dy, ConstMatrix x) const {
    require("linear_backward_weight", "dy", dy, storage_, x.rows, dw.rows);
    require("linear_backward_weight", "x", x, storage_, x.rows, dw.cols);
    require("linear_backward_weight", "dw", dw, accumulate_, dw.rows, dw.cols);
}

void ArgumentChecks::bias_backward(ConstMatrix db, ConstMatrix dy) const {
    require("bias_backward", "dy", dy, storage_, dy.rows, dy.cols);
    require_vector("bias_backward", "db", db, accumulate_, dy.cols);
}

void ArgumentChecks::embedding_forward(ConstMatrix out, ConstMatrix table, std::span<const std::int32_t> ids) const {
    require("embedding_forward", "table", table, storage_, table.rows, out.cols);
    require("embedding_forward", "out", out, storage_, out.rows, out.cols);
    require_length("embedding_forward", "ids", ids.size(), out.rows);
}

void ArgumentChecks::embedding_backward(ConstMatrix dtable, ConstMatrix dout, std::span<const std::int32_t> ids) const {
    require("embedding_backward", "dtable", dtable, accumulate_, dtable.rows, dout.cols);
    require("embedding_backward", "dout", dout, storage_, dout.rows, dout.cols);
    require_length("embedding_backward", "ids", ids.size(), dout.rows);
}

void ArgumentChecks::add_rmsnorm_forward(ConstMatrix y, ConstMatrix rstd, ConstMatrix sum, ConstMatrix x,
                                         ConstMatrix delta, ConstMatrix weight) const {
    const std::int64_t groups = norm_groups("add_rmsnorm_forward", x.cols, weight);
    require("add_rmsnorm_forward", "x", x, storage_, x.rows, x.cols);
    require("add_rmsnorm_forward", "y", y, storage_, x.rows, x.cols);
    require("add_rmsnorm_forward", "rstd", rstd, accumulate_, x.rows, groups);
    require_vector("add_rmsnorm_forward", "weight", weight, storage_, weight.cols);
    if (!delta.empty()) {
        require("add_rmsnorm_forward", "delta", delta, storage_, x.rows, x.cols);
        require("add_rmsnorm_forward", "sum", sum, storage_, x.rows, x.cols);
    }
}

void ArgumentChecks::rmsnorm_backward(ConstMatrix dx, ConstMatrix dweight, ConstMatrix dresidual, ConstMatrix dy,
                                      ConstMatrix x, ConstMatrix rstd, ConstMatrix weight) const {
    const std::int64_t groups = norm_groups("rmsnorm_backward", x.cols, weight);
    require("rmsnorm_backward", "x", x, storage_, x.rows, x.cols);
    require("rmsnorm_backward", "dx", dx, storage_, x.rows, x.cols);
    require("rmsnorm_backward", "dy", dy, storage_, x.rows, x.cols);
    require("rmsnorm_backward", "rstd", rstd, accumulate_, x.rows, groups);
    require_vector("rmsnorm_backward", "weight", weight, storage_, weight.cols);
    if (!dweight.empty()) {
        require_vector("rmsnorm_backward", "dweight", dweight, accumulate_, weight.cols);
    }
    if (!dresidual.empty()) {
        require("rmsnorm_backward", "dresidual", dresidual, storage_, x.rows, x.cols);
    }
}

void ArgumentChecks::rope(ConstMatrix x, const RopeTable& table, std::span<const std::int32_t> positions,
                          std::int64_t head_dim) const {
    if (head_dim < 2 || head_dim % 2 != 0 || x.cols % head_dim != 0) {
        fail(ExitCode::internal, "rope: a row of {} columns has no heads of size {}", x.cols, head_dim);
    }
    require("rope", "x", x, storage_, x.rows, x.cols);
    require("rope", "cos", table.cos, accumulate_, table.cos.rows, head_dim / 2);
    require("rope", "sin", table.sin, accumulate_, table.cos.rows, head_dim / 2);
    require_length("rope", "positions", positions.size(), x.rows);
    require_below("rope", "positions", positions, table.cos.rows);
}

void ArgumentChecks::attention_forward(ConstMatrix out, ConstMatrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                       const AttentionShape& shape) const {
    require_attention_shape("attention_forward", shape, q.rows);
    const std::int64_t q_cols = shape.heads * shape.head_dim;
    const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
    require("attention_forward", "q", q, storage_, q.rows, q_cols);
    require("attention_forward", "k", k, storage_, q.rows, kv_cols);
    require("attention_forward", "v", v, storage_, q.rows, kv_cols);
    require("attention_forward", "out", out, storage_, q.rows, q_cols);
    require("attention_forward", "lse", lse, accumulate_, q.rows, shape.heads);
}

void ArgumentChecks::attention_backward(ConstMatrix dq, ConstMatrix dk, ConstMatrix dv, ConstMatrix dout, ConstMatrix q,
                                        ConstMatrix k, ConstMatrix v, ConstMatrix out, ConstMatrix lse,
                                        const AttentionShape& shape) const {
    require_attention_shape("attention_backward", shape, q.rows);
    const std::int64_t q_cols = shape.heads * shape.head_dim;
    const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
    require("attention_backward", "q", q, storage_, q.rows, q_cols);
    require("attention_backward", "k", k, storage_, q.rows, kv_cols);
    require("attention_backward", "v", v, storage_, q.rows, kv_cols);
    require("attention_backward", "out", out, storage_, q.rows, q_cols);
    require("attention_backward", "dout", dout, storage_, q.rows, q_cols);
    require("attention_backward", "dq", dq, storage_, q.rows, q_cols);
    require("attention_backward", "dk", dk, storage_, q.rows, kv_cols);
    require("attention_backward", "dv", dv, storage_, q.rows, kv_cols);
    require("attention_backward", "lse", lse, accumulate_, q.rows, shape.heads);
}

void ArgumentChecks::swiglu_forward(ConstMatrix act, ConstMatrix gate_up) const {
    require("swiglu_forward", "act", act, storage_, act.rows, act.cols);
    require("swiglu_forward", "gate_up", gate_up, storage_, act.rows, 2 * act.cols);
}

void ArgumentChecks::swiglu_backward(ConstMatrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) const {
    require("swiglu_backward", "dact", dact, storage_, dact.rows, dact.cols);
    require("swiglu_backward", "gate_up", gate_up, storage_, dact.rows, 2 * dact.cols);
    require("swiglu_backward", "dgate_up", dgate_up, storage_, dact.rows, 2 * dact.cols);
}

void ArgumentChecks::log_prob_forward(ConstMatrix log_probs, ConstMatrix entropy, ConstMatrix logits,
                                      std::span<const std::int32_t> targets, double temperature) const {
    if (!(temperature > 0)) {
        fail(ExitCode::internal, "log_prob_forward: a temperature of {}", temperature);
    }
    require("log_prob_forward", "logits", logits, accumulate_, logits.rows, logits.cols);
    require_vector("log_prob_forward", "log_probs", log_probs, accumulate_, logits.rows);
    if (!entropy.empty()) {
        require_vector("log_prob_forward", "entropy", entropy, accumulate_, logits.rows);
    }
    require_length("log_prob_forward", "targets", targets.size(), logits.rows);
    require_below("log_prob_forward", "targets", targets, logits.cols);
}

void ArgumentChecks::cross_entropy(ConstMatrix log_probs, ConstMatrix dlogits, ConstMatrix logits,
                                   std::span<const std::int32_t> targets, ConstMatrix weights) const {
    require("cross_entropy", "logits", logits, accumulate_, logits.rows, logits.cols);
    require("cross_entropy", "dlogits", dlogits, storage_, logits.rows, logits.cols);
    require_vector("cross_entropy", "log_probs", log_probs, accumulate_, logits.rows);
    require_vector("cross_entropy", "weights", weights, accumulate_, logits.rows);
    require_length("cross_entropy", "targets", targets.size(), logits.rows);
    require_below("cross_entropy", "targets", targets, logits.cols);
}

void ArgumentChecks::read(std::span<const std::byte> to, ConstMatrix from) const {
    require("read", "from", from, from.dtype, from.rows, from.cols);
    require_bytes("read", from, to.size());
}

void ArgumentChecks::write(ConstMatrix to, std::span<const std::byte> from) const {
    require("write", "to", to, to.dtype, to.rows, to.cols);
    require_bytes("write", to, from.size());
}

void ArgumentChecks::zero(ConstMatrix x) const {
    require("zero", "x", x, x.dtype, x.rows, x.cols);
}

void ArgumentChecks::copy(ConstMatrix to, ConstMatrix from) const {
    require("copy", "from", from, from.dtype, to.rows, to.cols);
    require("copy", "to", to, to.dtype, to.rows, to.cols);
}

void ArgumentChecks::add(ConstMatrix y, ConstMatrix a, ConstMatrix b) const {
    require("add", "y", y, storage_, y.rows, y.cols);
    require("add", "a", a, storage_, y.rows, y.cols);
    require("add", "b", b, storage_, y.rows, y.cols);
}

void ArgumentChecks::gather_rows(ConstMatrix to, ConstMatrix from, std::span<const std::int32_t> rows) const {
    require("gather_rows", "to", to, storage_, to.rows, to.cols);
    require("gather_rows", "from", from, storage_, from.rows, to.cols);
    require_length("gather_rows", "rows", rows.size(), to.rows);
    require_below("gather_rows", "rows", rows, from.rows);
}

void ArgumentChecks::scatter_add_rows(ConstMatrix to, ConstMatrix from, std::span<const std::int32_t> rows) const {
    require("scatter_add_rows", "to", to, storage_, to.rows, to.cols);
    require("scatter_add_rows", "from", from, storage_, from.rows, to.cols);
    require_length("scatter_add_rows", "rows", rows.size(), from.rows);
    require_below("scatter_add_rows", "rows", rows, to.rows);
}

void ArgumentChecks::sum_rows(ConstMatrix y, ConstMatrix pieces) const {
    if (pieces.rows < 1) {
        fail(ExitCode::internal, "sum_rows: no pieces");
    }
    const DType dtype = pieces.dtype == DType::bf16 ? DType::bf16 : accumulate_;
    require("sum_rows", "pieces", pieces, dtype, pieces.rows, pieces.cols);
    require_vector("sum_rows", "y", y, accumulate_, pieces.cols);
}

void ArgumentChecks::squared_norm(ConstMatrix x) const {
    if (!x.empty()) {
        require_vector("squared_norm", "x", x, accumulate_, x.cols);
    }
}

void ArgumentChecks::adam(ConstMatrix w, ConstMatrix m, ConstMatrix v, ConstMatrix gradient,
                          ConstMatrix model_weight) const {
    require_vector("adam", "w", w, accumulate_, w.cols);
    require_vector("adam", "m", m, accumulate_, w.cols);
    require_vector("adam", "v", v, accumulate_, w.cols);
    require_vector("adam", "gradient", gradient, accumulate_, w.cols);
    if (!model_weight.empty()) {
        require_vector("adam", "model_weight", model_weight, storage_, w.cols);
    }
}

}  // namespace tessera
