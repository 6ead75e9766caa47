// How fast the CPU backend is, on the shapes of a small Llama (hidden 576, 9 heads and 3 key-value heads of 64, 1536 in
// the MLP, vocabulary 49152) with 1024 tokens: GFLOP/s of products and attention, GB/s of the rest. The best of several
// runs of each, in one line.
//
//   kernel_bench [f32|bf16] [composed]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_ops.h"

namespace tessera {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kHidden = 576;
constexpr std::int64_t kInner = 1536;
constexpr std::int64_t kHeads = 9;
constexpr std::int64_t kKvHeads = 3;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kVocabulary = 49152;
constexpr std::int64_t kLogitsRows = 256;
constexpr std::int64_t kLongest = 2048;

class Bench {
  public:
    explicit Bench(const OpsOptions& options) : ops_(make_cpu_ops(options)), storage_(options.storage) {
        const OpsLimits limits = {.tokens = kLongest,
                                  .columns = 2 * kInner,
                                  .weight_elements = kVocabulary * kHidden,
                                  .logits_rows = kLogitsRows,
                                  .vocabulary = kVocabulary,
                                  .heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .longest_segment = kLongest};
        ops_->bind_workspace(allocate(ops_->workspace_bytes(limits)), limits);
    }

    void products() {
        for (const auto& [name, in, out] :
             {std::tuple{"qkv", kHidden, (kHeads + 2 * kKvHeads) * kHeadDim}, std::tuple{"out", kHidden, kHidden},
              std::tuple{"gate_up", kHidden, 2 * kInner}, std::tuple{"down", kInner, kHidden}}) {
            const double flops = 2.0 * kTokens * static_cast<double>(in) * static_cast<double>(out);
            const Matrix x = random(storage_, kTokens, in);
            const Matrix w = random(storage_, out, in);
            const Matrix y = random(storage_, kTokens, out);
            const Matrix dw = random(DType::f32, out, in);
            report(fmt::format("{} forward", name), flops, "GFLOP", [&] { ops_->linear_forward(y, x, w, {}); });
            report(fmt::format("{} dx", name), flops, "GFLOP", [&] { ops_->linear_backward_input(x, y, w); });
            report(fmt::format("{} dw", name), flops, "GFLOP", [&] { ops_->linear_backward_weight(dw, y, x); });
        }
        const double flops = 2.0 * kLogitsRows * kHidden * kVocabulary;
        const Matrix x = random(storage_, kLogitsRows, kHidden);
        const Matrix w = random(storage_, kVocabulary, kHidden);
        const Matrix dw = random(DType::f32, kVocabulary, kHidden);
        const Matrix logits = random(DType::f32, kLogitsRows, kVocabulary);
        const Matrix dlogits = random(storage_, kLogitsRows, kVocabulary);
        report("logits forward", flops, "GFLOP", [&] { ops_->logits_forward(logits, x, w); });
        report("logits dx", flops, "GFLOP", [&] { ops_->linear_backward_input(x, dlogits, w); });
        report("logits dw", flops, "GFLOP", [&] { ops_->linear_backward_weight(dw, dlogits, x); });
    }

    void attention(std::int64_t tokens, std::int64_t length) {
        std::vector<std::int64_t> starts;
        for (std::int64_t start = 0; start <= tokens; start += length) {
            starts.push_back(start);
        }
        const AttentionShape shape = {.heads = kHeads,
                                      .kv_heads = kKvHeads,
                                      .head_dim = kHeadDim,
                                      .scale = 1 / std::sqrt(static_cast<double>(kHeadDim)),
                                      .starts = starts};
        const std::int64_t columns = (kHeads + 2 * kKvHeads) * kHeadDim;
        const Matrix qkv = random(storage_, tokens, columns);
        const Matrix gradients = random(storage_, tokens, columns);
        const Matrix out = random(storage_, tokens, kHeads * kHeadDim);
        const Matrix dout = random(storage_, tokens, kHeads * kHeadDim);
        const Matrix lse = random(DType::f32, tokens, kHeads);
        const auto q = [](Matrix m) { return m.col_range(0, kHeads * kHeadDim); };
        const auto k = [](Matrix m) { return m.col_range(kHeads * kHeadDim, kKvHeads * kHeadDim); };
        const auto v = [](Matrix m) { return m.col_range((kHeads + kKvHeads) * kHeadDim, kKvHeads * kHeadDim); };
        // Two products of the visible half of the scores; five in the backward pass.
        const double product = static_cast<double>(tokens * length * kHeads * kHeadDim);
        report(fmt::format("attention {} x {} forward", tokens / length, length), 2 * product, "GFLOP",
               [&] { ops_->attention_forward(out, lse, q(qkv), k(qkv), v(qkv), shape); });
        report(fmt::format("attention {} x {} backward", tokens / length, length), 5 * product, "GFLOP", [&] {
            ops_->attention_backward(q(gradients), k(gradients), v(gradients), dout, q(qkv), k(qkv), v(qkv), out, lse,
                                     shape);
        });
    }

