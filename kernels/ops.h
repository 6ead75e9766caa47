// The mathematics that a model and an optimizer need, on raw memory. One interface; backends implement it.
//
// Matrices lie in the memory of the Ops' device: the CPU's is ordinary memory, a GPU's can be reached by read() and
// write() only. Indices, targets, positions and segments are ordinary memory always, and are read before a call
// returns. Operations are done in the order in which they were asked for, on a GPU some time later.
//
// Every Ops has a storage dtype S (weights, activations and their gradients) and an accumulation dtype A (gradients of
// weights, statistics, logits, log-probs, optimizer states). S is f32 or bf16 with A = f32; the double reference has
// S = A = f64. Arithmetic inside an operation is done in A and rounded to S once, when the result is stored, except
// where a comment says otherwise. Matrices are row-major views; a vector is a matrix of one row. T is the number of
// tokens of a micro-batch, H the hidden size, D the head size. "+=" marks outputs that are accumulated into.
//
// No operation allocates memory: what a backend needs it takes from the workspace it was given. No operation
// synchronises with other processes. Outputs may alias inputs only where a comment says so. Results do not depend on
// the number of threads beyond the rounding of A; the same call with the same number of threads gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/view.h"
#include "kernels/stochastic_rounding.h"

namespace tessera {

/// Upper bounds of what will be asked of an Ops; they size its workspace.
struct OpsLimits {
    std::int64_t tokens = 0;           // rows of any activation matrix
    std::int64_t columns = 0;          // columns of any activation matrix
    std::int64_t weight_elements = 0;  // of any weight matrix of a product
    std::int64_t logits_rows = 0;      // rows of a tile of logits
    std::int64_t vocabulary = 0;       // columns of a tile of logits
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t longest_segment = 0;  // tokens of the longest attention segment
};

/// Causal attention over packed segments. Segment s is the tokens [starts[s], starts[s+1]); a token sees itself and
/// earlier tokens of its own segment, and with window > 0 only those less than `window` tokens back (key j is visible
/// to query i iff j <= i and i - j < window). Query head h reads key-value head h / (heads / kv_heads).
struct AttentionShape {
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t window = 0;               // 0: none
    double scale = 0;                      // scores are scale * q.k
    std::span<const std::int64_t> starts;  // segments + 1 entries, ascending, first 0, last T; empty segments are legal
};

/// cos and sin of rotary angles, one row a position and one column a frequency (D / 2 columns), already multiplied by
/// the attention factor of the rope type. dtype A.
struct RopeTable {
    ConstMatrix cos;
    ConstMatrix sin;
};

struct AdamStep {
    double lr = 0;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    bool decoupled = true;        // AdamW: w -= lr * weight_decay * w; else weight_decay * w joins the gradient (Adam)
    double bias_correction1 = 1;  // 1 - beta1^t
    double bias_correction2 = 1;  // 1 - beta2^t
    double gradient_scale = 1;    // the gradient is multiplied by it first (clipping)
    /// Of the model's weight, which must be bf16; else to nearest. GPUs only.
    std::optional<StochasticRounding> rounding = std::nullopt;
};

class Ops {
  public:
    Ops() = default;
    Ops(const Ops&) = delete;
    Ops& operator=(const Ops&) = delete;
    virtual ~Ops() = default;

    [[nodiscard]] virtual DType storage() const = 0;     // S
    [[nodiscard]] virtual DType accumulate() const = 0;  // A

    /// Bytes of workspace that operations within `limits` need.
    [[nodiscard]] virtual std::int64_t workspace_bytes(const OpsLimits& limits) const = 0;
    /// Lends the workspace (64-byte aligned, at least workspace_bytes(limits) long); it must outlive the Ops.
    virtual void bind_workspace(std::span<std::byte> memory, const OpsLimits& limits) = 0;

    // ---- products. x [T, in], w [out, in], y [T, out]; S. Views may have a stride larger than their columns.

    /// y = x wT + bias. bias [1, out] in S, or empty.
    virtual void linear_forward(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) = 0;
    /// logits = x wT with logits [rows, out] in A.
    virtual void logits_forward(Matrix logits, ConstMatrix x, ConstMatrix w) = 0;
    /// dx = dy w.
    virtual void linear_backward_input(Matrix dx, ConstMatrix dy, ConstMatrix w) = 0;
    /// dw += dyT x, with dw [out, in] in A.
    virtual void linear_backward_weight(Matrix dw, ConstMatrix dy, ConstMatrix x) = 0;
    /// db += column sums of dy, with db [1, out] in A.
    virtual void bias_backward(Matrix db, ConstMatrix dy) = 0;

    // ---- embedding. table [V, H] in S; ids in [0, V) (checked by the caller).

    /// out[t] = table[ids[t]].
    virtual void embedding_forward(Matrix out, ConstMatrix table, std::span<const std::int32_t> ids) = 0;
    /// dtable[ids[t]] += dout[t], tokens in ascending order; dtable [V, H] in A.
    virtual void embedding_backward(Matrix dtable, ConstMatrix dout, std::span<const std::int32_t> ids) = 0;

