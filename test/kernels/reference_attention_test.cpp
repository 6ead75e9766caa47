// Attention of the reference against a dense matrix of scores, and its promises about packing, windows and groups.
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::OpsWithWorkspace;
using testing::random_tensor;
using testing::Tensor;
using testing::unit_roundoff;

/// The inputs and outputs of both passes.
struct Attention {
    Tensor q, k, v, dout;
    Tensor out{}, lse{}, dq{}, dk{}, dv{};
};

Attention random_inputs(std::mt19937& random, DType dtype, const AttentionShape& shape) {
    const std::int64_t tokens = shape.starts.back();
    const std::int64_t q_cols = shape.heads * shape.head_dim;
    const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
    return {.q = random_tensor(random, dtype, tokens, q_cols),
            .k = random_tensor(random, dtype, tokens, kv_cols),
            .v = random_tensor(random, dtype, tokens, kv_cols),
            .dout = random_tensor(random, dtype, tokens, q_cols)};
}

void forward(Ops& ops, Attention& a, const AttentionShape& shape) {
    a.out = Tensor(ops.storage(), a.q.rows(), a.q.cols());
    a.lse = Tensor(ops.accumulate(), a.q.rows(), shape.heads);
    ops.attention_forward(a.out, a.lse, a.q, a.k, a.v, shape);
}

void backward(Ops& ops, Attention& a, const AttentionShape& shape) {
    a.dq = Tensor(ops.storage(), a.q.rows(), a.q.cols());
    a.dk = Tensor(ops.storage(), a.k.rows(), a.k.cols());
    a.dv = Tensor(ops.storage(), a.v.rows(), a.v.cols());
    ops.attention_backward(a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v, a.out, a.lse, shape);
}

void run(Attention& a, const AttentionShape& shape) {
    OpsWithWorkspace ops(make_reference_ops(a.q.dtype()), testing::attention_limits(shape));
    forward(*ops, a, shape);
    backward(*ops, a, shape);
}

AttentionShape shape_of(const std::vector<std::int64_t>& starts, std::int64_t heads, std::int64_t kv_heads,
                        std::int64_t head_dim, std::int64_t window = 0) {
    return {.heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .window = window,
            .scale = 1 / std::sqrt(static_cast<double>(head_dim)),
            .starts = starts};
}

/// out and lse from the full matrix of scores of all tokens, of which a mask leaves those that the definition names.
void require_dense(const Attention& a, const AttentionShape& shape, double tolerance) {
    const std::int64_t tokens = shape.starts.back();
    std::vector<std::int64_t> segment_of;
    for (std::size_t s = 0; s + 1 < shape.starts.size(); ++s) {
        segment_of.resize(static_cast<std::size_t>(shape.starts[s + 1]), static_cast<std::int64_t>(s));
    }
    Tensor out(DType::f64, tokens, shape.heads * shape.head_dim);
    Tensor lse(DType::f64, tokens, shape.heads);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
        const std::int64_t kv = h / (shape.heads / shape.kv_heads);
        for (std::int64_t i = 0; i < tokens; ++i) {
            double sum = 0;
            std::vector<double> value(static_cast<std::size_t>(shape.head_dim), 0);
            for (std::int64_t j = 0; j < tokens; ++j) {
                const bool visible =
                    segment_of[i] == segment_of[j] && j <= i && (shape.window == 0 || i - j < shape.window);
                if (!visible) {
                    continue;
                }
                double score = 0;
                for (std::int64_t d = 0; d < shape.head_dim; ++d) {
                    score += a.q.get(i, h * shape.head_dim + d) * a.k.get(j, kv * shape.head_dim + d);
                }
                const double e = std::exp(shape.scale * score);
                sum += e;
                for (std::int64_t d = 0; d < shape.head_dim; ++d) {
                    value[d] += e * a.v.get(j, kv * shape.head_dim + d);
                }
            }
            lse.set(i, h, std::log(sum));
            for (std::int64_t d = 0; d < shape.head_dim; ++d) {
                out.set(i, h * shape.head_dim + d, value[d] / sum);
            }
        }
    }
    testing::require_close("out", a.out, out, unit_roundoff(a.out.dtype()), tolerance);
    testing::require_close("lse", a.lse, lse, tolerance, tolerance);
}

bool all_finite(const Tensor& x) {
    return std::isfinite(testing::inner_product(x, x));
}

}  // namespace

TEST_CASE("Attention is the softmax of the visible scores at every length") {
    for (const std::int64_t length : {1, 2, 15, 17, 63, 65, 127, 129, 1023}) {
        for (const DType dtype : {DType::f64, DType::f32}) {
            std::mt19937 random(static_cast<unsigned>(length));
            const std::vector<std::int64_t> starts = {0, length};
            const std::int64_t heads = length > 200 ? 1 : 3;
            const std::int64_t window = length % 4 == 1 ? 16 : 0;
            const AttentionShape shape = shape_of(starts, heads, 1, 4, window);
            Attention a = random_inputs(random, dtype, shape);
            run(a, shape);
            CAPTURE(length);
            // Probabilities sum to 1 and values are below 5; scores carry the rounding of their magnitude, up to 10.
            // Sums of up to 1023 terms: some units for each.
            require_dense(a, shape, 256 * unit_roundoff(dtype));
            REQUIRE(all_finite(a.dq));
            REQUIRE(all_finite(a.dk));
            REQUIRE(all_finite(a.dv));
        }
    }
}

