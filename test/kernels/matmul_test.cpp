// The ways of computing products agree with double: the library's sgemm, its primitives, and conversion in blocks.
#include "kernels/cpu/matmul.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using cpu::ProductPath;
using testing::random_tensor;
using testing::require_close;
using testing::Tensor;

/// Sums of `terms` products of normally distributed numbers in f32.
double sum_error(std::int64_t terms) {
    const double n = static_cast<double>(terms);
    return 8 * 0x1p-24 * (n + 5 * std::sqrt(n));
}

void require_products(cpu::Products& products, DType storage, std::int64_t tokens, std::int64_t in, std::int64_t out) {
    CAPTURE(tokens, in, out);
    std::mt19937 random(static_cast<unsigned>(tokens * 7 + in));
    const std::unique_ptr<Ops> exact = make_reference_ops(DType::f64);
    const double rounding = testing::unit_roundoff(storage);
    const Tensor x = random_tensor(random, storage, tokens, in);
    const Tensor w = random_tensor(random, storage, out, in);
    const Tensor bias = random_tensor(random, storage, 1, out);
    const Tensor dy = random_tensor(random, storage, tokens, out);
    for (const bool with_bias : {false, true}) {
        for (const DType result : {storage, DType::f32}) {
            Tensor y(result, tokens, out);
            Tensor y_exact(DType::f64, tokens, out);
            products.forward(y, x, w, with_bias ? bias : Tensor());
            exact->linear_forward(y_exact, x.as(DType::f64), w.as(DType::f64),
                                  with_bias ? bias.as(DType::f64) : Tensor());
            require_close("y", y, y_exact, testing::unit_roundoff(result), sum_error(in));
        }
    }
    Tensor dx(storage, tokens, in);
    Tensor dx_exact(DType::f64, tokens, in);
    products.backward_input(dx, dy, w);
    exact->linear_backward_input(dx_exact, dy.as(DType::f64), w.as(DType::f64));
    require_close("dx", dx, dx_exact, rounding, sum_error(out));

    Tensor dw = random_tensor(random, DType::f32, out, in);
    Tensor dw_exact = dw.as(DType::f64);
    for (int repeat = 0; repeat < 2; ++repeat) {
        products.backward_weight(dw, dy, x);
        exact->linear_backward_weight(dw_exact, dy.as(DType::f64), x.as(DType::f64));
    }
    require_close("dw", dw, dw_exact, 0, 2 * sum_error(tokens));
}

void require_path(DType storage, ProductPath path) {
    cpu::Products products(storage, 2, path);
    const OpsLimits limits = {.tokens = 130, .columns = 130, .logits_rows = 10};
    // Aligned as the workspace of an Ops is.
    std::vector<std::byte> memory(static_cast<std::size_t>(products.workspace_bytes(limits)) + 64);
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    products.bind_workspace(std::span(memory).subspan(64 - misaligned));
    for (int repeat = 0; repeat < 2; ++repeat) {  // primitives are kept
        require_products(products, storage, 1, 1, 1);
        require_products(products, storage, 5, 130, 3);
        require_products(products, storage, 65, 33, 130);
        require_products(products, storage, 40, 33, 1100);  // more rows of weights than a block
    }
}

}  // namespace

TEST_CASE("Products of f32 by sgemm agree with double") {
    require_path(DType::f32, ProductPath::automatic);
}

TEST_CASE("Products of f32 by primitives agree with double") {
    require_path(DType::f32, ProductPath::primitives);
}

TEST_CASE("Products of bf16 by what this CPU does best agree with double") {
    require_path(DType::bf16, ProductPath::automatic);
}

TEST_CASE("Products of bf16 by conversion agree with double") {
    require_path(DType::bf16, ProductPath::converted);
}

TEST_CASE("Products beyond the limits of the workspace are refused") {
    cpu::Products products(DType::bf16, 2, ProductPath::converted);
    const OpsLimits limits = {.tokens = 2, .columns = 2};
    std::vector<std::byte> memory(static_cast<std::size_t>(products.workspace_bytes(limits)));
    products.bind_workspace(memory);
    Tensor y(DType::bf16, 600, 4);
    CHECK_THROWS_WITH(products.forward(y, Tensor(DType::bf16, 600, 600), Tensor(DType::bf16, 4, 600), Tensor()),
                      Catch::Contains("workspace"));
}

}  // namespace tessera
