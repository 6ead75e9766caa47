// Matrix products on a device.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// x [T, in], w [out, in], y [T, out] of one 16-bit dtype or f32, sums in fp32; all in memory of the device. Views may
/// have a stride larger than their columns.
class Products {
  public:
    Products() = default;
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;
    virtual ~Products() = default;

    [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
    /// Device memory of that many bytes, lent for good.
    virtual void bind_workspace(std::span<std::byte> memory) = 0;

    /// y = x wT + bias; bias [1, out] or empty. y may also be f32.
    virtual void forward(simt::Stream stream, Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) = 0;
    /// dx = dy w.
    virtual void backward_input(simt::Stream stream, Matrix dx, ConstMatrix dy, ConstMatrix w) = 0;
    /// dw += dyT x, dw [out, in] in f32.
    virtual void backward_weight(simt::Stream stream, Matrix dw, ConstMatrix dy, ConstMatrix x) = 0;
};

/// `tf32`: products of f32 may round their inputs to TF32.
[[nodiscard]] std::unique_ptr<Products> make_products(bool tf32);
/// Version of the library behind them in words.
[[nodiscard]] std::string products_version();

}  // namespace tessera::cuda
