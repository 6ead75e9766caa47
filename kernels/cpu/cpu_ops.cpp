#include "kernels/cpu/cpu_ops.h"

#include <omp.h>

#include <algorithm>

#include "kernels/check_arguments.h"
#include "kernels/cpu/adam.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/flash_attention.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/rmsnorm.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/swiglu.h"
#include "kernels/reference/reference_ops.h"

namespace tessera {

namespace {

/// Fails where the compiler was allowed instructions that this CPU does not have: better a message than a crash.
void require_instructions() {
#if defined(__x86_64__)
    const char* missing = nullptr;
#if defined(__AVX512BF16__)
    missing = __builtin_cpu_supports("avx512bf16") != 0 ? missing : "AVX512_BF16";
#endif
#if defined(__AVX512F__)
    missing = __builtin_cpu_supports("avx512f") != 0 ? missing : "AVX-512";
#endif
#if defined(__FMA__)
    missing = __builtin_cpu_supports("fma") != 0 ? missing : "FMA";
#endif
#if defined(__AVX2__)
    missing = __builtin_cpu_supports("avx2") != 0 ? missing : "AVX2";
#endif
    if (missing != nullptr) {
        fail(ExitCode::internal,
             "the program was compiled for a CPU with {}, which this one lacks: configure it again here, or with "
             "-DTESSERA_MARCH=x86-64-v3 for any CPU with AVX2 (empty: for any CPU)",
             missing);
    }
#endif
}

class CpuOps final : public Ops {
  public:
    explicit CpuOps(const OpsOptions& options)
        : options_(options),
          storage_(options.storage),
          threads_(omp_get_max_threads()),
          checks_(options.storage, DType::f32),
          products_(options.storage, threads_) {
        if (!options.fused || !flash()) {
            reference_ = make_reference_ops(options.storage);
        }
    }

    [[nodiscard]] DType storage() const override { return storage_; }
    [[nodiscard]] DType accumulate() const override { return DType::f32; }

    [[nodiscard]] std::int64_t workspace_bytes(const OpsLimits& limits) const override {
        // Operations run one after the other: they share it.
        const std::int64_t attention =
            flash() ? cpu::flash_attention_workspace(limits, storage_, threads_) : reference_->workspace_bytes(limits);
        return std::max({products_.workspace_bytes(limits), cpu::rmsnorm_workspace(limits.columns), attention});
    }

    void bind_workspace(std::span<std::byte> memory, const OpsLimits& limits) override {
        checks_.bind_workspace(memory, workspace_bytes(limits));
        workspace_ = memory;
        products_.bind_workspace(memory);
        if (!flash()) {
            reference_->bind_workspace(memory, limits);
        }
    }

    void linear_forward(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) override {
        checks_.linear_forward(y, x, w, bias);
        products_.forward(y, x, w, bias);
    }
    void logits_forward(Matrix logits, ConstMatrix x, ConstMatrix w) override {
        checks_.logits_forward(logits, x, w);
        products_.forward(logits, x, w, {});
    }
    void linear_backward_input(Matrix dx, ConstMatrix dy, ConstMatrix w) override {
        checks_.linear_backward_input(dx, dy, w);
        products_.backward_input(dx, dy, w);
    }
    void linear_backward_weight(Matrix dw, ConstMatrix dy, ConstMatrix x) override {
        checks_.linear_backward_weight(dw, dy, x);
        products_.backward_weight(dw, dy, x);
    }
    void bias_backward(Matrix db, ConstMatrix dy) override {
        if (!options_.fused) {
            return reference_->bias_backward(db, dy);
        }
        checks_.bias_backward(db, dy);
        cpu::bias_backward(db, dy, storage_, threads_);
    }

    void embedding_forward(Matrix out, ConstMatrix table, std::span<const std::int32_t> ids) override {
        if (!options_.fused) {
            return reference_->embedding_forward(out, table, ids);
        }
        checks_.embedding_forward(out, table, ids);
        cpu::gather_rows(out, table, ids, storage_, threads_);
    }
    void embedding_backward(Matrix dtable, ConstMatrix dout, std::span<const std::int32_t> ids) override {
        if (!options_.fused) {
            return reference_->embedding_backward(dtable, dout, ids);
        }
        checks_.embedding_backward(dtable, dout, ids);
        cpu::accumulate_rows(dtable, dout, ids, storage_, threads_);
    }

    void add_rmsnorm_forward(Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta, ConstMatrix weight,
                             double eps) override {
        if (!options_.fused) {
            return reference_->add_rmsnorm_forward(y, rstd, sum, x, delta, weight, eps);
        }
        checks_.add_rmsnorm_forward(y, rstd, sum, x, delta, weight);
        cpu::add_rmsnorm_forward(y, rstd, sum, x, delta, weight, eps, storage_, threads_);
    }
    void rmsnorm_backward(Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x,
                          ConstMatrix rstd, ConstMatrix weight) override {
        if (!options_.fused) {
            return reference_->rmsnorm_backward(dx, dweight, dresidual, dy, x, rstd, weight);
        }
        checks_.rmsnorm_backward(dx, dweight, dresidual, dy, x, rstd, weight);
        cpu::rmsnorm_backward(dx, dweight, dresidual, dy, x, rstd, weight, storage_, workspace_, threads_);
    }

