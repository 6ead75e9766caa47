// How fast a backend is, operation by operation: TFLOP/s of products and attention beside the rate of a large product,
// GB/s of the rest beside the rate of a large copy, all measured in the same run. The median of several batches of
// calls, each batch long enough to time. Written as a table, and with --json as one object.
//
//   kernel_bench [--shape NAME] [--dtype f32|bf16] [--composed] [--cuda LIBRARY] [--json FILE]
//
// --shape: smol (135M parameters, the default), 0.5B, 8B; tiny runs through every operation once, for tests and tools
// that are slow. --cuda: on the device of this backend instead of the CPU; in bf16 with cuDNN's attention beside its
// own, where it is built in.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "apps/cuda_library.h"
#include "core/base/checked.h"
#include "kernels/cpu/cpu_device.h"

namespace tessera {
namespace {

struct Shape {
    const char* name;
    std::int64_t tokens;
    std::int64_t hidden;
    std::int64_t inner;
    std::int64_t heads;
    std::int64_t kv_heads;
    std::int64_t head_dim;
    std::int64_t vocabulary;
    std::int64_t logits_rows;
    std::vector<std::int64_t> lengths;  // of the segments of attention, each dividing longest
    std::int64_t longest;
    std::int64_t parameters;  // of an optimizer step
    std::int64_t square;      // rows and columns of the product that the others are compared with
    std::int64_t copied;      // elements of the copy that the others are compared with

    [[nodiscard]] std::int64_t q() const { return heads * head_dim; }
    [[nodiscard]] std::int64_t kv() const { return kv_heads * head_dim; }
    [[nodiscard]] std::int64_t qkv() const { return q() + 2 * kv(); }
};

// SmolLM2-135M, Qwen2.5-0.5B, Llama-3.1-8B.
const std::vector<Shape> kShapes = {
    {"tiny", 24, 64, 96, 2, 1, 32, 96, 8, {12, 24}, 24, 1000, 32, 4096},
    {"smol", 1024, 576, 1536, 9, 3, 64, 49152, 256, {512, 2048}, 2048, 1 << 24, 1024, 1 << 24},
    {"0.5B", 8192, 896, 4864, 14, 2, 64, 151936, 2048, {512, 4096}, 8192, 1 << 27, 8192, 1 << 28},
    {"8B", 8192, 4096, 14336, 32, 8, 128, 128256, 2048, {512, 4096, 8192}, 8192, 1 << 27, 8192, 1 << 28},
};

class Bench {
  public:
    Bench(Device& device, const OpsOptions& options, const Shape& shape)
        : device_(device), storage_(options.storage), shape_(shape) {
        block_.resize(1 << 16);
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::ranges::generate(block_, [&] { return uniform(generator_); });
        use(options);
    }

    /// Measures the operations of `options` from now on, which have the same storage.
    void use(const OpsOptions& options) {
        const std::int64_t most = std::max({shape_.longest, shape_.tokens, shape_.square});
        const std::int64_t columns = std::max({2 * shape_.inner, shape_.qkv(), shape_.square});
        const OpsLimits limits = {
            .tokens = most,
            .columns = columns,
            .weight_elements = std::max({shape_.vocabulary * shape_.hidden, 2 * shape_.inner * shape_.hidden,
                                         shape_.qkv() * shape_.hidden, shape_.square * shape_.square}),
            .logits_rows = shape_.logits_rows,
            .vocabulary = shape_.vocabulary,
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .longest_segment = shape_.longest};
        std::unique_ptr<Ops> ops = device_.make_ops(options);
        buffers_.clear();
        ops->bind_workspace(allocate(ops->workspace_bytes(limits)), limits);
        ops_ = std::move(ops);
        attention_ = options.attention == AttentionKind::cudnn ? "cuDNN attention" : "attention";
    }

    /// What the device does at most: the others are compared with it.
    void baselines() {
        const std::int64_t n = shape_.square;
        const Matrix x = random(storage_, n, n);
        const Matrix w = random(storage_, n, n);
        const Matrix y = random(storage_, n, n);
        const double cube = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
        report(fmt::format("product {0} x {0} x {0}", n), 2 * cube, kFlops, [&] { ops_->linear_forward(y, x, w, {}); });
        const Matrix from = random(DType::f32, 1, shape_.copied);
        const Matrix to = random(DType::f32, 1, shape_.copied);
        report("copy", 8.0 * static_cast<double>(shape_.copied), kBytes, [&] { ops_->copy(to, from); });
        free_all();
    }

