// The reference operations apart from attention, cross-entropy and the optimizer: float and bfloat16 against double,
// outputs that are inputs, memory operations, threads, and refused arguments.
#include "kernels/reference/reference_ops.h"

#include <omp.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::OpsWithWorkspace;
using testing::random_indices;
using testing::random_tensor;
using testing::require_close;
using testing::Tensor;
using testing::unit_roundoff;

constexpr std::int64_t kTokens = 11;

/// Both instances, to be called with the same values: those of the smaller dtype.
struct Pair {
    explicit Pair(DType dtype)
        : storage(dtype), small(make_reference_ops(dtype)), exact(make_reference_ops(DType::f64)) {}
    [[nodiscard]] Tensor random(std::int64_t rows, std::int64_t cols) {
        return random_tensor(generator, storage, rows, cols);
    }

    DType storage;
    std::unique_ptr<Ops> small;
    std::unique_ptr<Ops> exact;
    std::mt19937 generator{4};
};

Tensor exactly(const Tensor& x) {
    return x.as(DType::f64);
}

/// Bound of the rounding of sums of up to 100 products of normally distributed numbers in f32: each partial sum is
/// below 64 or so.
constexpr double kSums = 100 * 64 * 0x1p-24;

}  // namespace

TEST_CASE("Products of float and bfloat16 agree with double") {
    Pair ops(GENERATE(DType::f32, DType::bf16));
    const double rounding = unit_roundoff(ops.storage);
    for (const std::int64_t in : {1, 3, 64, 97}) {
        const std::int64_t out = 13;
        const Tensor x = ops.random(kTokens, in);
        const Tensor w = ops.random(out, in);
        const Tensor bias = ops.random(1, out);
        const Tensor dy = ops.random(kTokens, out);

        Tensor y(ops.storage, kTokens, out);
        Tensor y_exact(DType::f64, kTokens, out);
        for (const bool with_bias : {false, true}) {
            ops.small->linear_forward(y, x, w, with_bias ? bias : Tensor());
            ops.exact->linear_forward(y_exact, exactly(x), exactly(w), with_bias ? exactly(bias) : Tensor());
            require_close("y", y, y_exact, rounding, kSums);
        }
        ops.exact->linear_forward(y_exact, exactly(x), exactly(w), Tensor());
        Tensor logits(DType::f32, kTokens, out);
        ops.small->logits_forward(logits, x, w);
        require_close("logits", logits, y_exact, 0, kSums);

        Tensor dx(ops.storage, kTokens, in);
        Tensor dx_exact(DType::f64, kTokens, in);
        ops.small->linear_backward_input(dx, dy, w);
        ops.exact->linear_backward_input(dx_exact, exactly(dy), exactly(w));
        require_close("dx", dx, dx_exact, rounding, kSums);

        Tensor dw = random_tensor(ops.generator, DType::f32, out, in);
        Tensor dw_exact = exactly(dw);
        ops.small->linear_backward_weight(dw, dy, x);
        ops.exact->linear_backward_weight(dw_exact, exactly(dy), exactly(x));
        require_close("dw", dw, dw_exact, 0, kSums);

        Tensor db = random_tensor(ops.generator, DType::f32, 1, out);
        Tensor db_exact = exactly(db);
        ops.small->bias_backward(db, dy);
        ops.exact->bias_backward(db_exact, exactly(dy));
        require_close("db", db, db_exact, 0, kSums);
    }
}