TEST_CASE("Random shapes of attention follow the definition") {
    for (unsigned seed = 0; seed < 30; ++seed) {
        std::mt19937 random(seed);
        const auto pick = [&](std::int64_t low, std::int64_t high) {
            return std::uniform_int_distribution<std::int64_t>(low, high)(random);
        };
        std::vector<std::int64_t> starts = {0};
        for (std::int64_t s = pick(1, 5); s > 0; --s) {
            starts.push_back(starts.back() + pick(0, 20));
        }
        const std::int64_t kv_heads = pick(1, 3);
        const AttentionShape shape = shape_of(starts, kv_heads * pick(1, 4), kv_heads, pick(1, 20), pick(0, 12));
        Attention a = random_inputs(random, DType::f64, shape);
        run(a, shape);
        CAPTURE(seed);
        require_dense(a, shape, 256 * unit_roundoff(DType::f64));
    }
}

TEST_CASE("A packed document has the bits of the same document alone, and empty ones are legal") {
    const DType dtype = GENERATE(DType::f64, DType::f32, DType::bf16);
    const std::int64_t window = GENERATE(0, 5);
    std::mt19937 random(1);
    const std::vector<std::int64_t> starts = {0, 0, 7, 8, 8, 25, 27, 27};
    const AttentionShape packed = shape_of(starts, 4, 2, 6, window);
    Attention a = random_inputs(random, dtype, packed);
    run(a, packed);
    for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
        const std::int64_t first = starts[s];
        const std::int64_t length = starts[s + 1] - first;
        const std::vector<std::int64_t> alone_starts = {0, length};
        const AttentionShape alone = shape_of(alone_starts, 4, 2, 6, window);
        Attention b{.q = a.q.rows_from(first, length),
                    .k = a.k.rows_from(first, length),
                    .v = a.v.rows_from(first, length),
                    .dout = a.dout.rows_from(first, length)};
        run(b, alone);
        // A single row is not padded, so values are compared, exactly.
        testing::require_close("out", a.out.rows_from(first, length), b.out, 0, 0);
        testing::require_close("lse", a.lse.rows_from(first, length), b.lse, 0, 0);
        testing::require_close("dq", a.dq.rows_from(first, length), b.dq, 0, 0);
        testing::require_close("dk", a.dk.rows_from(first, length), b.dk, 0, 0);
        testing::require_close("dv", a.dv.rows_from(first, length), b.dv, 0, 0);
    }
}

TEST_CASE("No tokens at all are legal") {
    const std::vector<std::int64_t> none = GENERATE(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{0, 0, 0});
    const AttentionShape shape = shape_of(none, 2, 1, 4);
    std::mt19937 random(1);
    Attention a = random_inputs(random, DType::f32, shape);
    run(a, shape);
}

TEST_CASE("A window counts the current token") {
    std::mt19937 random(2);
    const std::vector<std::int64_t> starts = {0, 9};
    const AttentionShape one = shape_of(starts, 2, 2, 3, 1);
    Attention a = random_inputs(random, DType::f32, one);
    run(a, one);
    testing::require_close("out", a.out, a.v, 0, 0);  // a token that sees only itself returns its own value
    REQUIRE(a.dv == a.dout);

    const AttentionShape three = shape_of(starts, 2, 2, 3, 3);
    run(a, three);
    const Attention before = a;
    for (std::int64_t c = 0; c < a.k.cols(); ++c) {
        a.k.set(4, c, 100);
        a.v.set(4, c, -100);
    }
    run(a, three);
    for (std::int64_t i = 0; i < 9; ++i) {
        const bool sees_key_4 = i == 4 || i == 5 || i == 6;
        CAPTURE(i);
        REQUIRE((a.out.rows_from(i, 1) == before.out.rows_from(i, 1)) != sees_key_4);
        REQUIRE((a.lse.rows_from(i, 1) == before.lse.rows_from(i, 1)) != sees_key_4);
    }

    const AttentionShape whole = shape_of(starts, 2, 2, 3, 9);
    const AttentionShape unlimited = shape_of(starts, 2, 2, 3, 0);
    Attention b = before;
    Attention c = before;
    run(b, whole);
    run(c, unlimited);
    REQUIRE(b.out == c.out);
    REQUIRE(b.dk == c.dk);
}

