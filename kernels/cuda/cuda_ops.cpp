#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <numeric>

#include "core/base/checked.h"
#include "kernels/check_arguments.h"
#include "kernels/cuda/adam.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/index_cache.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/reductions.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/swiglu.h"

namespace tessera::cuda {
namespace {

using Indices = std::span<const std::int32_t>;

/// 0, 1, ... sorted stably by what each index is, and the indices in that order.
struct Sorted {
    std::vector<std::int32_t> order;
    std::vector<std::int32_t> indices;

    explicit Sorted(Indices values) : order(values.size()) {
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return values[static_cast<std::size_t>(i)]; });
        std::ranges::transform(order, std::back_inserter(indices),
                               [&](std::int32_t i) { return values[static_cast<std::size_t>(i)]; });
    }
};

class CudaOps final : public Ops {
  public:
    CudaOps(const OpsOptions& options, Streams& streams)
        : storage_(options.storage),
          checks_(options.storage, DType::f32),
          streams_(streams),
          products_(make_products(options.tf32)),
          indices_(streams) {
        if (options.attention == AttentionKind::cudnn) {
            cudnn_ = make_cudnn_attention(options.storage, indices_);
        }
    }

    [[nodiscard]] DType storage() const override { return storage_; }
    [[nodiscard]] DType accumulate() const override { return DType::f32; }

    [[nodiscard]] std::int64_t workspace_bytes(const OpsLimits& limits) const override {
        if (limits.head_dim > kLargestAttentionHead) {
            fail(ExitCode::usage, "heads of {} are larger than the GPU's attention takes ({}); say device = \"cpu\"",
                 limits.head_dim, kLargestAttentionHead);
        }
        return scratch_bytes(limits) + cudnn_bytes(limits) + round_up(products_->workspace_bytes(), kMemoryAlignment) +
               IndexCache::workspace_bytes(largest_array(limits)) + kMemoryAlignment;
    }

    void bind_workspace(std::span<std::byte> memory, const OpsLimits& limits) override {
        checks_.bind_workspace(memory, workspace_bytes(limits));
        const auto take = [&](std::int64_t bytes) {
            const std::span<std::byte> piece = memory.first(static_cast<std::size_t>(bytes));
            memory = memory.subspan(static_cast<std::size_t>(bytes));
            return piece;
        };
        scratch_ = take(scratch_bytes(limits));
        products_->bind_workspace(take(round_up(products_->workspace_bytes(), kMemoryAlignment)));
        indices_.bind(take(IndexCache::workspace_bytes(largest_array(limits))), largest_array(limits));
        norm_ = {take(kMemoryAlignment).data(), DType::f64, 1, 1};
        if (cudnn_) {
            cudnn_->bind_workspace(take(cudnn_bytes(limits)), limits);
        }
    }

    void linear_forward(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) override {
        checks_.linear_forward(y, x, w, bias);
        products_->forward(stream(), y, x, w, bias);
    }
    void logits_forward(Matrix logits, ConstMatrix x, ConstMatrix w) override {
        checks_.logits_forward(logits, x, w);
        products_->forward(stream(), logits, x, w, {});
    }
    void linear_backward_input(Matrix dx, ConstMatrix dy, ConstMatrix w) override {
        checks_.linear_backward_input(dx, dy, w);
        products_->backward_input(stream(), dx, dy, w);
    }
    void linear_backward_weight(Matrix dw, ConstMatrix dy, ConstMatrix x) override {
        checks_.linear_backward_weight(dw, dy, x);
        products_->backward_weight(stream(), dw, dy, x);
    }
    void bias_backward(Matrix db, ConstMatrix dy) override {
        checks_.bias_backward(db, dy);
        cuda::bias_backward(stream(), db, dy, scratch_);
    }

