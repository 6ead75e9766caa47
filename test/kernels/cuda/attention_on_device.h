// A case of attention in the memory of the device, and how good its results are.
#pragma once

#include "test/kernels/cuda/attention_case.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera::testing {

/// The matrices of a case, every one a column range of a larger one.
class AttentionOnDevice {
  public:
    AttentionOnDevice(const Case& c, const Inputs& inputs) : AttentionOnDevice(c, inputs, {c, c.dtype, DType::f32}) {}

    /// When the device has done its work.
    [[nodiscard]] Results read() const {
        Results results = shapes_;
        results.out = out.read();
        results.lse = lse.read();
        results.dq = dq.read();
        results.dk = dk.read();
        results.dv = dv.read();
        return results;
    }

    const DeviceMatrix q, k, v, dout, out, lse, dq, dk, dv;

  private:
    AttentionOnDevice(const Case& c, const Inputs& inputs, const Results& shapes)
        : q(place(c, inputs.q)),
          k(place(c, inputs.k)),
          v(place(c, inputs.v)),
          dout(place(c, inputs.dout)),
          out(shapes.out, c.columns_before_out, c.columns_before_out + shapes.out.cols() + c.columns_behind),
          lse(shapes.lse, 1, shapes.lse.cols() + 3),
          dq(place(c, shapes.dq)),
          dk(place(c, shapes.dk)),
          dv(place(c, shapes.dv)),
          shapes_(shapes) {}

    static DeviceMatrix place(const Case& c, const Tensor& t) {
        return {t, c.columns_before, c.columns_before + t.cols() + c.columns_behind};
    }

    Results shapes_;
};

/// The largest of a matrix's differences from what is expected; infinite where one is no number.
inline double largest_error(const Tensor& actual, const Tensor& expected) {
    double largest = 0;
    for (std::int64_t r = 0; r < actual.rows(); ++r) {
        for (std::int64_t c = 0; c < actual.cols(); ++c) {
            const double error = std::abs(actual.get(r, c) - expected.get(r, c));
            largest = std::max(largest, std::isfinite(error) ? error : std::numeric_limits<double>::infinity());
        }
    }
    return largest;
}

inline double largest_value(const Tensor& tensor) {
    return largest_error(tensor, Tensor(tensor.dtype(), tensor.rows(), tensor.cols()));
}

/// `actual` is at most `times` as far from what is expected as `plain` is, and what a few sums in f32 may differ.
inline void require_as_good(const char* what, const Tensor& actual, const Tensor& plain, const Tensor& expected,
                            double times, double floor) {
    const double error = largest_error(actual, expected);
    const double plain_error = largest_error(plain, expected);
    INFO(what);
    CAPTURE(error, plain_error, floor);
    CHECK(error <= times * plain_error + floor);
}

/// `actual` is what a case should give, to the rounding of its dtype.
inline void require_as_good_as_plain(const Case& c, const Inputs& inputs, const Results& actual) {
    CAPTURE(name_of(c.dtype), c.head_dim, c.starts, c.heads, c.kv_heads, c.window, c.scale, c.columns_before);
    const Results expected = expected_results(c, inputs);
    const Results plain = plain_results(c, inputs);
    // Where the plain composition has no error (one visible key: its weight is exactly 1, the gradient of its score
    // exactly 0), sums of f32 in another order have one. They are of products of order 1, with weights that are off by
    // what an error of the scores' logarithm is: units of f32 of the largest of them.
    const double sums = 64 * unit_roundoff(DType::f32) * (1 + largest_value(expected.lse));
    const double group = static_cast<double>(c.heads / c.kv_heads);
    const double scale = std::abs(c.shape().scale) * c.size * std::sqrt(static_cast<double>(c.head_dim));
    require_as_good("out", actual.out, plain.out, expected.out, 2, sums);
    require_close("lse", actual.lse, expected.lse, 0, sums);
    require_as_good("dq", actual.dq, plain.dq, expected.dq, 3, sums * scale);
    require_as_good("dk", actual.dk, plain.dk, expected.dk, 3, sums * scale * group);
    require_as_good("dv", actual.dv, plain.dv, expected.dv, 3, sums * group);
}

}  // namespace tessera::testing
