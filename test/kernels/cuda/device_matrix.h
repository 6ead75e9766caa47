// Matrices in the memory of the device (emulated, or a GPU), for the tests of kernels: with strides larger than their
// columns and with first elements that no vector can begin at, and runs of one operation in several orders of the
// threads.
#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "test/kernels/tensor.h"
#include "test/simt/emulator.h"

namespace tessera::testing {

/// Where a matrix lies in the memory that holds it.
enum class Layout {
    packed,      // contiguous, from an aligned address
    padded,      // rows begin at multiples of 16 bytes, with room between them
    misaligned,  // begins one element behind an aligned address, with an odd stride
};
inline constexpr Layout kLayouts[] = {Layout::packed, Layout::padded, Layout::misaligned};

inline const char* name_of(Layout layout) {
    return layout == Layout::packed ? "packed" : layout == Layout::padded ? "padded" : "misaligned";
}

/// Owns device memory of exactly the size that the matrix needs; what lies between its rows may not be touched.
class DeviceMatrix {
  public:
    DeviceMatrix() = default;
    DeviceMatrix(const Tensor& values, Layout layout)
        : DeviceMatrix(values, layout == Layout::misaligned ? 1 : 0, stride_of(values.cols(), layout)) {}
    /// The first element lies `before` elements behind an aligned address, rows `stride` elements apart.
    DeviceMatrix(const Tensor& values, std::int64_t before, std::int64_t stride)
        : dtype_(values.dtype()), rows_(values.rows()), cols_(values.cols()), stride_(stride), first_(before) {
        if (rows_ == 0 || cols_ == 0) {
            return;
        }
        memory_ = std::make_unique<simt::DeviceArray<std::byte>>(offset(rows_ - 1, cols_));
        std::vector<std::byte> bytes(static_cast<std::size_t>(memory_->size()), kPadding);
        const ConstMatrix from = values;
        for (std::int64_t r = 0; r < rows_; ++r) {
            std::memcpy(&bytes[static_cast<std::size_t>(offset(r, 0))], from.data + r * from.stride * size_of(dtype_),
                        row_bytes());
        }
        memory_->write(bytes);
    }

    /// Without memory where there are no elements.
    [[nodiscard]] Matrix view() const {
        std::byte* first = memory_ == nullptr ? nullptr : memory_->data() + first_ * size_of(dtype_);
        return {first, dtype_, rows_, cols_, stride_};
    }
    // NOLINTNEXTLINE(google-explicit-constructor): passed as its view
    operator Matrix() const { return view(); }
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator ConstMatrix() const { return view(); }

    [[nodiscard]] Tensor read() const {
        Tensor result(dtype_, rows_, cols_);
        if (memory_ == nullptr) {
            return result;
        }
        std::vector<std::byte> bytes = memory_->read();
        const Matrix to = result;
        for (std::int64_t r = 0; r < rows_; ++r) {
            std::byte* row = &bytes[static_cast<std::size_t>(offset(r, 0))];
            std::memcpy(to.data + r * to.stride * size_of(dtype_), row, row_bytes());
            std::memset(row, static_cast<int>(kPadding), row_bytes());
        }
        REQUIRE(bytes == std::vector<std::byte>(bytes.size(), kPadding));
        return result;
    }

  private:
    static constexpr std::byte kPadding{0xa5};

    static std::int64_t stride_of(std::int64_t cols, Layout layout) {
        switch (layout) {
            case Layout::packed:
                return cols;
            case Layout::padded:
                return (cols + 7) / 8 * 8 + 8;
            case Layout::misaligned:
                return (cols + 1) / 2 * 2 + 3;
        }
        return cols;
    }
    [[nodiscard]] std::int64_t offset(std::int64_t r, std::int64_t c) const {
        return (first_ + r * stride_ + c) * size_of(dtype_);
    }
    [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(cols_ * size_of(dtype_)); }

    DType dtype_ = DType::f32;
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t stride_ = 0;
    std::int64_t first_ = 0;
    std::unique_ptr<simt::DeviceArray<std::byte>> memory_;
};

/// What `run(stream)` returns (a vector of tensors), when the threads run forward, in reverse and at random (on a GPU
/// three times as it comes): the same bits each time.
template <typename Run>
std::vector<Tensor> in_every_order(const Run& run) {
    std::vector<Tensor> first;
    for (const simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::random}) {
        simt::set_emulation({.order = order, .seed = 7});
        const simt::OwnStream stream;
        std::vector<Tensor> results = run(static_cast<simt::Stream>(stream));
        simt::synchronize(stream);
        if (order == simt::Order::forward) {
            first = std::move(results);
        } else {
            CAPTURE(static_cast<int>(order));
            REQUIRE(results == first);
        }
    }
    return first;
}

/// Device memory for a workspace.
class DeviceWorkspace {
  public:
    explicit DeviceWorkspace(std::int64_t bytes) : bytes_(bytes), memory_(std::max<std::int64_t>(bytes, 1)) {}
    [[nodiscard]] std::span<std::byte> span() const { return {memory_.data(), static_cast<std::size_t>(bytes_)}; }

  private:
    std::int64_t bytes_;
    simt::DeviceArray<std::byte> memory_;
};

inline constexpr DType kStorageTypes[] = {DType::f32, DType::bf16, DType::f16};
inline constexpr double kUnit = 0x1p-24;  // of f32, in which the kernels compute

inline Tensor exactly(const Tensor& x) {
    return x.as(DType::f64);
}

}  // namespace tessera::testing