TEST_CASE("RMSNorm of float and bfloat16 agrees with double") {
    Pair ops(GENERATE(DType::f32, DType::bf16));
    const double rounding = unit_roundoff(ops.storage);
    for (const auto& [groups, width] : {std::pair{1, 64}, std::pair{1, 1}, std::pair{4, 7}}) {
        const std::int64_t cols = groups * width;
        const Tensor x = ops.random(kTokens, cols);
        const Tensor delta = ops.random(kTokens, cols);
        const Tensor weight = ops.random(1, width);
        Tensor y(ops.storage, kTokens, cols);
        Tensor rstd(DType::f32, kTokens, groups);
        Tensor sum(ops.storage, kTokens, cols);
        ops.small->add_rmsnorm_forward(y, rstd, sum, x, delta, weight, 1e-5);

        Tensor sum_exact(DType::f64, kTokens, cols);
        ops.exact->add(sum_exact, exactly(x), exactly(delta));
        // Rounded through f32 on its way to S.
        require_close("sum", sum, sum_exact, rounding * (1 + 0x1p-10), 0);

        // What follows reads the stored sum. y has two roundings to S, and some of f32 for rstd.
        Tensor y_exact(DType::f64, kTokens, cols);
        Tensor rstd_exact(DType::f64, kTokens, groups);
        ops.exact->add_rmsnorm_forward(y_exact, rstd_exact, Tensor(), exactly(sum), Tensor(), exactly(weight), 1e-5);
        require_close("rstd", rstd, rstd_exact, (2 + width) * 0x1p-24, 0);
        require_close("y", y, y_exact, 2.02 * rounding + (4 + width) * 0x1p-24, 0);

        const Tensor dy = ops.random(kTokens, cols);
        const Tensor dresidual = ops.random(kTokens, cols);
        Tensor dweight = random_tensor(ops.generator, DType::f32, 1, width);
        Tensor dweight_exact = exactly(dweight);
        Tensor dx(ops.storage, kTokens, cols);
        Tensor dx_exact(DType::f64, kTokens, cols);
        ops.small->rmsnorm_backward(dx, dweight, dresidual, dy, sum, rstd, weight);
        ops.exact->rmsnorm_backward(dx_exact, dweight_exact, exactly(dresidual), exactly(dy), exactly(sum),
                                    exactly(rstd), exactly(weight));
        // In a group of one column the two terms of the gradient cancel, at a scale of rstd * dy of up to 100.
        require_close("dx", dx, dx_exact, rounding, kSums);
        require_close("dweight", dweight, dweight_exact, 0, kSums);
    }
}

TEST_CASE("The norm rounds where Hugging Face rounds") {
    const auto ops = make_reference_ops(DType::bf16);
    std::mt19937 random(1);
    const std::int64_t cols = 64;
    const Tensor x = random_tensor(random, DType::bf16, 8, cols);
    const Tensor delta = random_tensor(random, DType::bf16, 8, cols);
    const Tensor weight = random_tensor(random, DType::bf16, 1, cols);
    Tensor y(DType::bf16, 8, cols);
    Tensor rstd(DType::f32, 8, 1);
    Tensor sum(DType::bf16, 8, cols);
    ops->add_rmsnorm_forward(y, rstd, sum, x, delta, weight, 1e-6);
    int told_apart = 0;
    for (std::int64_t t = 0; t < 8; ++t) {
        for (std::int64_t c = 0; c < cols; ++c) {
            const auto s = static_cast<float>(bfloat16(static_cast<float>(x.get(t, c) + delta.get(t, c))));
            REQUIRE(sum.get(t, c) == s);
            const float normalised = s * static_cast<float>(rstd.get(t, 0));
            const auto w = static_cast<float>(weight.get(0, c));
            const auto expected = static_cast<float>(bfloat16(static_cast<float>(bfloat16(normalised)) * w));
            REQUIRE(y.get(t, c) == expected);
            told_apart += expected != static_cast<float>(bfloat16(normalised * w)) ? 1 : 0;
        }
    }
    REQUIRE(told_apart > 50);  // the test can tell the two orders apart
}