    void embedding_forward(Matrix out, ConstMatrix table, Indices ids) override {
        checks_.embedding_forward(out, table, ids);
        cuda::embedding_forward(stream(), out, table, on_device(ids));
    }
    void embedding_backward(Matrix dtable, ConstMatrix dout, Indices ids) override {
        checks_.embedding_backward(dtable, dout, ids);
        const Sorted sorted(ids);
        cuda::embedding_backward(stream(), dtable, dout, on_device(sorted.order), on_device(sorted.indices));
    }

    void add_rmsnorm_forward(Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta, ConstMatrix weight,
                             double eps) override {
        checks_.add_rmsnorm_forward(y, rstd, sum, x, delta, weight);
        cuda::add_rmsnorm_forward(stream(), y, rstd, sum, x, delta, weight, eps);
    }
    void rmsnorm_backward(Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x,
                          ConstMatrix rstd, ConstMatrix weight) override {
        checks_.rmsnorm_backward(dx, dweight, dresidual, dy, x, rstd, weight);
        cuda::rmsnorm_backward(stream(), dx, dweight, dresidual, dy, x, rstd, weight, scratch_);
    }

    void rope(Matrix x, const RopeTable& table, Indices positions, std::int64_t head_dim, bool inverse) override {
        checks_.rope(x, table, positions, head_dim);
        cuda::rope(stream(), x, table, on_device(positions), head_dim, inverse);
    }

