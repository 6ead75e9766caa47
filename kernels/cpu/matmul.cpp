#include "kernels/cpu/matmul.h"

#include <dnnl.h>

#include <array>
#include <dnnl.hpp>
#include <map>
#include <unordered_map>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"

namespace tessera::cpu {

namespace {

/// Rows of a weight that are converted to f32 at a time: the block stays in the last-level cache.
constexpr std::int64_t kWeightRows = 512;

/// Workspace a thread that primitives may use; one that wants more keeps memory of its own.
constexpr std::int64_t kScratchPerThread = std::int64_t{1} << 20;

/// The operands of C = op(A) op(B): a matrix and whether it is transposed.
struct Operand {
    ConstMatrix matrix;
    bool transposed = false;

    [[nodiscard]] std::int64_t rows() const { return transposed ? matrix.cols : matrix.rows; }
    [[nodiscard]] std::int64_t cols() const { return transposed ? matrix.rows : matrix.cols; }
};

/// The distance of rows as oneDNN checks it, which of a single row may be anything.
std::int64_t row_stride(ConstMatrix m) {
    return m.rows > 1 ? m.stride : m.cols;
}

/// c = a b, or c += a b; all f32.
void multiply_f32(Matrix c, const Operand& a, const Operand& b, bool accumulate) {
    const dnnl_status_t status =
        dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', c.rows, c.cols, a.cols(), 1.0F,
                   a.matrix.as<float>(), row_stride(a.matrix), b.matrix.as<float>(), row_stride(b.matrix),
                   accumulate ? 1.0F : 0.0F, c.as<float>(), row_stride(c));
    if (status != dnnl_success) {
        fail(ExitCode::internal, "oneDNN's sgemm failed with status {} for [{}, {}] x [{}, {}]",
             static_cast<int>(status), a.rows(), a.cols(), b.rows(), b.cols());
    }
}

/// y = S(from + bias); bias may be empty. `y` may be `from`.
void finish(Matrix y, ConstMatrix from, ConstMatrix bias, int threads) {
    with_storage(y.dtype, [&](auto y_type) {
        using Y = decltype(y_type);
        const auto with_bias = [&](auto bias_type) {
            using B = decltype(bias_type);
            const B* addend = bias.empty() ? nullptr : bias.as<B>();
            parallel_pieces(threads, y.rows, y.cols, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
                Y* to = y.as<Y>() + row * y.stride + first;
                const float* sums = from.as<float>() + row * from.stride + first;
                for_vectors(count, [&](std::int64_t i, auto lanes) {
                    Vec value = load(sums + i, lanes);
                    if (addend != nullptr) {
                        value = value + load(addend + first + i, lanes);
                    }
                    store(to + i, value, lanes);
                });
            });
        };
        with_storage(bias.empty() ? DType::f32 : bias.dtype, with_bias);
    });
}

ConstMatrix converted(ConstMatrix from, float* to, int threads) {
    const Matrix target(reinterpret_cast<std::byte*>(to), DType::f32, from.rows, from.cols);
    cpu::copy(target, from, threads);
    return target;
}