TEST_CASE("Rope and SwiGLU of float and bfloat16 agree with double") {
    Pair ops(GENERATE(DType::f32, DType::bf16));
    const double rounding = unit_roundoff(ops.storage);
    Tensor cos(DType::f32, 40, 4);
    Tensor sin(DType::f32, 40, 4);
    for (std::int64_t p = 0; p < 40; ++p) {
        for (std::int64_t i = 0; i < 4; ++i) {
            cos.set(p, i, std::cos(static_cast<double>(p) * std::pow(0.1, static_cast<double>(i))));
            sin.set(p, i, std::sin(static_cast<double>(p) * std::pow(0.1, static_cast<double>(i))));
        }
    }
    const Tensor cos_exact = exactly(cos);
    const Tensor sin_exact = exactly(sin);
    const std::vector<std::int32_t> positions = random_indices(ops.generator, kTokens, 40);
    for (const bool inverse : {false, true}) {
        Tensor x = ops.random(kTokens, 24);
        Tensor x_exact = exactly(x);
        ops.small->rope(x, {cos, sin}, positions, 8, inverse);
        ops.exact->rope(x_exact, {cos_exact, sin_exact}, positions, 8, inverse);
        require_close("rope", x, x_exact, rounding, kSums);
    }

    Tensor gate_up = ops.random(kTokens, 26);
    gate_up.set(0, 0, 1e4);
    gate_up.set(0, 1, -1e4);
    const Tensor dact = ops.random(kTokens, 13);
    Tensor act(ops.storage, kTokens, 13);
    Tensor act_exact(DType::f64, kTokens, 13);
    ops.small->swiglu_forward(act, gate_up);
    ops.exact->swiglu_forward(act_exact, exactly(gate_up));
    // Some five operations of f32, relative to the result.
    require_close("act", act, act_exact, rounding + 16 * 0x1p-24, kSums);
    Tensor dgate_up(ops.storage, kTokens, 26);
    Tensor dgate_up_exact(DType::f64, kTokens, 26);
    ops.small->swiglu_backward(dgate_up, dact, gate_up);
    ops.exact->swiglu_backward(dgate_up_exact, exactly(dact), exactly(gate_up));
    require_close("dgate_up", dgate_up, dgate_up_exact, rounding + 16 * 0x1p-24, kSums);
}

TEST_CASE("Positions that restart turn a packed document as alone") {
    const auto ops = make_reference_ops(DType::f32);
    std::mt19937 random(6);
    const Tensor cos = random_tensor(random, DType::f32, 9, 3);
    const Tensor sin = random_tensor(random, DType::f32, 9, 3);
    Tensor packed = random_tensor(random, DType::f32, 7, 12);
    Tensor alone = packed.rows_from(4, 3);
    ops->rope(packed, {cos, sin}, std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 2}, 6, false);
    ops->rope(alone, {cos, sin}, std::vector<std::int32_t>{0, 1, 2}, 6, false);
    REQUIRE(packed.rows_from(4, 3) == alone);
}

TEST_CASE("Outputs may be inputs where the interface says so") {
    const DType storage = GENERATE(DType::f64, DType::f32, DType::bf16);
    const auto ops = make_reference_ops(storage);
    std::mt19937 random(8);
    const auto make = [&](std::int64_t cols) { return random_tensor(random, storage, kTokens, cols); };
    const Tensor x = make(12);
    const Tensor delta = make(12);
    const Tensor weight = random_tensor(random, storage, 1, 6);

    Tensor y(storage, kTokens, 12);
    Tensor rstd(ops->accumulate(), kTokens, 2);
    Tensor sum(storage, kTokens, 12);
    ops->add_rmsnorm_forward(y, rstd, sum, x, delta, weight, 1e-5);
    Tensor y2(storage, kTokens, 12);
    Tensor in_x = x;
    ops->add_rmsnorm_forward(y2, rstd, in_x, in_x, delta, weight, 1e-5);
    REQUIRE(y2 == y);
    REQUIRE(in_x == sum);
    Tensor in_delta = delta;
    ops->add_rmsnorm_forward(y2, rstd, in_delta, x, in_delta, weight, 1e-5);
    REQUIRE(y2 == y);
    REQUIRE(in_delta == sum);

    const Tensor dy = make(12);
    const Tensor dresidual = make(12);
    Tensor dx(storage, kTokens, 12);
    Tensor dweight(ops->accumulate(), 1, 6);
    ops->rmsnorm_backward(dx, dweight, dresidual, dy, sum, rstd, weight);
    Tensor in_dresidual = dresidual;
    ops->rmsnorm_backward(in_dresidual, Tensor(), in_dresidual, dy, sum, rstd, weight);
    REQUIRE(in_dresidual == dx);
    ops->rmsnorm_backward(dx, Tensor(), Tensor(), dy, sum, rstd, weight);
    Tensor in_dy = dy;
    Tensor dweight2(ops->accumulate(), 1, 6);
    ops->rmsnorm_backward(in_dy, dweight2, Tensor(), in_dy, sum, rstd, weight);
    REQUIRE(in_dy == dx);
    REQUIRE(dweight2 == dweight);

    const Tensor gate_up = make(10);
    const Tensor dact = make(5);
    Tensor dgate_up(storage, kTokens, 10);
    ops->swiglu_backward(dgate_up, dact, gate_up);
    Tensor in_gate_up = gate_up;
    ops->swiglu_backward(in_gate_up, dact, in_gate_up);
    REQUIRE(in_gate_up == dgate_up);

    Tensor total(storage, kTokens, 12);
    ops->add(total, x, delta);
    REQUIRE(total == sum);
    Tensor in_a = x;
    ops->add(in_a, in_a, delta);
    REQUIRE(in_a == total);
    Tensor in_b = delta;
    ops->add(in_b, x, in_b);
    REQUIRE(in_b == total);
}