    void attention_forward(Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                           const AttentionShape& shape) override {
        checks_.attention_forward(out, lse, q, k, v, shape);
        if (cudnn_) {
            return cudnn_->forward(stream(), out, lse, q, k, v, shape);
        }
        const auto tiles = attention_tiles(shape.starts, attention_tile_rows(storage_, shape.head_dim).forward);
        cuda::attention_forward(stream(), out, lse, q, k, v, shape, on_device(tiles));
    }
    void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                            ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape) override {
        checks_.attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape);
        if (cudnn_) {
            return cudnn_->backward(stream(), dq, dk, dv, dout, q, k, v, out, lse, shape);
        }
        const auto tiles = attention_tiles(shape.starts, attention_tile_rows(storage_, shape.head_dim).backward);
        cuda::attention_backward(stream(), dq, dk, dv, dout, q, k, v, out, lse, shape, on_device(tiles), scratch_);
    }

    void swiglu_forward(Matrix act, ConstMatrix gate_up) override {
        checks_.swiglu_forward(act, gate_up);
        cuda::swiglu_forward(stream(), act, gate_up);
    }
    void swiglu_backward(Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) override {
        checks_.swiglu_backward(dgate_up, dact, gate_up);
        cuda::swiglu_backward(stream(), dgate_up, dact, gate_up);
    }

    void log_prob_forward(Matrix log_probs, Matrix entropy, ConstMatrix logits, Indices targets,
                          double temperature) override {
        checks_.log_prob_forward(log_probs, entropy, logits, targets, temperature);
        cuda::log_prob_forward(stream(), log_probs, entropy, logits, on_device(targets), temperature);
    }
    void cross_entropy(Matrix log_probs, Matrix dlogits, ConstMatrix logits, Indices targets,
                       ConstMatrix weights) override {
        checks_.cross_entropy(log_probs, dlogits, logits, targets, weights);
        cuda::cross_entropy(stream(), log_probs, dlogits, logits, on_device(targets), weights);
    }

    void read(std::span<std::byte> to, ConstMatrix from) override {
        checks_.read(to, from);
        streams_.wait(stream());  // a copy to memory that is not pinned blocks, and nobody would watch
        simt::copy_async(to.data(), from.data, static_cast<std::int64_t>(to.size()), stream());
        streams_.wait(stream());
    }
    void write(Matrix to, std::span<const std::byte> from) override {
        checks_.write(to, from);
        const auto bytes = static_cast<std::int64_t>(from.size());
        if (bytes <= indices_.largest()) {
            simt::copy_async(to.data, indices_.place(from), bytes, stream());  // through pinned memory, without waiting
            return;
        }
        streams_.wait(stream());
        simt::copy_async(to.data, from.data(), bytes, stream());
        streams_.wait(stream());
    }
    void zero(Matrix x) override {
        checks_.zero(x);
        cuda::zero(stream(), x);
    }
    void copy(Matrix to, ConstMatrix from) override {
        checks_.copy(to, from);
        cuda::copy(stream(), to, from);
    }
    void add(Matrix y, ConstMatrix a, ConstMatrix b) override {
        checks_.add(y, a, b);
        cuda::add(stream(), y, a, b);
    }
    void gather_rows(Matrix to, ConstMatrix from, Indices rows) override {
        checks_.gather_rows(to, from, rows);
        cuda::gather_rows(stream(), to, from, on_device(rows));
    }
    void scatter_add_rows(Matrix to, ConstMatrix from, Indices rows) override {
        checks_.scatter_add_rows(to, from, rows);
        const Sorted sorted(rows);
        cuda::scatter_add_rows(stream(), to, from, on_device(sorted.order), on_device(sorted.indices));
    }

    void sum_rows(Matrix y, ConstMatrix pieces, bool add) override {
        checks_.sum_rows(y, pieces);
        cuda::sum_rows(stream(), y, pieces, add);
    }
    [[nodiscard]] double squared_norm(std::span<const ConstMatrix> vectors) override {
        bool add = false;
        for (const ConstMatrix& x : vectors) {
            checks_.squared_norm(x);
            cuda::squared_norm(stream(), norm_.as<double>(), x, add, scratch_);
            add = true;
        }
        double sum = 0;
        if (!vectors.empty()) {
            read(std::as_writable_bytes(std::span(&sum, 1)), norm_);
        }
        return sum;
    }
    void adam(Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight, const AdamStep& step) override {
        checks_.adam(w, m, v, gradient, model_weight);
        cuda::adam(stream(), w, m, v, gradient, model_weight, step);
    }

  private:
    /// Operations run one after the other: they share it.
    [[nodiscard]] static std::int64_t scratch_bytes(const OpsLimits& limits) {
        const std::int64_t heads = limits.tokens * std::max(limits.heads, limits.kv_heads);
        return round_up(std::max({column_sums_workspace_bytes(limits.tokens, limits.columns),
                                  rmsnorm_backward_workspace_bytes(limits.tokens, limits.columns),
                                  rmsnorm_backward_workspace_bytes(heads, limits.head_dim),
                                  attention_workspace_bytes(limits.tokens, limits.heads), reduction_workspace_bytes()}),
                        kMemoryAlignment);
    }
    [[nodiscard]] std::int64_t cudnn_bytes(const OpsLimits& limits) const {
        return cudnn_ ? round_up(cudnn_->workspace_bytes(limits), kMemoryAlignment) : 0;
    }
    /// Of an array of indices or tiles: a segment, and with it a tile, may be a single token.
    [[nodiscard]] static std::int64_t largest_array(const OpsLimits& limits) {
        return checked_mul(limits.tokens, static_cast<std::int64_t>(sizeof(AttentionTile)), "bytes of tiles");
    }

    [[nodiscard]] simt::Stream stream() const { return streams_.current(); }
    [[nodiscard]] const std::int32_t* on_device(Indices values) { return indices_.on_device(values).data(); }
    [[nodiscard]] std::span<const AttentionTile> on_device(const std::vector<AttentionTile>& tiles) {
        return indices_.on_device(std::span(tiles));
    }

    DType storage_;
    ArgumentChecks checks_;
    Streams& streams_;
    std::unique_ptr<Products> products_;
    std::span<std::byte> scratch_;
    Matrix norm_;
    IndexCache indices_;
    std::unique_ptr<LibraryAttention> cudnn_;  // instead of the attention of this library
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(const OpsOptions& options, Streams& streams) {
    if (!options.fused) {
        fail(ExitCode::usage, "model.fused_kernels = false is for device = \"cpu\"");
    }
    if (options.attention == AttentionKind::eager) {
        fail(ExitCode::usage, "model.attn_implementation = \"eager\" is for device = \"cpu\"");
    }
    return std::make_unique<CudaOps>(options, streams);
}

}  // namespace tessera::cuda