    // ---- RMSNorm over groups of weight.cols columns (a whole row, or one head of it for q/k norm).

    /// sum = x + delta (rounded to S); y = S(S(sum * rstd) * weight), rstd = 1 / sqrt(mean(sum^2) + eps): the rounding
    /// order of Hugging Face. delta may be empty: then sum is not written and x is normalised. sum may be x or delta.
    /// y may not alias. rstd [T, groups] in A.
    virtual void add_rmsnorm_forward(Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta,
                                     ConstMatrix weight, double eps) = 0;
    /// dx = dresidual + gradient through the norm of x; dresidual may be empty (0) and may be dx; dy may be dx where
    /// dresidual is empty. dweight += (dweight [1, group] in A; may be empty: then it is not computed).
    virtual void rmsnorm_backward(Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x,
                                  ConstMatrix rstd, ConstMatrix weight) = 0;

    // ---- rotary embedding of the heads in x [T, n * D], in place, half split: pairs (i, i + D/2) turn by the angle of
    // (positions[t], i). `inverse` multiplies by the transposed matrix (the backward pass).
    virtual void rope(Matrix x, const RopeTable& table, std::span<const std::int32_t> positions, std::int64_t head_dim,
                      bool inverse) = 0;

    // ---- attention. q, out, dq, dout [T, heads * D]; k, v, dk, dv [T, kv_heads * D] in S; lse [T, heads] in A: the
    // natural logarithm of the sum of exp(scores). Outputs are overwritten.
    virtual void attention_forward(Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                   const AttentionShape& shape) = 0;
    virtual void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                                    ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape) = 0;

    // ---- SwiGLU. gate_up [T, 2I]: gate in the first I columns, up in the last; act = silu(gate) * up.
    virtual void swiglu_forward(Matrix act, ConstMatrix gate_up) = 0;
    /// dgate_up may be gate_up.
    virtual void swiglu_backward(Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) = 0;

    // ---- cross-entropy over a tile of logits [rows, V] in A. z = logits / temperature.

    /// log_probs[r] = z[target] - logsumexp(z); entropy[r] = entropy of softmax(z) in nats, skipped where empty.
    /// log_probs, entropy [1, rows] in A.
    virtual void log_prob_forward(Matrix log_probs, Matrix entropy, ConstMatrix logits,
                                  std::span<const std::int32_t> targets, double temperature) = 0;
    /// log_probs as above at temperature 1, and dlogits[r] = weights[r] * (softmax(logits[r]) - onehot(targets[r])),
    /// the gradient of sum_r -weights[r] * log_probs[r]. weights [1, rows] in A. dlogits [rows, V] in S; it may be
    /// `logits` where S = A. A row of weight 0 has gradient exactly 0.
    virtual void cross_entropy(Matrix log_probs, Matrix dlogits, ConstMatrix logits,
                               std::span<const std::int32_t> targets, ConstMatrix weights) = 0;

    // ---- memory

    /// to = from, elements one after another, and all operations before that are done when it returns.
    virtual void read(std::span<std::byte> to, ConstMatrix from) = 0;
    /// The same in the other direction; `from` may change when it returns. Both matrices are contiguous.
    virtual void write(Matrix to, std::span<const std::byte> from) = 0;
    virtual void zero(Matrix x) = 0;
    /// to = from, converted; same shape, any dtypes.
    virtual void copy(Matrix to, ConstMatrix from) = 0;
    /// y = a + b in S; y may be a or b.
    virtual void add(Matrix y, ConstMatrix a, ConstMatrix b) = 0;
    /// to[i] = from[rows[i]] in S.
    virtual void gather_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows) = 0;
    /// to[rows[i]] += from[i] in S, i ascending.
    virtual void scatter_add_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows) = 0;

    // ---- optimizer; contiguous vectors in A. Element i gives the same bits wherever the range begins.

    /// y = pieces[0] + pieces[1] + ... in that order; pieces [n, cols] in A or bf16. y may be pieces' first row. With
    /// `add`: y = y + pieces[0] + ...
    virtual void sum_rows(Matrix y, ConstMatrix pieces, bool add) = 0;
    /// Sum of squares in double over all vectors, one after another; within a vector in an order that depends on its
    /// number of elements only.
    [[nodiscard]] virtual double squared_norm(std::span<const ConstMatrix> vectors) = 0;
    [[nodiscard]] double squared_norm(ConstMatrix x) { return squared_norm(std::span(&x, 1)); }
    /// One step of Adam or AdamW (Kingma & Ba 2014; Loshchilov & Hutter 2017) as torch.optim computes it:
    ///   g = scale * gradient (+ weight_decay * w for Adam); w *= 1 - lr * weight_decay for AdamW;
    ///   m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    ///   w -= lr / bias_correction1 * m / (sqrt(v / bias_correction2) + eps).
    /// model_weight: w rounded to S, or empty where w is the model's weight itself.
    virtual void adam(Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight,
                      const AdamStep& step) = 0;
};

}  // namespace tessera