TEST_CASE("Gradients of keys and values sum over the heads of their group") {
    std::mt19937 random(5);
    const std::vector<std::int64_t> starts = {0, 6, 13};
    const std::int64_t dim = 5;
    const AttentionShape grouped = shape_of(starts, 6, 2, dim);
    Attention a = random_inputs(random, DType::f64, grouped);
    run(a, grouped);

    // The same keys and values, written out for every head.
    const AttentionShape whole = shape_of(starts, 6, 6, dim);
    Attention b{.q = a.q, .k = a.q, .v = a.q, .dout = a.dout};
    const auto source = [&](std::int64_t c) { return c / dim / 3 * dim + c % dim; };
    for (std::int64_t t = 0; t < 13; ++t) {
        for (std::int64_t c = 0; c < 6 * dim; ++c) {
            b.k.set(t, c, a.k.get(t, source(c)));
            b.v.set(t, c, a.v.get(t, source(c)));
        }
    }
    run(b, whole);
    REQUIRE(a.out == b.out);
    REQUIRE(a.dq == b.dq);
    Tensor dk(DType::f64, 13, 2 * dim);
    Tensor dv(DType::f64, 13, 2 * dim);
    for (std::int64_t t = 0; t < 13; ++t) {
        for (std::int64_t c = 0; c < 6 * dim; ++c) {
            dk.set(t, source(c), dk.get(t, source(c)) + b.dk.get(t, c));
            dv.set(t, source(c), dv.get(t, source(c)) + b.dv.get(t, c));
        }
    }
    testing::require_close("dk", a.dk, dk, 1e-13, 1e-13);
    testing::require_close("dv", a.dv, dv, 1e-13, 1e-13);
}

TEST_CASE("Attention of float and bfloat16 agrees with that of double on the same inputs") {
    const DType dtype = GENERATE(DType::f32, DType::bf16);
    for (unsigned seed = 0; seed < 8; ++seed) {
        std::mt19937 random(seed);
        const std::vector<std::int64_t> starts = {0, 17, 20, 60};
        const AttentionShape shape = shape_of(starts, 4, 2, 8, seed % 2 == 0 ? 0 : 7);
        Attention a = random_inputs(random, dtype, shape);
        run(a, shape);
        Attention b{
            .q = a.q.as(DType::f64), .k = a.k.as(DType::f64), .v = a.v.as(DType::f64), .dout = a.dout.as(DType::f64)};
        OpsWithWorkspace ops(make_reference_ops(DType::f64), testing::attention_limits(shape));
        forward(*ops, b, shape);
        // One rounding to S, and sums of up to 40 terms of order 1 to 10 in f32.
        const double rounding = unit_roundoff(dtype);
        const double sums = 512 * unit_roundoff(DType::f32);
        testing::require_close("out", a.out, b.out, rounding, sums);
        testing::require_close("lse", a.lse, b.lse, sums, sums);
        // The backward pass reads what the forward pass stored: the same stored values for both.
        b.out = a.out.as(DType::f64);
        b.lse = a.lse.as(DType::f64);
        backward(*ops, b, shape);
        testing::require_close("dq", a.dq, b.dq, rounding, sums);
        testing::require_close("dk", a.dk, b.dk, rounding, 4 * sums);  // over the heads of a group and later queries
        testing::require_close("dv", a.dv, b.dv, rounding, 4 * sums);
    }
}

TEST_CASE("Large scores stay finite") {
    std::mt19937 random(9);
    const std::vector<std::int64_t> starts = {0, 33};
    AttentionShape shape = shape_of(starts, 2, 1, 8);
    shape.scale = 1000;
    Attention a = random_inputs(random, DType::f32, shape);
    run(a, shape);
    for (const Tensor* x : {&a.out, &a.lse, &a.dq, &a.dk, &a.dv}) {
        REQUIRE(all_finite(*x));
    }
}

TEST_CASE("Attention refuses shapes that make no sense, and a workspace that is too small") {
    std::mt19937 random(3);
    const std::vector<std::int64_t> starts = {0, 4, 9};
    const AttentionShape good = shape_of(starts, 4, 2, 3);
    Attention a = random_inputs(random, DType::f32, good);
    OpsWithWorkspace ops(make_reference_ops(DType::f32), testing::attention_limits(good));
    forward(*ops, a, good);

    const std::vector<std::int64_t> late = {1, 9};
    const std::vector<std::int64_t> early_end = {0, 8};
    const std::vector<std::int64_t> descending = {0, 6, 4, 9};
    for (const std::vector<std::int64_t>& bad : {late, early_end, descending, {}}) {
        AttentionShape shape = good;
        shape.starts = bad;
        REQUIRE_THROWS_AS(ops->attention_forward(a.out, a.lse, a.q, a.k, a.v, shape), Error);
    }
    for (const auto& [heads, kv_heads, window] :
         {std::tuple{4, 3, 0}, std::tuple{0, 2, 0}, std::tuple{4, 0, 0}, std::tuple{4, 2, -1}, std::tuple{2, 1, 0}}) {
        AttentionShape shape = good;
        shape.heads = heads;
        shape.kv_heads = kv_heads;
        shape.window = window;
        REQUIRE_THROWS_AS(ops->attention_forward(a.out, a.lse, a.q, a.k, a.v, shape), Error);
    }

    OpsLimits small = testing::attention_limits(good);
    small.tokens -= 1;
    OpsWithWorkspace cramped(make_reference_ops(DType::f32), small);
    REQUIRE_THROWS_WITH(cramped->attention_forward(a.out, a.lse, a.q, a.k, a.v, good), Catch::Contains("workspace"));
}

}  // namespace tessera
