#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/base/checked.h"
#include "kernels/cuda/products.h"

namespace tessera::cuda {
namespace {

/// As much as NVIDIA recommends for Hopper.
constexpr std::int64_t kWorkspace = 32 << 20;
constexpr std::int64_t kWorkspaceAlignment = 256;

/// Shapes whose algorithms are kept: micro-batches of ever other lengths must not fill the memory.
constexpr std::size_t kMostPlans = 1024;

void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) {
        fail(ExitCode::internal, "{}: {} ({})", call, cublasLtGetStatusString(status), cublasLtGetStatusName(status));
    }
}

cudaDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f16:
            return CUDA_R_16F;
        case DType::f64:
            break;
    }
    fail(ExitCode::internal, "no product of {} on a GPU", name_of(dtype));
}

template <typename Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
  public:
    Owned() = default;
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        if (handle != nullptr) {
            destroy(handle);
        }
    }
    Handle handle = nullptr;
};

/// A product as cuBLASLt sees it, columns first: D [m, n] = op(A) op(B) (+ D). A row-major matrix is its own transpose
/// there.
struct Shape {
    std::int64_t m = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    bool transpose_a = false;
    bool transpose_b = false;
    std::int64_t lda = 0;
    std::int64_t ldb = 0;
    std::int64_t ldd = 0;
    DType input = DType::f32;
    DType output = DType::f32;
    bool accumulate = false;
    bool bias = false;
    std::uint32_t alignment = 16;  // bytes, of the least aligned matrix

    auto operator<=>(const Shape&) const = default;
};

/// Descriptions of one shape, and the algorithm that the library chose for it.
class Plan {
  public:
    /// `bias`: of the first call; its alignment counts.
    Plan(cublasLtHandle_t library, const Shape& shape, bool tf32, const std::byte* bias) {
        const bool fast = shape.input == DType::f32 && tf32;
        check(cublasLtMatmulDescCreate(&operation_.handle, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                       CUDA_R_32F),
              "cublasLtMatmulDescCreate");
        set(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (shape.bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(shape.input));
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        }
        lay_out(a_, type_of(shape.input), shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k,
                shape.lda);
        lay_out(b_, type_of(shape.input), shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n,
                shape.ldb);
        lay_out(d_, type_of(shape.output), shape.m, shape.n, shape.ldd);
        choose(library, shape);
    }

    void run(cublasLtHandle_t library, const void* a, const void* b, void* d, const void* bias, bool accumulate,
             std::span<std::byte> workspace, simt::Stream stream) {
        if (bias != nullptr) {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        }
        const float alpha = 1;
        const float beta = accumulate ? 1 : 0;
        check(cublasLtMatmul(library, operation_.handle, &alpha, a, a_.handle, b, b_.handle, &beta, d, d_.handle, d,
                             d_.handle, &algorithm_, workspace.data(), workspace.size(), stream),
              "cublasLtMatmul");
    }

  private:
    using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

    template <typename T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        check(cublasLtMatmulDescSetAttribute(operation_.handle, attribute, &value, sizeof(value)),
              "cublasLtMatmulDescSetAttribute");
    }
    static void lay_out(Layout& layout, cudaDataType_t type, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
        check(cublasLtMatrixLayoutCreate(&layout.handle, type, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(cols), ld),
              "cublasLtMatrixLayoutCreate");
    }
    void choose(cublasLtHandle_t library, const Shape& shape) {
        Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
        check(cublasLtMatmulPreferenceCreate(&preference.handle), "cublasLtMatmulPreferenceCreate");
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
            check(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof(value)),
                  "cublasLtMatmulPreferenceSetAttribute");
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(kWorkspace));
        // Parts of a sum that are added afterwards stay in fp32.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
        for (const auto attribute :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
            prefer(attribute, shape.alignment);
        }
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        check(cublasLtMatmulAlgoGetHeuristic(library, operation_.handle, a_.handle, b_.handle, d_.handle, d_.handle,
                                             preference.handle, 1, &result, &found),
              "cublasLtMatmulAlgoGetHeuristic");
        if (found == 0) {
            fail(ExitCode::internal, "cuBLASLt has no product [{}, {}] x [{}, {}] of {}", shape.m, shape.k, shape.k,
                 shape.n, name_of(shape.input));
        }
        algorithm_ = result.algo;
    }

    Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
    Layout a_;
    Layout b_;
    Layout d_;
    cublasLtMatmulAlgo_t algorithm_{};
};

class CublasLtProducts final : public Products {
  public:
    explicit CublasLtProducts(bool tf32) : tf32_(tf32) {}

    [[nodiscard]] std::int64_t workspace_bytes() const override { return kWorkspace + kWorkspaceAlignment; }
    void bind_workspace(std::span<std::byte> memory) override {
        const auto address = reinterpret_cast<std::intptr_t>(memory.data());
        const std::int64_t skipped = round_up(address, kWorkspaceAlignment) - address;
        workspace_ = memory.subspan(static_cast<std::size_t>(skipped), static_cast<std::size_t>(kWorkspace));
    }

    void forward(simt::Stream stream, Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) override {
        Shape shape{.m = w.rows, .n = x.rows, .k = x.cols, .transpose_a = true, .bias = !bias.empty()};
        run(stream, shape, w, x, y, bias.empty() ? nullptr : bias.data);
    }
    void backward_input(simt::Stream stream, Matrix dx, ConstMatrix dy, ConstMatrix w) override {
        run(stream, {.m = w.cols, .n = dy.rows, .k = w.rows}, w, dy, dx, nullptr);
    }
    void backward_weight(simt::Stream stream, Matrix dw, ConstMatrix dy, ConstMatrix x) override {
        run(stream, {.m = x.cols, .n = dy.cols, .k = x.rows, .transpose_b = true, .accumulate = true}, x, dy, dw,
            nullptr);
    }

  private:
    void run(simt::Stream stream, Shape shape, ConstMatrix a, ConstMatrix b, const Matrix& d, const std::byte* bias) {
        if (d.empty()) {
            return;
        }
        if (shape.k == 0) {
            fail(ExitCode::internal, "a product over nothing");
        }
        shape.lda = a.stride;
        shape.ldb = b.stride;
        shape.ldd = d.stride;
        shape.input = a.dtype;
        shape.output = d.dtype;
        shape.alignment =
            std::min({alignment_of(a.data), alignment_of(b.data), alignment_of(d.data), alignment_of(bias)});
        if (library_.handle == nullptr) {  // planning needs no GPU
            check(cublasLtCreate(&library_.handle), "cublasLtCreate");
        }
        auto plan = plans_.find(shape);
        if (plan == plans_.end()) {
            if (plans_.size() >= kMostPlans) {
                plans_.clear();
            }
            plan = plans_.try_emplace(shape, library_.handle, shape, tf32_, bias).first;
        }
        plan->second.run(library_.handle, a.data, b.data, d.data, bias, shape.accumulate, workspace_, stream);
    }
    /// The largest power of two up to 16 that the address is a multiple of.
    [[nodiscard]] static std::uint32_t alignment_of(const std::byte* data) {
        const auto address = reinterpret_cast<std::uintptr_t>(data) | 16u;
        return static_cast<std::uint32_t>(address & (~address + 1));
    }

    bool tf32_;
    Owned<cublasLtHandle_t, cublasLtDestroy> library_;
    std::map<Shape, Plan> plans_;
    std::span<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Products> make_products(bool tf32) {
    return std::make_unique<CublasLtProducts>(tf32);
}

std::string products_version() {
    const std::size_t version = cublasLtGetVersion();
    return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace tessera::cuda