    void rope(Matrix x, const RopeTable& table, std::span<const std::int32_t> positions, std::int64_t head_dim,
              bool inverse) override {
        if (!options_.fused) {
            return reference_->rope(x, table, positions, head_dim, inverse);
        }
        checks_.rope(x, table, positions, head_dim);
        cpu::rope(x, table, positions, head_dim, inverse, storage_, threads_);
    }

    void attention_forward(Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                           const AttentionShape& shape) override {
        if (!flash()) {
            return reference_->attention_forward(out, lse, q, k, v, shape);
        }
        checks_.attention_forward(out, lse, q, k, v, shape);
        cpu::flash_attention_forward(out, lse, q, k, v, shape, storage_, workspace_, threads_);
    }
    void attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                            ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape) override {
        if (!flash()) {
            return reference_->attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape);
        }
        checks_.attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape);
        cpu::flash_attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape, storage_, workspace_, threads_);
    }

    void swiglu_forward(Matrix act, ConstMatrix gate_up) override {
        if (!options_.fused) {
            return reference_->swiglu_forward(act, gate_up);
        }
        checks_.swiglu_forward(act, gate_up);
        cpu::swiglu_forward(act, gate_up, storage_, threads_);
    }
    void swiglu_backward(Matrix dgate_up, ConstMatrix dact, ConstMatrix gate_up) override {
        if (!options_.fused) {
            return reference_->swiglu_backward(dgate_up, dact, gate_up);
        }
        checks_.swiglu_backward(dgate_up, dact, gate_up);
        cpu::swiglu_backward(dgate_up, dact, gate_up, storage_, threads_);
    }

    void log_prob_forward(Matrix log_probs, Matrix entropy, ConstMatrix logits, std::span<const std::int32_t> targets,
                          double temperature) override {
        if (!options_.fused) {
            return reference_->log_prob_forward(log_probs, entropy, logits, targets, temperature);
        }
        checks_.log_prob_forward(log_probs, entropy, logits, targets, temperature);
        cpu::log_prob_forward(log_probs, entropy, logits, targets, temperature, threads_);
    }
    void cross_entropy(Matrix log_probs, Matrix dlogits, ConstMatrix logits, std::span<const std::int32_t> targets,
                       ConstMatrix weights) override {
        if (!options_.fused) {
            return reference_->cross_entropy(log_probs, dlogits, logits, targets, weights);
        }
        checks_.cross_entropy(log_probs, dlogits, logits, targets, weights);
        cpu::cross_entropy(log_probs, dlogits, logits, targets, weights, storage_, threads_);
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
        cpu::zero(x, threads_);
    }
    void copy(Matrix to, ConstMatrix from) override {
        checks_.copy(to, from);
        cpu::copy(to, from, threads_);
    }
    void add(Matrix y, ConstMatrix a, ConstMatrix b) override {
        if (!options_.fused) {
            return reference_->add(y, a, b);
        }
        checks_.add(y, a, b);
        cpu::add(y, a, b, storage_, threads_);
    }
    void gather_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows) override {
        checks_.gather_rows(to, from, rows);
        cpu::gather_rows(to, from, rows, storage_, threads_);
    }
    void scatter_add_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows) override {
        if (!options_.fused) {
            return reference_->scatter_add_rows(to, from, rows);
        }
        checks_.scatter_add_rows(to, from, rows);
        cpu::accumulate_rows(to, from, rows, storage_, threads_);
    }

    void sum_rows(Matrix y, ConstMatrix pieces, bool add) override {
        if (!options_.fused) {
            return reference_->sum_rows(y, pieces, add);
        }
        checks_.sum_rows(y, pieces);
        cpu::sum_rows(y, pieces, add, threads_);
    }
    [[nodiscard]] double squared_norm(std::span<const ConstMatrix> vectors) override {
        if (!options_.fused) {
            return reference_->squared_norm(vectors);
        }
        double sum = 0;
        for (const ConstMatrix& x : vectors) {
            checks_.squared_norm(x);
            sum += cpu::squared_norm(x, threads_);
        }
        return sum;
    }
    void adam(Matrix w, Matrix m, Matrix v, ConstMatrix gradient, Matrix model_weight, const AdamStep& step) override {
        if (step.rounding) {
            fail(ExitCode::internal, "the CPU does not round weights at random");
        }
        if (!options_.fused) {
            return reference_->adam(w, m, v, gradient, model_weight, step);
        }
        checks_.adam(w, m, v, gradient, model_weight);
        cpu::adam(w, m, v, gradient, model_weight, step, storage_, threads_);
    }

  private:
    [[nodiscard]] bool flash() const { return options_.attention == AttentionKind::flash; }

    OpsOptions options_;
    DType storage_;
    int threads_;
    ArgumentChecks checks_;
    cpu::Products products_;
    std::unique_ptr<Ops> reference_;  // only where an option asks for it
    std::span<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const OpsOptions& options) {
    require_instructions();
    if (options.storage != DType::f32 && options.storage != DType::bf16) {
        fail(ExitCode::internal, "the CPU kernels store f32 or bf16, not {}", name_of(options.storage));
    }
    if (options.attention == AttentionKind::cudnn) {
        fail(ExitCode::usage,
             "model.attn_implementation = \"cudnn\" is for GPUs, and this computes on the CPU: say device = \"cuda\", "
             "which also tells why no GPU is used, or \"flash\"");
    }
    return std::make_unique<CpuOps>(options);
}

}  // namespace tessera