    void products() {
        for (const auto& [name, in, out] :
             {std::tuple{"qkv", shape_.hidden, shape_.qkv()}, std::tuple{"out", shape_.q(), shape_.hidden},
              std::tuple{"gate_up", shape_.hidden, 2 * shape_.inner},
              std::tuple{"down", shape_.inner, shape_.hidden}}) {
            const double flops = 2.0 * static_cast<double>(shape_.tokens * in * out);
            const Matrix x = random(storage_, shape_.tokens, in);
            const Matrix w = random(storage_, out, in);
            const Matrix y = random(storage_, shape_.tokens, out);
            const Matrix dw = random(DType::f32, out, in);
            report(fmt::format("{} forward", name), flops, kFlops, [&] { ops_->linear_forward(y, x, w, {}); });
            report(fmt::format("{} dx", name), flops, kFlops, [&] { ops_->linear_backward_input(x, y, w); });
            report(fmt::format("{} dw", name), flops, kFlops, [&] { ops_->linear_backward_weight(dw, y, x); });
        }
        free_all();
        const double flops = 2.0 * static_cast<double>(shape_.logits_rows * shape_.hidden * shape_.vocabulary);
        const Matrix x = random(storage_, shape_.logits_rows, shape_.hidden);
        const Matrix w = random(storage_, shape_.vocabulary, shape_.hidden);
        const Matrix dw = random(DType::f32, shape_.vocabulary, shape_.hidden);
        const Matrix logits = random(DType::f32, shape_.logits_rows, shape_.vocabulary);
        const Matrix dlogits = random(storage_, shape_.logits_rows, shape_.vocabulary);
        report("logits forward", flops, kFlops, [&] { ops_->logits_forward(logits, x, w); });
        report("logits dx", flops, kFlops, [&] { ops_->linear_backward_input(x, dlogits, w); });
        report("logits dw", flops, kFlops, [&] { ops_->linear_backward_weight(dw, dlogits, x); });
    }

    void attention() {
        for (const std::int64_t length : shape_.lengths) {
            attention(length);
        }
    }

    void attention(std::int64_t length) {
        free_all();
        const std::int64_t tokens = shape_.longest;
        std::vector<std::int64_t> starts;
        for (std::int64_t start = 0; start <= tokens; start += length) {
            starts.push_back(start);
        }
        const AttentionShape shape = {.heads = shape_.heads,
                                      .kv_heads = shape_.kv_heads,
                                      .head_dim = shape_.head_dim,
                                      .scale = 1 / std::sqrt(static_cast<double>(shape_.head_dim)),
                                      .starts = starts};
        const std::int64_t columns = shape_.qkv();
        const Matrix qkv = random(storage_, tokens, columns);
        const Matrix gradients = random(storage_, tokens, columns);
        const Matrix out = random(storage_, tokens, shape_.heads * shape_.head_dim);
        const Matrix dout = random(storage_, tokens, shape_.heads * shape_.head_dim);
        const Matrix lse = random(DType::f32, tokens, shape_.heads);
        const auto q = [&](Matrix m) { return m.col_range(0, shape_.q()); };
        const auto k = [&](Matrix m) { return m.col_range(shape_.q(), shape_.kv()); };
        const auto v = [&](Matrix m) { return m.col_range(shape_.q() + shape_.kv(), shape_.kv()); };
        // Two products of the visible half of the scores; five in the backward pass.
        const double product = static_cast<double>(tokens * length * shape_.heads * shape_.head_dim);
        report(fmt::format("{} {} x {} forward", attention_, tokens / length, length), 2 * product, kFlops,
               [&] { ops_->attention_forward(out, lse, q(qkv), k(qkv), v(qkv), shape); });
        report(fmt::format("{} {} x {} backward", attention_, tokens / length, length), 5 * product, kFlops, [&] {
            ops_->attention_backward(q(gradients), k(gradients), v(gradients), dout, q(qkv), k(qkv), v(qkv), out, lse,
                                     shape);
        });
    }

