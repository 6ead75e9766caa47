#include "kernels/reference/reference_ops.h"

#include <cstring>

#include "core/base/checked.h"
#include "kernels/check_arguments.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/cross_entropy.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/optimizer.h"
#include "kernels/reference/rmsnorm.h"
#include "kernels/reference/rope.h"
#include "kernels/reference/rows.h"
#include "kernels/reference/swiglu.h"

namespace tessera {
namespace {

using Ids = std::span<const std::int32_t>;

template <typename S>
class ReferenceOps : public Ops {
    using A = reference::Accumulate<S>;
    static constexpr DType kStorage = *dtype_of<S>;
    static constexpr DType kAccumulate = *dtype_of<A>;

  public:
    [[nodiscard]] DType storage() const override { return kStorage; }
    [[nodiscard]] DType accumulate() const override { return kAccumulate; }

    [[nodiscard]] std::int64_t workspace_bytes(const OpsLimits& limits) const override {
        const std::int64_t heads = checked_mul(limits.tokens, limits.kv_heads, "workspace");
        const std::int64_t bytes = checked_mul(2 * limits.head_dim + 1, sizeof(A), "workspace");
        return checked_mul(heads, bytes, "workspace");
    }

    void bind_workspace(std::span<std::byte> memory, const OpsLimits& limits) override {
        checks_.bind_workspace(memory, workspace_bytes(limits));
        workspace_ = memory;
    }

    void linear_forward(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) override {
        checks_.linear_forward(y, x, w, bias);
        reference::linear_forward(rows<S>(y), rows<S>(x), rows<S>(w), bias.empty() ? nullptr : bias.as<S>(), y.rows,
                                  y.cols, x.cols);
    }

    void logits_forward(Matrix logits, ConstMatrix x, ConstMatrix w) override {
        checks_.logits_forward(logits, x, w);
        reference::linear_forward(rows<A>(logits), rows<S>(x), rows<S>(w), static_cast<const S*>(nullptr), logits.rows,
                                  logits.cols, x.cols);
    }

    void linear_backward_input(Matrix dx, ConstMatrix dy, ConstMatrix w) override {
        checks_.linear_backward_input(dx, dy, w);
        reference::linear_backward_input(rows<S>(dx), rows<S>(dy), rows<S>(w), dx.rows, dy.cols, dx.cols);
    }

    void linear_backward_weight(Matrix dw, ConstMatrix dy, ConstMatrix x) override {
        checks_.linear_backward_weight(dw, dy, x);
        reference::linear_backward_weight(rows<A>(dw), rows<S>(dy), rows<S>(x), dy.rows, dw.rows, dw.cols);
    }

    void bias_backward(Matrix db, ConstMatrix dy) override {
        checks_.bias_backward(db, dy);
        reference::bias_backward(db.as<A>(), rows<S>(dy), dy.rows, dy.cols);
    }

    void embedding_forward(Matrix out, ConstMatrix table, Ids ids) override {
        checks_.embedding_forward(out, table, ids);
        copy_rows(rows<S>(out), rows<S>(table), ids, out.cols);
    }

    void embedding_backward(Matrix dtable, ConstMatrix dout, Ids ids) override {
        checks_.embedding_backward(dtable, dout, ids);
        for (std::int64_t t = 0; t < dout.rows; ++t) {
            reference::add_scaled(rows<A>(dtable)[ids[t]], A{1}, rows<S>(dout)[t], dout.cols);
        }
    }

    void add_rmsnorm_forward(Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta, ConstMatrix weight,
                             double eps) override {
        checks_.add_rmsnorm_forward(y, rstd, sum, x, delta, weight);
        if (!delta.empty()) {
            add_rows(rows<S>(sum), rows<S>(x), rows<S>(delta), x.rows, x.cols);
        }
        reference::rmsnorm_forward(rows<S>(y), rows<A>(rstd), delta.empty() ? rows<S>(x) : rows<S>(ConstMatrix(sum)),
                                   weight.as<S>(), x.rows, rstd.cols, weight.cols, eps);
    }

