// Matrices that own their memory, for tests of kernels: any dtype, written and read as double. Rows of a matrix are
// padded with bytes that no operation may touch, so that every test is one of strides too.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/view.h"
#include "kernels/ops.h"

namespace tessera::testing {

class Tensor {
  public:
    Tensor() = default;
    /// Zeros. A single row has no padding: operations on vectors take contiguous ones.
    Tensor(DType dtype, std::int64_t rows, std::int64_t cols)
        : dtype_(dtype), rows_(rows), cols_(cols), stride_(rows > 1 ? cols + 3 : cols) {
        bytes_.assign(static_cast<std::size_t>(rows * stride_ * size_of(dtype)), kPadding);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
                set(r, c, 0);
            }
        }
    }

    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] std::int64_t rows() const { return rows_; }
    [[nodiscard]] std::int64_t cols() const { return cols_; }

    [[nodiscard]] double get(std::int64_t r, std::int64_t c) const {
        double value = 0;
        convert(DType::f64, &value, dtype_, bytes_.data() + offset(r, c), 1);
        return value;
    }
    /// Rounds to the dtype.
    void set(std::int64_t r, std::int64_t c, double value) {
        convert(dtype_, bytes_.data() + offset(r, c), DType::f64, &value, 1);
    }

    // NOLINTNEXTLINE(google-explicit-constructor): a tensor is passed as its view
    operator Matrix() { return {bytes_.data(), dtype_, rows_, cols_, stride_}; }
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator ConstMatrix() const { return {bytes_.data(), dtype_, rows_, cols_, stride_}; }

    /// The same values, rounded to `dtype`.
    [[nodiscard]] Tensor as(DType dtype) const { return slice(0, rows_, dtype); }
    /// A copy of rows [first, first + count).
    [[nodiscard]] Tensor rows_from(std::int64_t first, std::int64_t count) const { return slice(first, count, dtype_); }

    [[nodiscard]] bool padding_intact() const {
        for (std::int64_t r = 0; r < rows_; ++r) {
            for (std::int64_t i = offset(r, cols_); i < offset(r + 1, 0); ++i) {
                if (bytes_[i] != kPadding) {
                    return false;
                }
            }
        }
        return true;
    }

    /// Equal shapes, dtypes and bits.
    friend bool operator==(const Tensor& a, const Tensor& b) {
        return a.dtype_ == b.dtype_ && a.rows_ == b.rows_ && a.cols_ == b.cols_ && a.bytes_ == b.bytes_;
    }

  private:
    static constexpr std::byte kPadding{0xa5};

    [[nodiscard]] std::int64_t offset(std::int64_t r, std::int64_t c) const {
        return (r * stride_ + c) * size_of(dtype_);
    }
    [[nodiscard]] Tensor slice(std::int64_t first, std::int64_t count, DType dtype) const {
        Tensor result(dtype, count, cols_);
        for (std::int64_t r = 0; r < count; ++r) {
            for (std::int64_t c = 0; c < cols_; ++c) {
                result.set(r, c, get(first + r, c));
            }
        }
        return result;
    }

    DType dtype_ = DType::f32;
    std::int64_t rows_ = 0;
    std::int64_t cols_ = 0;
    std::int64_t stride_ = 0;
    std::vector<std::byte> bytes_;
};

/// Normally distributed values of the standard deviation `scale`.
inline Tensor random_tensor(std::mt19937& random, DType dtype, std::int64_t rows, std::int64_t cols, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    Tensor result(dtype, rows, cols);
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
            result.set(r, c, normal(random));
        }
    }
    return result;
}

/// `count` indices in [0, bound).
inline std::vector<std::int32_t> random_indices(std::mt19937& random, std::int64_t count, std::int64_t bound) {
    std::uniform_int_distribution<std::int32_t> uniform(0, static_cast<std::int32_t>(bound - 1));
    std::vector<std::int32_t> result;
    for (std::int64_t i = 0; i < count; ++i) {
        result.push_back(uniform(random));
    }
    return result;
}

/// Sum of the products of equal elements, in long double: no rounding of its own beside those of a and b.
inline double inner_product(const Tensor& a, const Tensor& b) {
    long double sum = 0;
    for (std::int64_t r = 0; r < a.rows(); ++r) {
        for (std::int64_t c = 0; c < a.cols(); ++c) {
            sum += static_cast<long double>(a.get(r, c)) * static_cast<long double>(b.get(r, c));
        }
    }
    return static_cast<double>(sum);
}

/// Half the distance from 1 to the next larger number: the largest relative error of one rounding.
inline double unit_roundoff(DType dtype) {
    return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

/// Every element within relative * |expected| + absolute; padding untouched.
inline void require_close(const char* what, const Tensor& actual, const Tensor& expected, double relative,
                          double absolute) {
    INFO(what);
    REQUIRE(actual.rows() == expected.rows());
    REQUIRE(actual.cols() == expected.cols());
    REQUIRE(actual.padding_intact());
    for (std::int64_t r = 0; r < actual.rows(); ++r) {
        for (std::int64_t c = 0; c < actual.cols(); ++c) {
            const double allowed = relative * std::abs(expected.get(r, c)) + absolute;
            if (!(std::abs(actual.get(r, c) - expected.get(r, c)) <= allowed)) {
                CAPTURE(r, c, actual.get(r, c), expected.get(r, c), allowed);
                FAIL("an element is too far from what is expected");
            }
        }
    }
}

/// An Ops with a workspace of its own, filled with NaN: no operation may rely on what lies there.
class OpsWithWorkspace {
  public:
    OpsWithWorkspace(std::unique_ptr<Ops> ops, const OpsLimits& limits)
        : bytes_(static_cast<std::size_t>(ops->workspace_bytes(limits)) + kAlignment), ops_(std::move(ops)) {
        std::memset(bytes_.data(), 0xff, bytes_.size());
        const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(bytes_.data()) % kAlignment;
        ops_->bind_workspace(std::span(bytes_).subspan(kAlignment - misaligned), limits);
    }
    Ops* operator->() { return ops_.get(); }
    Ops& operator*() { return *ops_; }

  private:
    static constexpr std::size_t kAlignment = 64;
    std::vector<std::byte> bytes_;
    std::unique_ptr<Ops> ops_;
};

/// Limits that cover what the attention of `shape` needs.
inline OpsLimits attention_limits(const AttentionShape& shape) {
    OpsLimits limits;
    limits.tokens = shape.starts.back();
    limits.columns = shape.heads * shape.head_dim;
    limits.heads = shape.heads;
    limits.kv_heads = shape.kv_heads;
    limits.head_dim = shape.head_dim;
    for (std::size_t i = 1; i < shape.starts.size(); ++i) {
        limits.longest_segment = std::max(limits.longest_segment, shape.starts[i] - shape.starts[i - 1]);
    }
    return limits;
}

}  // namespace tessera::testing