    /// Bytes are those that must move: every input read and every output written once.
    void rest() {
        free_all();
        const double s = static_cast<double>(size_of(storage_));
        const Matrix x = random(storage_, shape_.tokens, shape_.hidden);
        const Matrix delta = random(storage_, shape_.tokens, shape_.hidden);
        const Matrix y = random(storage_, shape_.tokens, shape_.hidden);
        const Matrix weight = random(storage_, 1, shape_.hidden);
        const Matrix dweight = random(DType::f32, 1, shape_.hidden);
        const Matrix rstd = random(DType::f32, shape_.tokens, 1);
        const double row = s * static_cast<double>(shape_.tokens * shape_.hidden);
        report("add and rmsnorm", 4 * row, kBytes,
               [&] { ops_->add_rmsnorm_forward(y, rstd, x, x, delta, weight, 1e-5); });
        report("rmsnorm backward", 4 * row, kBytes,
               [&] { ops_->rmsnorm_backward(delta, dweight, delta, y, x, rstd, weight); });

        const Matrix cosines = random(DType::f32, shape_.tokens, shape_.head_dim / 2);
        const Matrix sines = random(DType::f32, shape_.tokens, shape_.head_dim / 2);
        std::vector<std::int32_t> positions(static_cast<std::size_t>(shape_.tokens));
        std::iota(positions.begin(), positions.end(), 0);
        report("rope", 2 * row, kBytes, [&] { ops_->rope(x, {cosines, sines}, positions, shape_.head_dim, false); });

        const Matrix gate_up = random(storage_, shape_.tokens, 2 * shape_.inner);
        const Matrix act = random(storage_, shape_.tokens, shape_.inner);
        const Matrix dgate_up = random(storage_, shape_.tokens, 2 * shape_.inner);
        const double inner = s * static_cast<double>(shape_.tokens * shape_.inner);
        report("swiglu", 3 * inner, kBytes, [&] { ops_->swiglu_forward(act, gate_up); });
        report("swiglu backward", 5 * inner, kBytes, [&] { ops_->swiglu_backward(dgate_up, act, gate_up); });

        const Matrix logits = random(DType::f32, shape_.logits_rows, shape_.vocabulary);
        const Matrix dlogits = random(storage_, shape_.logits_rows, shape_.vocabulary);
        const Matrix log_probs = random(DType::f32, 1, shape_.logits_rows);
        const Matrix weights = random(DType::f32, 1, shape_.logits_rows);
        const std::vector<std::int32_t> targets(static_cast<std::size_t>(shape_.logits_rows), 7);
        const double read = 4.0 * static_cast<double>(shape_.logits_rows * shape_.vocabulary);
        report("log_prob", read, kBytes, [&] { ops_->log_prob_forward(log_probs, {}, logits, targets, 1); });
        report("cross_entropy", read * (1 + s / 4), kBytes,
               [&] { ops_->cross_entropy(log_probs, dlogits, logits, targets, weights); });

        free_all();
        const Matrix w = random(DType::f32, 1, shape_.parameters);
        const Matrix m = random(DType::f32, 1, shape_.parameters);
        const Matrix v = random(DType::f32, 1, shape_.parameters);
        const Matrix gradient = random(DType::f32, 1, shape_.parameters);
        const Matrix published = storage_ == DType::f32 ? Matrix() : random(storage_, 1, shape_.parameters);
        ops_->zero(v);
        report("adam", (28.0 + (storage_ == DType::f32 ? 0 : s)) * static_cast<double>(shape_.parameters), kBytes,
               [&] { ops_->adam(w, m, v, gradient, published, {.lr = 1e-9}); });
        report("squared_norm", 4.0 * static_cast<double>(shape_.parameters), kBytes,
               [&] { norm_ = ops_->squared_norm(w); });

        const Matrix table = random(storage_, shape_.vocabulary, shape_.hidden);
        const Matrix dtable = random(DType::f32, shape_.vocabulary, shape_.hidden);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(shape_.tokens));
        for (std::int32_t& id : ids) {
            id = static_cast<std::int32_t>(generator_() % static_cast<std::uint32_t>(shape_.vocabulary));
        }
        const Matrix rows = random(storage_, shape_.tokens, shape_.hidden);
        report("embedding", 2 * row, kBytes, [&] { ops_->embedding_forward(rows, table, ids); });
        report("embedding backward", row + 8.0 * static_cast<double>(shape_.tokens * shape_.hidden), kBytes,
               [&] { ops_->embedding_backward(dtable, rows, ids); });
        const Matrix bias = random(DType::f32, 1, 2 * shape_.inner);
        const Matrix wide = random(storage_, shape_.tokens, 2 * shape_.inner);
        report("bias backward", inner * 2, kBytes, [&] { ops_->bias_backward(bias, wide); });
    }

    [[nodiscard]] const nlohmann::ordered_json& results() const { return results_; }

  private:
    using Clock = std::chrono::steady_clock;
    enum Unit { kFlops, kBytes };

    std::span<std::byte> allocate(std::int64_t bytes) {
        return buffers_.emplace_back(device_.allocate(round_up(bytes, kMemoryAlignment))).span();
    }
    /// All matrices but the workspace.
    void free_all() {
        wait();
        buffers_.resize(1);
    }

    Matrix random(DType dtype, std::int64_t rows, std::int64_t cols) {
        const Matrix matrix(allocate(rows * cols * size_of(dtype)).data(), dtype, rows, cols);
        const Matrix flat(matrix.data, dtype, 1, rows * cols);
        const auto most = static_cast<std::int64_t>(block_.size());
        std::vector<std::byte> values(block_.size() * static_cast<std::size_t>(size_of(dtype)));
        convert(dtype, values.data(), DType::f32, block_.data(), most);
        for (std::int64_t first = 0; first < flat.cols; first += most) {
            const std::int64_t part = std::min(most, flat.cols - first);
            ops_->write(flat.col_range(first, part),
                        std::span(values).first(static_cast<std::size_t>(part * size_of(dtype))));
        }
        return matrix;
    }