    void rmsnorm_backward(Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x,
                          ConstMatrix rstd, ConstMatrix weight) override {
        checks_.rmsnorm_backward(dx, dweight, dresidual, dy, x, rstd, weight);
        // First: dx may overwrite dy.
        if (!dweight.empty()) {
            reference::rmsnorm_backward_weight(dweight.as<A>(), rows<S>(dy), rows<S>(x), rows<A>(rstd), x.rows,
                                               rstd.cols, weight.cols);
        }
        const auto residual = dresidual.empty() ? reference::Rows<const S>{} : rows<S>(dresidual);
        reference::rmsnorm_backward_input(rows<S>(dx), residual, rows<S>(dy), rows<S>(x), rows<A>(rstd), weight.as<S>(),
                                          x.rows, rstd.cols, weight.cols);
    }

    void rope(Matrix x, const RopeTable& table, Ids positions, std::int64_t head_dim, bool inverse) override {
        checks_.rope(x, table, positions, head_dim);
        reference::rope(rows<S>(x), rows<A>(table.cos), rows<A>(table.sin), positions, x.cols / head_dim, head_dim,
                        inverse);
    }

    void attention_forward(Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                           const AttentionShape& shape) override {
        checks_.attention_forward(out, lse, q, k, v, shape);
        reference::attention_forward(rows<S>(out), rows<A>(lse), rows<S>(q), rows<S>(k), rows<S>(v), shape,
                                     attention_scratch(shape));
    }

    void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                            ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape) override {
        checks_.attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape);
        reference::attention_backward(rows<S>(dq), rows<S>(dk), rows<S>(dv), rows<S>(dout), rows<S>(q), rows<S>(k),
                                      rows<S>(v), rows<S>(out), rows<A>(lse), shape, attention_scratch(shape));
    }

    void swiglu_forward(Matrix act, ConstMatrix gate_up) override {
        checks_.swiglu_forward(act, gate_up);
        reference::swiglu_forward(rows<S>(act), rows<S>(gate_up), act.rows, act.cols);
    }

    void swiglu_backward(Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) override {
        checks_.swiglu_backward(dgate_up, dact, gate_up);
        reference::swiglu_backward(rows<S>(dgate_up), rows<S>(dact), rows<S>(gate_up), dact.rows, dact.cols);
    }

    void log_prob_forward(Matrix log_probs, Matrix entropy, ConstMatrix logits, Ids targets,
                          double temperature) override {
        checks_.log_prob_forward(log_probs, entropy, logits, targets, temperature);
        reference::log_prob_forward(log_probs.as<A>(), entropy.empty() ? nullptr : entropy.as<A>(), rows<A>(logits),
                                    targets, logits.cols, static_cast<A>(temperature));
    }

    void cross_entropy(Matrix log_probs, Matrix dlogits, ConstMatrix logits, Ids targets,
                       ConstMatrix weights) override {
        checks_.cross_entropy(log_probs, dlogits, logits, targets, weights);
        reference::cross_entropy(log_probs.as<A>(), rows<S>(dlogits), rows<A>(logits), targets, weights.as<A>(),
                                 logits.cols);
    }

    void read(std::span<std::byte> to, ConstMatrix from) override {
        checks_.read(to, from);
        std::copy_n(from.data, to.size(), to.data());
    }

    void write(Matrix to, std::span<const std::byte> from) override {
        checks_.write(to, from);
        std::ranges::copy(from, to.data);
    }

    void zero(Matrix x) override {
        checks_.zero(x);
        for (std::int64_t r = 0; r < x.rows && !x.empty(); ++r) {
            std::memset(x.row_range(r, 1).data, 0, static_cast<std::size_t>(x.cols * size_of(x.dtype)));
        }
    }

    void copy(Matrix to, ConstMatrix from) override {
        checks_.copy(to, from);
        for (std::int64_t r = 0; r < to.rows && !to.empty(); ++r) {
            convert(to.dtype, to.row_range(r, 1).data, from.dtype, from.row_range(r, 1).data, to.cols);
        }
    }