dnnl::memory::data_type data_type_of(DType dtype) {
    return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc description_of(const Operand& operand) {
    const std::int64_t stride = row_stride(operand.matrix);
    return {{operand.rows(), operand.cols()},
            data_type_of(operand.matrix.dtype),
            operand.transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

void set_data(dnnl::memory& memory, const std::byte* data) {
    // oneDNN does not write to sources; its interface has no const.
    memory.set_data_handle(const_cast<std::byte*>(data));
}

}  // namespace

/// Primitives by shape. They are created at their first use and kept.
class Products::PrimitiveCache {
  public:
    PrimitiveCache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

    /// Whether this CPU and this oneDNN multiply bf16 natively, in all forms that are asked for: with a bias, into f32,
    /// accumulating with a transposed operand.
    [[nodiscard]] static bool bf16_available() {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512bf16") == 0) {
            return false;
        }
        constexpr std::int64_t kSize = 64;
        std::array<bfloat16, 1> memory{};  // described, never read
        const ConstMatrix square(reinterpret_cast<const std::byte*>(memory.data()), DType::bf16, kSize, kSize,
                                 3 * kSize);
        const ConstMatrix bias = square.row_range(0, 1);
        const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
        try {
            (void)describe({square}, {square, true}, DType::bf16, kSize, bias, false, kUserScratch, engine);
            (void)describe({square}, {square, true}, DType::f32, kSize, {}, false, kUserScratch, engine);
            (void)describe({square}, {square}, DType::bf16, kSize, {}, false, kUserScratch, engine);
            (void)describe({square, true}, {square}, DType::f32, kSize, {}, true, kUserScratch, engine);
            return true;
        } catch (const dnnl::error&) {
            return false;
        }
#else
        return false;
#endif
    }

    /// c = a b + bias, or c += a b.
    void multiply(Matrix c, const Operand& a, const Operand& b, ConstMatrix bias, bool accumulate,
                  std::span<std::byte> scratch) {
        try {
            Entry& entry = find(c, a, b, bias, accumulate, static_cast<std::int64_t>(scratch.size()));
            set_data(entry.a, a.matrix.data);
            set_data(entry.b, b.matrix.data);
            set_data(entry.c, c.data);
            if (!bias.empty()) {
                set_data(entry.bias, bias.data);
            }
            if (entry.scratch) {
                set_data(entry.scratch, scratch.data());
            }
            entry.primitive.execute(stream_, entry.arguments);
            stream_.wait();
        } catch (const dnnl::error& error) {
            fail(ExitCode::internal, "oneDNN cannot multiply {} [{}, {}] x [{}, {}]: {}", name_of(a.matrix.dtype),
                 a.rows(), a.cols(), b.rows(), b.cols(), error.what());
        }
    }

  private:
    using Key = std::array<std::int64_t, 8>;
    static constexpr std::size_t kCapacity = 1024;
    static constexpr auto kUserScratch = dnnl::scratchpad_mode::user;

    struct Entry {
        dnnl::matmul primitive;
        dnnl::memory a;
        dnnl::memory b;
        dnnl::memory c;
        dnnl::memory bias;
        dnnl::memory scratch;
        std::unordered_map<int, dnnl::memory> arguments;  // the memories above; they share what they point to
    };

    static dnnl::matmul::primitive_desc describe(const Operand& a, const Operand& b, DType c_dtype,
                                                 std::int64_t c_stride, ConstMatrix bias, bool accumulate,
                                                 dnnl::scratchpad_mode mode, const dnnl::engine& engine) {
        const dnnl::memory::desc c({a.rows(), b.cols()}, data_type_of(c_dtype), dnnl::memory::dims{c_stride, 1});
        dnnl::memory::desc bias_description;
        if (!bias.empty()) {
            bias_description = {{1, b.cols()}, data_type_of(bias.dtype), dnnl::memory::dims{b.cols(), 1}};
        }
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(mode);
        if (accumulate) {
            dnnl::post_ops sum;
            sum.append_sum(1.0F);
            attributes.set_post_ops(sum);
        }
#if DNNL_VERSION_MAJOR >= 3
        return {engine, description_of(a), description_of(b), bias_description, c, attributes};
#else
        return {dnnl::matmul::desc(description_of(a), description_of(b), bias_description, c), attributes, engine};
#endif
    }

    Entry& find(Matrix c, const Operand& a, const Operand& b, ConstMatrix bias, bool accumulate,
                std::int64_t scratch_bytes) {
        const std::int64_t kind = (a.transposed ? 1 : 0) + (b.transposed ? 2 : 0) + (accumulate ? 4 : 0) +
                                  (bias.empty() ? 0 : 8) + 16 * static_cast<std::int64_t>(c.dtype);
        const Key key{kind,
                      static_cast<std::int64_t>(a.matrix.dtype),
                      a.rows(),
                      a.cols(),
                      b.cols(),
                      row_stride(a.matrix),
                      row_stride(b.matrix),
                      row_stride(c)};
        if (const auto found = entries_.find(key); found != entries_.end()) {
            return found->second;
        }
        if (entries_.size() >= kCapacity) {
            entries_.clear();
        }
        auto description = describe(a, b, c.dtype, row_stride(c), bias, accumulate, kUserScratch, engine_);
        const auto wanted = static_cast<std::int64_t>(description.scratchpad_desc().get_size());
        const bool own_scratch = wanted > scratch_bytes;
        if (own_scratch) {
            description =
                describe(a, b, c.dtype, row_stride(c), bias, accumulate, dnnl::scratchpad_mode::library, engine_);
        }
        Entry entry;
        entry.primitive = dnnl::matmul(description);
        entry.a = dnnl::memory(description.src_desc(), engine_, nullptr);
        entry.b = dnnl::memory(description.weights_desc(), engine_, nullptr);
        entry.c = dnnl::memory(description.dst_desc(), engine_, nullptr);
        entry.arguments = {{DNNL_ARG_SRC, entry.a}, {DNNL_ARG_WEIGHTS, entry.b}, {DNNL_ARG_DST, entry.c}};
        if (!bias.empty()) {
            entry.bias = dnnl::memory(description.bias_desc(), engine_, nullptr);
            entry.arguments.emplace(DNNL_ARG_BIAS, entry.bias);
        }
        if (wanted > 0 && !own_scratch) {
            entry.scratch = dnnl::memory(description.scratchpad_desc(), engine_, nullptr);
            entry.arguments.emplace(DNNL_ARG_SCRATCHPAD, entry.scratch);
        }
        return entries_.emplace(key, std::move(entry)).first->second;
    }

    dnnl::engine engine_;
    dnnl::stream stream_;
    std::map<Key, Entry> entries_;
};

Products::Products(DType storage, int threads, ProductPath path) : storage_(storage), threads_(threads) {
    const bool best = storage == DType::bf16 && PrimitiveCache::bf16_available();
    if (path == ProductPath::primitives || (path == ProductPath::automatic && best)) {
        primitives_ = std::make_unique<PrimitiveCache>();
    }
}

Products::~Products() = default;

std::int64_t Products::workspace_bytes(const OpsLimits& limits) const {
    if (primitives_ != nullptr) {
        return kScratchPerThread * threads_;
    }
    if (storage_ == DType::f32) {
        return 0;
    }
    const std::int64_t rows = std::max(limits.tokens, limits.logits_rows);
    return workspace_of<float>(checked_mul(rows, limits.columns, "activations")) +
           workspace_of<float>(checked_mul(kWeightRows, limits.columns, "columns")) +
           workspace_of<float>(checked_mul(kWeightRows, rows, "rows"));
}

void Products::forward(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) {
    if (y.empty()) {
        return;
    }
    if (primitives_ != nullptr) {
        primitives_->multiply(y, {x}, {w, true}, bias, false, workspace_);
    } else if (storage_ == DType::f32) {
        multiply_f32(y, {x}, {w, true}, false);
        if (!bias.empty()) {
            finish(y, y, bias, threads_);
        }
    } else {
        forward_converted(y, x, w, bias);
    }
}

void Products::backward_input(Matrix dx, ConstMatrix dy, ConstMatrix w) {
    if (dx.empty()) {
        return;
    }
    if (primitives_ != nullptr) {
        primitives_->multiply(dx, {dy}, {w}, {}, false, workspace_);
    } else if (storage_ == DType::f32) {
        multiply_f32(dx, {dy}, {w}, false);
    } else {
        backward_input_converted(dx, dy, w);
    }
}

void Products::backward_weight(Matrix dw, ConstMatrix dy, ConstMatrix x) {
    if (dw.empty() || x.rows == 0) {
        return;
    }
    if (primitives_ != nullptr) {
        primitives_->multiply(dw, {dy, true}, {x}, {}, true, workspace_);
    } else if (storage_ == DType::f32) {
        multiply_f32(dw, {dy, true}, {x}, true);
    } else {
        backward_weight_converted(dw, dy, x);
    }
}

void Products::forward_converted(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) {
    Scratch scratch(workspace_);
    const ConstMatrix input = converted(x, scratch.take<float>(x.elements()), threads_);
    const std::int64_t block = std::min(kWeightRows, w.rows);
    float* weights = scratch.take<float>(block * w.cols);
    auto* products = reinterpret_cast<std::byte*>(scratch.take<float>(block * x.rows));
    for (std::int64_t first = 0; first < w.rows; first += block) {
        const std::int64_t count = std::min(block, w.rows - first);
        const ConstMatrix weight = converted(w.row_range(first, count), weights, threads_);
        const Matrix target = y.col_range(first, count);
        const bool direct = y.dtype == DType::f32;
        const Matrix product = direct ? target : Matrix(products, DType::f32, x.rows, count);
        multiply_f32(product, {input}, {weight, true}, false);
        if (!direct || !bias.empty()) {
            finish(target, product, bias.empty() ? bias : bias.col_range(first, count), threads_);
        }
    }
}

void Products::backward_input_converted(Matrix dx, ConstMatrix dy, ConstMatrix w) {
    Scratch scratch(workspace_);
    const Matrix sum(reinterpret_cast<std::byte*>(scratch.take<float>(dx.elements())), DType::f32, dx.rows, dx.cols);
    const std::int64_t block = std::min(kWeightRows, w.rows);
    float* weights = scratch.take<float>(block * w.cols);
    float* gradients = scratch.take<float>(block * dy.rows);
    for (std::int64_t first = 0; first < w.rows; first += block) {
        const std::int64_t count = std::min(block, w.rows - first);
        const ConstMatrix weight = converted(w.row_range(first, count), weights, threads_);
        const ConstMatrix gradient = converted(dy.col_range(first, count), gradients, threads_);
        multiply_f32(sum, {gradient}, {weight}, first > 0);
    }
    cpu::copy(dx, sum, threads_);
}

void Products::backward_weight_converted(Matrix dw, ConstMatrix dy, ConstMatrix x) {
    Scratch scratch(workspace_);
    const ConstMatrix input = converted(x, scratch.take<float>(x.elements()), threads_);
    const std::int64_t block = std::min(kWeightRows, dy.cols);
    float* gradients = scratch.take<float>(block * dy.rows);
    for (std::int64_t first = 0; first < dy.cols; first += block) {
        const std::int64_t count = std::min(block, dy.cols - first);
        const ConstMatrix gradient = converted(dy.col_range(first, count), gradients, threads_);
        multiply_f32(dw.row_range(first, count), {gradient, true}, {input}, true);
    }
}

}  // namespace tessera::cpu