TEST_CASE("Memory operations move what they are told, and nothing else") {
    const DType storage = GENERATE(DType::f64, DType::f32, DType::bf16);
    const auto ops = make_reference_ops(storage);
    std::mt19937 random(2);
    const Tensor from = random_tensor(random, storage, 6, 5);

    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        Tensor to(dtype, 6, 5);
        ops->copy(to, from);
        REQUIRE(to == from.as(dtype));
        ops->zero(to);
        REQUIRE(to == Tensor(dtype, 6, 5));
    }
    const std::vector<std::int32_t> rows = {5, 0, 0, 3};
    Tensor gathered(storage, 4, 5);
    ops->gather_rows(gathered, from, rows);
    Tensor embedded(storage, 4, 5);
    ops->embedding_forward(embedded, from, rows);
    Tensor scattered = random_tensor(random, storage, 6, 5);
    Tensor expected = scattered;
    for (std::int64_t i = 0; i < 4; ++i) {
        REQUIRE(gathered.rows_from(i, 1) == from.rows_from(rows[i], 1));
        for (std::int64_t c = 0; c < 5; ++c) {
            expected.set(rows[i], c, expected.get(rows[i], c) + gathered.get(i, c));
        }
    }
    REQUIRE(embedded == gathered);
    ops->scatter_add_rows(scattered, gathered, rows);
    // The double sum of the test rounds once, f32 on its way to bf16 twice.
    require_close("scattered", scattered, expected, 2 * unit_roundoff(storage), 2 * unit_roundoff(storage));
    REQUIRE(scattered.rows_from(1, 2) == expected.rows_from(1, 2));
}

TEST_CASE("The reference has the same bits with any number of threads") {
    const auto ops = make_reference_ops(DType::f32);
    std::mt19937 random(12);
    const Tensor x = random_tensor(random, DType::f32, 33, 48);
    const Tensor w = random_tensor(random, DType::f32, 21, 48);
    const Tensor dy = random_tensor(random, DType::f32, 33, 21);
    const Tensor flat = random_tensor(random, DType::f32, 1, 5000);
    const int threads_before = omp_get_max_threads();
    std::vector<std::vector<Tensor>> results;
    std::vector<double> norms;
    for (const int threads : {1, 3}) {
        omp_set_num_threads(threads);
        Tensor y(DType::f32, 33, 21);
        Tensor dx(DType::f32, 33, 48);
        Tensor dw(DType::f32, 21, 48);
        ops->linear_forward(y, x, w, Tensor());
        ops->linear_backward_input(dx, dy, w);
        ops->linear_backward_weight(dw, dy, x);
        results.push_back({y, dx, dw});
        norms.push_back(ops->squared_norm(flat));
    }
    omp_set_num_threads(threads_before);
    REQUIRE(results[0] == results[1]);
    REQUIRE(norms[0] == norms[1]);
}