    void add(Matrix y, ConstMatrix a, ConstMatrix b) override {
        checks_.add(y, a, b);
        add_rows(rows<S>(y), rows<S>(a), rows<S>(b), y.rows, y.cols);
    }

    void gather_rows(Matrix to, ConstMatrix from, Ids indices) override {
        checks_.gather_rows(to, from, indices);
        copy_rows(rows<S>(to), rows<S>(from), indices, to.cols);
    }

    void scatter_add_rows(Matrix to, ConstMatrix from, Ids indices) override {
        checks_.scatter_add_rows(to, from, indices);
        for (std::int64_t r = 0; r < from.rows; ++r) {
            const reference::Rows<S> row{rows<S>(to)[indices[r]], 0};
            add_rows(row, {row.data, 0}, {rows<S>(from)[r], 0}, 1, to.cols);
        }
    }

    void sum_rows(Matrix y, ConstMatrix pieces, bool add) override {
        checks_.sum_rows(y, pieces);
        if (pieces.dtype == DType::bf16) {
            reference::sum_rows(y.as<A>(), rows<bfloat16>(pieces), pieces.rows, pieces.cols, add);
        } else {
            reference::sum_rows(y.as<A>(), rows<A>(pieces), pieces.rows, pieces.cols, add);
        }
    }

    [[nodiscard]] double squared_norm(std::span<const ConstMatrix> vectors) override {
        double sum = 0;
        for (const ConstMatrix& x : vectors) {
            checks_.squared_norm(x);
            sum += x.empty() ? 0 : reference::squared_norm(x.as<A>(), x.cols);
        }
        return sum;
    }

    void adam(Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight, const AdamStep& step) override {
        checks_.adam(w, m, v, gradient, model_weight);
        if (!w.empty()) {
            reference::adam(w.as<A>(), m.as<A>(), v.as<A>(), gradient.as<A>(),
                            model_weight.empty() ? nullptr : model_weight.as<S>(), w.cols, step);
        }
    }

  private:
    template <typename T>
    [[nodiscard]] static reference::Rows<T> rows(Matrix m) {
        return reference::rows_of<T>(m);
    }
    template <typename T>
    [[nodiscard]] static reference::Rows<const T> rows(ConstMatrix m) {
        return reference::rows_of<T>(m);
    }

    static void copy_rows(reference::Rows<S> to, reference::Rows<const S> from, Ids indices, std::int64_t cols) {
        for (std::int64_t r = 0; r < static_cast<std::int64_t>(indices.size()); ++r) {
            std::copy_n(from[indices[r]], cols, to[r]);
        }
    }

    static void add_rows(reference::Rows<S> y, reference::Rows<const S> a, reference::Rows<const S> b,
                         std::int64_t count, std::int64_t cols) {
        for (std::int64_t r = 0; r < count; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
                y[r][c] = static_cast<S>(static_cast<A>(a[r][c]) + static_cast<A>(b[r][c]));
            }
        }
    }

    [[nodiscard]] A* attention_scratch(const AttentionShape& shape) const {
        const std::int64_t needed =
            reference::attention_scratch(shape.starts.back(), shape.kv_heads, shape.head_dim) * size_of(kAccumulate);
        if (static_cast<std::int64_t>(workspace_.size()) < needed) {
            fail(ExitCode::internal, "attention of {} tokens needs a workspace of {} bytes, it has {}",
                 shape.starts.back(), needed, workspace_.size());
        }
        return reinterpret_cast<A*>(workspace_.data());
    }

    ArgumentChecks checks_{kStorage, kAccumulate};
    std::span<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Ops> make_reference_ops(DType storage) {
    switch (storage) {
        case DType::f64:
            return std::make_unique<ReferenceOps<double>>();
        case DType::f32:
            return std::make_unique<ReferenceOps<float>>();
        case DType::bf16:
            return std::make_unique<ReferenceOps<bfloat16>>();
        case DType::f16:
            break;
    }
    fail(ExitCode::internal, "no reference operations store {}", name_of(storage));
}

}  // namespace tessera