    /// Bytes are those that must move: every input read and every output written once.
    void rest() {
        const double s = static_cast<double>(size_of(storage_));
        const Matrix x = random(storage_, kTokens, kHidden);
        const Matrix delta = random(storage_, kTokens, kHidden);
        const Matrix y = random(storage_, kTokens, kHidden);
        const Matrix weight = random(storage_, 1, kHidden);
        const Matrix dweight = random(DType::f32, 1, kHidden);
        const Matrix rstd = random(DType::f32, kTokens, 1);
        const double row = s * kTokens * kHidden;
        report("add and rmsnorm", 4 * row, "GB",
               [&] { ops_->add_rmsnorm_forward(y, rstd, x, x, delta, weight, 1e-5); });
        report("rmsnorm backward", 4 * row, "GB",
               [&] { ops_->rmsnorm_backward(delta, dweight, delta, y, x, rstd, weight); });

        const Matrix cosines = random(DType::f32, kTokens, kHeadDim / 2);
        const Matrix sines = random(DType::f32, kTokens, kHeadDim / 2);
        std::vector<std::int32_t> positions(kTokens);
        for (std::int32_t t = 0; t < kTokens; ++t) {
            positions[static_cast<std::size_t>(t)] = t;
        }
        report("rope", 2 * row, "GB", [&] { ops_->rope(x, {cosines, sines}, positions, kHeadDim, false); });

        const Matrix gate_up = random(storage_, kTokens, 2 * kInner);
        const Matrix act = random(storage_, kTokens, kInner);
        const Matrix dgate_up = random(storage_, kTokens, 2 * kInner);
        const double inner = s * kTokens * kInner;
        report("swiglu", 3 * inner, "GB", [&] { ops_->swiglu_forward(act, gate_up); });
        report("swiglu backward", 5 * inner, "GB", [&] { ops_->swiglu_backward(dgate_up, act, gate_up); });

        const Matrix logits = random(DType::f32, kLogitsRows, kVocabulary);
        const Matrix dlogits = random(storage_, kLogitsRows, kVocabulary);
        const Matrix log_probs = random(DType::f32, 1, kLogitsRows);
        const Matrix weights = random(DType::f32, 1, kLogitsRows);
        const std::vector<std::int32_t> targets(kLogitsRows, 7);
        const double read = 4.0 * kLogitsRows * kVocabulary;
        report("log_prob", read, "GB", [&] { ops_->log_prob_forward(log_probs, {}, logits, targets, 1); });
        report("cross_entropy", read * (1 + s / 4), "GB",
               [&] { ops_->cross_entropy(log_probs, dlogits, logits, targets, weights); });

        constexpr std::int64_t kParameters = 1 << 24;
        const Matrix w = random(DType::f32, 1, kParameters);
        const Matrix m = random(DType::f32, 1, kParameters);
        const Matrix v = random(DType::f32, 1, kParameters);
        const Matrix gradient = random(DType::f32, 1, kParameters);
        const Matrix published = storage_ == DType::f32 ? Matrix() : random(storage_, 1, kParameters);
        ops_->zero(v);
        report("adam", (28.0 + (storage_ == DType::f32 ? 0 : s)) * kParameters, "GB",
               [&] { ops_->adam(w, m, v, gradient, published, {.lr = 1e-9}); });
        report("squared_norm", 4.0 * kParameters, "GB", [&] { norm_ = ops_->squared_norm(w); });

        const Matrix table = random(storage_, kVocabulary, kHidden);
        const Matrix dtable = random(DType::f32, kVocabulary, kHidden);
        std::vector<std::int32_t> ids(kTokens);
        for (std::int32_t& id : ids) {
            id = static_cast<std::int32_t>(generator_() % static_cast<std::uint32_t>(kVocabulary));
        }
        report("embedding", 2 * row, "GB", [&] { ops_->embedding_forward(x, table, ids); });
        report("embedding backward", row + 8.0 * kTokens * kHidden, "GB",
               [&] { ops_->embedding_backward(dtable, x, ids); });
        report("bias backward", inner * 2, "GB", [&] { ops_->bias_backward(random_bias_, gate_up); });
    }

  private:
    using Clock = std::chrono::steady_clock;

    struct Free {
        void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
    };

    std::span<std::byte> allocate(std::int64_t bytes) {
        const auto size = static_cast<std::size_t>(bytes);
        buffers_.emplace_back(static_cast<std::byte*>(::operator new[](size, std::align_val_t{64})));
        return {buffers_.back().get(), size};
    }

    Matrix random(DType dtype, std::int64_t rows, std::int64_t cols) {
        const Matrix matrix(allocate(rows * cols * size_of(dtype)).data(), dtype, rows, cols);
        std::vector<float> values(static_cast<std::size_t>(cols));
        std::uniform_real_distribution<float> uniform(-1, 1);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (float& value : values) {
                value = uniform(generator_);
            }
            convert(dtype, matrix.row_range(r, 1).data, DType::f32, values.data(), cols);
        }
        return matrix;
    }

    static void report(std::string_view name, double work, std::string_view unit, const std::function<void()>& run) {
        run();
        double best = 1e9;
        const auto begin = Clock::now();
        const std::chrono::duration<double> enough(0.5);
        for (int repeats = 0; repeats < 3 || (repeats < 200 && Clock::now() - begin < enough); ++repeats) {
            const auto start = Clock::now();
            run();
            best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
        }
        fmt::print("{:<32}{:>10.3f} ms{:>9.1f} {}/s\n", name, best * 1e3, work / best * 1e-9, unit);
    }

    std::unique_ptr<Ops> ops_;
    DType storage_;
    std::vector<std::unique_ptr<std::byte[], Free>> buffers_;
    std::mt19937 generator_{1};
    Matrix random_bias_ = random(DType::f32, 1, 2 * kInner);
    double norm_ = 0;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
    tessera::OpsOptions options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        if (argument == "bf16") {
            options.storage = tessera::DType::bf16;
        } else if (argument == "composed") {
            options.fused = false;
            options.flash = false;
        } else if (argument != "f32") {
            fmt::print(stderr, "usage: kernel_bench [f32|bf16] [composed]\n");
            return 64;
        }
    }
    tessera::Bench bench(options);
    bench.products();
    bench.attention(1024, 512);
    bench.attention(2048, 2048);
    bench.rest();
    return 0;
}