TEST_CASE("Wrong arguments are named faults of the program") {
    const auto ops = make_reference_ops(DType::bf16);
    Tensor y(DType::bf16, 4, 3);
    Tensor x(DType::bf16, 4, 5);
    Tensor w(DType::bf16, 3, 5);
    REQUIRE_NOTHROW(ops->linear_forward(y, x, w, Tensor()));
    REQUIRE_THROWS_WITH(ops->linear_forward(y, Tensor(DType::f32, 4, 5), w, Tensor()),
                        "linear_forward: x is f32 [4, 5], expected bf16 [4, 5]");
    REQUIRE_THROWS_WITH(ops->linear_forward(y, x, Tensor(DType::bf16, 2, 5), Tensor()),
                        "linear_forward: w is bf16 [2, 5], expected bf16 [3, 5]");
    REQUIRE_THROWS_WITH(ops->linear_forward(y, x, w, Tensor(DType::bf16, 1, 4)),
                        "linear_forward: bias is bf16 [1, 4], expected bf16 [1, 3]");
    REQUIRE_THROWS_WITH(ops->linear_forward(y, ConstMatrix(nullptr, DType::bf16, 4, 5), w, Tensor()),
                        "linear_forward: x has no memory");
    REQUIRE_THROWS_AS(ops->linear_backward_weight(Tensor(DType::bf16, 3, 5), y, x), Error);  // dw is in A
    REQUIRE_THROWS_AS(
        ops->add_rmsnorm_forward(x, Tensor(DType::f32, 4, 1), Tensor(), x, Tensor(), Tensor(DType::bf16, 1, 2), 1e-5),
        Error);
    REQUIRE_THROWS_WITH(ops->gather_rows(y, Tensor(DType::bf16, 2, 3), std::vector<std::int32_t>{0, 1, 2, 0}),
                        "gather_rows: rows[2] = 2 is not in [0, 2)");
    Tensor table(DType::f32, 5, 2);
    Tensor heads(DType::bf16, 2, 8);
    REQUIRE_THROWS_AS(ops->rope(heads, {table, table}, std::vector<std::int32_t>{0, 5}, 4, false), Error);
    REQUIRE_THROWS_AS(ops->rope(heads, {table, table}, std::vector<std::int32_t>{0}, 4, false), Error);
    REQUIRE_THROWS_AS(ops->rope(heads, {table, table}, std::vector<std::int32_t>{0, 1}, 3, false), Error);
    REQUIRE_THROWS_AS(
        ops->log_prob_forward(Tensor(DType::f32, 1, 5), Tensor(), table, std::vector<std::int32_t>{0, 1, 2, 0, 0}, 1),
        Error);
    REQUIRE_THROWS_AS(
        ops->log_prob_forward(Tensor(DType::f32, 1, 5), Tensor(), table, std::vector<std::int32_t>{0, 1, 1, 0, 0}, 0),
        Error);
    try {
        ops->add(y, x, x);
        FAIL("shapes that differ were accepted");
    } catch (const Error& error) {
        REQUIRE(error.code() == ExitCode::internal);
    }
    REQUIRE_THROWS_AS(make_reference_ops(DType::f16), Error);

    OpsLimits limits;
    limits.tokens = 8;
    limits.kv_heads = 1;
    limits.head_dim = 4;
    alignas(64) std::array<std::byte, 512> memory{};
    REQUIRE_NOTHROW(ops->bind_workspace(memory, limits));
    REQUIRE_THROWS_AS(ops->bind_workspace(std::span(memory).first(64), limits), Error);
    REQUIRE_THROWS_AS(ops->bind_workspace(std::span(memory).subspan(8), limits), Error);
}

}  // namespace tessera
