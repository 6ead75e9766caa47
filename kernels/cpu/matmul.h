// Matrix products through oneDNN.
//
// f32: its sgemm. bf16 with fp32 accumulation: its matmul primitives where the CPU multiplies bf16 (AVX512_BF16 or
// AMX); elsewhere operands are converted to f32 block by block in the workspace and multiplied there, with one rounding
// at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/ops.h"

namespace tessera::cpu {

/// How products are computed. `automatic` takes the best for the storage type and the CPU; the others are for tests.
enum class ProductPath : std::uint8_t { automatic, primitives, converted };

class Products {
  public:
    Products(DType storage, int threads, ProductPath path = ProductPath::automatic);
    ~Products();
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    [[nodiscard]] std::int64_t workspace_bytes(const OpsLimits& limits) const;
    void bind_workspace(std::span<std::byte> memory) { workspace_ = memory; }

    // As the methods of Ops; y of forward may also be f32 (logits).
    void forward(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias);
    void backward_input(Matrix dx, ConstMatrix dy, ConstMatrix w);
    void backward_weight(Matrix dw, ConstMatrix dy, ConstMatrix x);

  private:
    class PrimitiveCache;

    void forward_converted(Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias);
    void backward_input_converted(Matrix dx, ConstMatrix dy, ConstMatrix w);
    void backward_weight_converted(Matrix dw, ConstMatrix dy, ConstMatrix x);

    DType storage_;
    int threads_;
    std::span<std::byte> workspace_;
    std::unique_ptr<PrimitiveCache> primitives_;  // null: sgemm
};

}  // namespace tessera::cpu