    /// Until the device has done what it was asked for.
    void wait() {
        std::array<std::byte, 8> bytes{};
        ops_->read(std::span(bytes).first(4), Matrix(buffers_.front().span().data(), DType::f32, 1, 1));
    }

    double seconds_of(const std::function<void()>& run, int calls) {
        const auto start = Clock::now();
        for (int i = 0; i < calls; ++i) {
            run();
        }
        wait();
        return std::chrono::duration<double>(Clock::now() - start).count() / calls;
    }

    void report(std::string_view name, double work, Unit unit, const std::function<void()>& run) {
        constexpr double kBatch = 0.02;  // seconds, long beside what waiting costs
        const bool once = std::string_view(shape_.name) == "tiny";
        static_cast<void>(seconds_of(run, 1));
        const int calls = once ? 1 : std::clamp(static_cast<int>(kBatch / seconds_of(run, 1)), 1, 1000);
        std::vector<double> seconds(once ? 1 : 7);
        std::ranges::generate(seconds, [&] { return seconds_of(run, calls); });
        std::ranges::sort(seconds);
        const double median = seconds[seconds.size() / 2];
        const double rate = work / median;
        double& best = best_[unit];
        best = best == 0 ? rate : best;  // the first of a unit is what the others are compared with
        const char* name_of_unit = unit == kFlops ? "TFLOP/s" : "GB/s";
        const double shown = rate * (unit == kFlops ? 1e-12 : 1e-9);
        fmt::print("{:<34}{:>10.4f} ms{:>10.3f} {:<8}{:>6.2f}\n", name, median * 1e3, shown, name_of_unit, rate / best);
        results_.push_back({{"name", name},
                            {"shape", shape_.name},
                            {"dtype", tessera::name_of(storage_)},
                            {"milliseconds", median * 1e3},
                            {"rate", shown},
                            {"unit", name_of_unit},
                            {"share", rate / best}});
    }

    Device& device_;
    std::unique_ptr<Ops> ops_;
    std::string attention_;  // its name in the results
    DType storage_;
    const Shape& shape_;
    std::vector<Memory> buffers_;  // the first is the workspace
    std::mt19937 generator_{1};
    std::vector<float> block_;  // random values, again and again
    std::array<double, 2> best_{};
    nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
    double norm_ = 0;
};

int run(int argc, char** argv) {
    CLI::App app("Measures the operations of a backend", "kernel_bench");
    std::string shape = "smol";
    std::string dtype = "f32";
    std::string library;
    std::string json;
    bool composed = false;
    app.add_option("--shape", shape, "tiny, smol, 0.5B or 8B")->check(CLI::IsMember({"tiny", "smol", "0.5B", "8B"}));
    app.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
    app.add_option("--cuda", library, "Library of a CUDA backend: measure its device, not the CPU");
    app.add_option("--json", json, "File to write the results to");
    app.add_flag("--composed", composed, "The composed reference instead of fused kernels");
    CLI11_PARSE(app, argc, argv);
    std::unique_ptr<Device> device = make_cpu_device();
    if (!library.empty()) {
        setenv("TESSERA_CUDA_LIBRARY", library.c_str(), 1);
        device = load_cuda_backend().open(0);
    }
    const Shape& chosen = *std::ranges::find_if(kShapes, [&](const Shape& one) { return shape == one.name; });
    fmt::print("{}, shape {}, {}; the last column: beside the first of its unit\n", device->description(), shape,
               dtype);
    const DType storage = dtype == "bf16" ? DType::bf16 : DType::f32;
    Bench bench(
        *device,
        {.storage = storage, .fused = !composed, .attention = composed ? AttentionKind::eager : AttentionKind::flash},
        chosen);
    bench.baselines();
    bench.products();
    bench.attention();
    bench.rest();
    if (!library.empty() && storage == DType::bf16) {
        try {
            bench.use({.storage = storage, .attention = AttentionKind::cudnn});
            bench.attention();
        } catch (const Error& error) {
            fmt::print("no cuDNN attention: {}\n", error.what());
        }
    }
    if (!json.empty()) {
        const nlohmann::ordered_json all = {{"device", device->description()}, {"results", bench.results()}};
        std::ofstream(json) << all.dump(1) << '\n';
    }
    return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
    try {
        return tessera::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "kernel_bench: {}\n", error.what());
        return 70;
    }
}
