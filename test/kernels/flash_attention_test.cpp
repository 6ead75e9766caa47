// Flash attention of the CPU backend against the reference in double: lengths and windows around the tile sizes, head
// sizes, groups, packing, strides, threads.
#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::OpsWithWorkspace;
using testing::random_tensor;
using testing::require_close;
using testing::Tensor;
using testing::unit_roundoff;

using Starts = std::vector<std::int64_t>;

/// q, k, v (or their gradients) side by side in one matrix, as the projection of a model writes them.
struct Fused {
    Tensor qkv{};
    const AttentionShape* shape = nullptr;

    [[nodiscard]] Matrix part(int which) {
        const std::int64_t q = shape->heads * shape->head_dim;
        const std::int64_t kv = shape->kv_heads * shape->head_dim;
        return Matrix(qkv).col_range(which == 0 ? 0 : q + (which - 1) * kv, which == 0 ? q : kv);
    }
};

struct Attention {
    Attention(std::mt19937& random, DType dtype, const AttentionShape& attention_shape, double size = 1)
        : shape(&attention_shape),
          inputs{random_tensor(random, dtype, tokens(), columns(), size), shape},
          gradients{random_tensor(random, dtype, tokens(), columns()), shape},
          dout(random_tensor(random, dtype, tokens(), heads_columns())),
          out(random_tensor(random, dtype, tokens(), heads_columns())),
          lse(random_tensor(random, dtype == DType::f64 ? DType::f64 : DType::f32, tokens(), shape->heads)) {}

    [[nodiscard]] std::int64_t tokens() const { return shape->starts.back(); }
    [[nodiscard]] std::int64_t columns() const { return (shape->heads + 2 * shape->kv_heads) * shape->head_dim; }
    [[nodiscard]] std::int64_t heads_columns() const { return shape->heads * shape->head_dim; }

    void forward(Ops& ops) { ops.attention_forward(out, lse, inputs.part(0), inputs.part(1), inputs.part(2), *shape); }
    void backward(Ops& ops) {
        ops.attention_backward(gradients.part(0), gradients.part(1), gradients.part(2), dout, inputs.part(0),
                               inputs.part(1), inputs.part(2), out, lse, *shape);
    }
    void run() {
        OpsWithWorkspace ops(make_cpu_ops({.storage = dout.dtype()}), testing::attention_limits(*shape));
        forward(*ops);
        backward(*ops);
    }

    const AttentionShape* shape;
    Fused inputs;
    Fused gradients;
    Tensor dout, out, lse;
};

AttentionShape shape_of(const Starts& starts, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                        std::int64_t window = 0) {
    return {.heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .window = window,
            .scale = 1 / std::sqrt(static_cast<double>(head_dim)),
            .starts = starts};
}

/// Both passes agree with the reference in double on the same (rounded) inputs.
void require_reference(std::mt19937& random, DType dtype, const AttentionShape& shape) {
    CAPTURE(name_of(dtype), shape.heads, shape.kv_heads, shape.head_dim, shape.window, shape.starts.back());
    Attention a(random, dtype, shape);
    a.run();
    Attention b = a;
    b.inputs.qkv = a.inputs.qkv.as(DType::f64);
    b.gradients.qkv = a.gradients.qkv.as(DType::f64);
    b.dout = a.dout.as(DType::f64);
    b.out = a.out.as(DType::f64);
    b.lse = a.lse.as(DType::f64);
    OpsWithWorkspace reference(make_reference_ops(DType::f64), testing::attention_limits(shape));
    b.forward(*reference);
    // One rounding to S. Scores are sums of head_dim products of order 1 / sqrt(head_dim): up to 8 or so, with some
    // units of f32 for their size and the exponential; values are below 5. Longer sums of f32 add their square root.
    const double rounding = unit_roundoff(dtype);
    const double sums = 256 * unit_roundoff(DType::f32);
    require_close("out", a.out, b.out, rounding, sums);
    require_close("lse", a.lse, b.lse, sums, sums);
    // The backward pass reads what the forward pass stored: the same stored values for both.
    b.out = a.out.as(DType::f64);
    b.lse = a.lse.as(DType::f64);
    b.backward(*reference);
    // dk and dv sum over later queries and the heads of a group; their terms are products of four factors of order 1.
    const double group = static_cast<double>(shape.heads / shape.kv_heads);
    require_close("gradients", a.gradients.qkv, b.gradients.qkv, rounding, 4 * std::sqrt(group) * sums);
}

}  // namespace

TEST_CASE("Flash attention agrees with the reference at every length and window around its tiles") {
    std::mt19937 random(1);
    for (const std::int64_t length : {1, 2, 15, 17, 63, 65, 127, 129, 300}) {
        for (const std::int64_t window : {0, 1, 2, 16, 64, 65, 1000}) {
            const Starts starts = {0, length};
            require_reference(random, DType::f32, shape_of(starts, 2, 1, 8, window));
        }
        const Starts starts = {0, length};
        require_reference(random, DType::bf16, shape_of(starts, 2, 1, 12, length % 3 == 0 ? 31 : 0));
    }
    const Starts starts = {0, 1023};
    require_reference(random, DType::f32, shape_of(starts, 1, 1, 64));
    require_reference(random, DType::bf16, shape_of(starts, 2, 1, 32, 500));
}

TEST_CASE("Flash attention agrees with the reference at every head size and grouping") {
    std::mt19937 random(2);
    const Starts starts = {0, 0, 70, 70, 71, 140, 140};
    for (const std::int64_t head_dim : {1, 7, 8, 12, 24, 32, 33, 64, 80, 96, 128, 256}) {
        require_reference(random, DType::f32, shape_of(starts, 2, 2, head_dim));
        require_reference(random, DType::bf16, shape_of(starts, 3, 1, head_dim, 40));
    }
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {4, 2}, {9, 3}, {8, 2}, {5, 1}, {16, 1}, {34, 2}}) {
        require_reference(random, DType::f32, shape_of(starts, heads, kv_heads, 16));
    }
}

TEST_CASE("Flash attention agrees with the reference on random shapes") {
    for (unsigned seed = 0; seed < 24; ++seed) {
        std::mt19937 random(seed);
        const auto pick = [&](std::int64_t low, std::int64_t high) {
            return std::uniform_int_distribution<std::int64_t>(low, high)(random);
        };
        Starts starts = {0};
        for (std::int64_t s = pick(1, 4); s > 0; --s) {
            starts.push_back(starts.back() + pick(0, 3) * pick(0, 60));
        }
        const std::int64_t kv_heads = pick(1, 2);
        const std::int64_t window = pick(0, 1) * pick(1, 150);
        const AttentionShape shape = shape_of(starts, kv_heads * pick(1, 4), kv_heads, pick(1, 40), window);
        CAPTURE(seed);
        require_reference(random, seed % 2 == 0 ? DType::f32 : DType::bf16, shape);
    }
}

TEST_CASE("A packed document has the bits of flash attention on it alone") {
    const DType dtype = GENERATE(DType::f32, DType::bf16);
    const std::int64_t window = GENERATE(0, 33);
    std::mt19937 random(3);
    const Starts starts = {0, 5, 5, 105, 106, 236};
    const AttentionShape packed = shape_of(starts, 4, 2, 20, window);
    Attention a(random, dtype, packed);
    a.run();
    for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
        const std::int64_t first = starts[s];
        const std::int64_t length = starts[s + 1] - first;
        const Starts alone_starts = {0, length};
        const AttentionShape alone = shape_of(alone_starts, 4, 2, 20, window);
        Attention b(random, dtype, alone);
        b.inputs.qkv = a.inputs.qkv.rows_from(first, length);
        b.dout = a.dout.rows_from(first, length);
        b.run();
        require_close("out", a.out.rows_from(first, length), b.out, 0, 0);
        require_close("lse", a.lse.rows_from(first, length), b.lse, 0, 0);
        require_close("gradients", a.gradients.qkv.rows_from(first, length), b.gradients.qkv, 0, 0);
    }
}

TEST_CASE("Flash attention has the same bits with any number of threads, again and again") {
    const DType dtype = GENERATE(DType::f32, DType::bf16);
    const int before = omp_get_max_threads();
    const Starts starts = {0, 300, 301, 450};
    const AttentionShape shape = shape_of(starts, 3, 1, 16, dtype == DType::f32 ? 0 : 100);
    std::mt19937 random(4);
    Attention one(random, dtype, shape);
    Attention many = one;
    omp_set_num_threads(1);
    one.run();
    for (const int threads : {2, 5, 5, 5}) {
        omp_set_num_threads(threads);
        many.run();
        CHECK(many.out == one.out);
        CHECK(many.lse == one.lse);
        CHECK(many.gradients.qkv == one.gradients.qkv);
    }
    omp_set_num_threads(before);
}

TEST_CASE("Flash attention of large scores stays finite, and a window of 1 returns the token's own value") {
    std::mt19937 random(5);
    const Starts starts = {0, 150};
    AttentionShape shape = shape_of(starts, 2, 1, 8);
    shape.scale = 1000;
    Attention a(random, DType::f32, shape);
    a.run();
    CHECK(std::isfinite(testing::inner_product(a.out, a.out)));
    CHECK(std::isfinite(testing::inner_product(a.lse, a.lse)));
    CHECK(std::isfinite(testing::inner_product(a.gradients.qkv, a.gradients.qkv)));

    const AttentionShape one = shape_of(starts, 2, 2, 8, 1);
    Attention b(random, DType::f32, one);
    b.run();
    for (std::int64_t t = 0; t < 150; ++t) {
        for (std::int64_t c = 0; c < 16; ++c) {
            // A probability of 1 from the stored log-sum-exp, to its rounding.
            REQUIRE(b.out.get(t, c) == b.inputs.qkv.get(t, 32 + c));
            REQUIRE(b.gradients.qkv.get(t, 32 + c) == Approx(b.dout.get(t, c)).epsilon(1e-5));
        }
    }
}

TEST_CASE("Flash attention takes no tokens, and refuses more than its workspace was made for") {
    std::mt19937 random(6);
    for (const Starts& none : {Starts{0}, Starts{0, 0, 0}}) {
        const AttentionShape shape = shape_of(none, 2, 1, 4);
        Attention(random, DType::bf16, shape).run();
    }
    const Starts starts = {0, 64};
    const AttentionShape shape = shape_of(starts, 2, 1, 64);
    Attention a(random, DType::f32, shape);
    const OpsLimits small = {.tokens = 1, .columns = 1, .heads = 1, .kv_heads = 1, .head_dim = 1, .longest_segment = 1};
    OpsWithWorkspace cramped(make_cpu_ops({.storage = DType::f32}), small);
    REQUIRE_THROWS_WITH(a.forward(*cramped), Catch::Contains("workspace"));
    REQUIRE_THROWS_WITH(a.backward(*cramped), Catch::Contains("workspace"));
}

}  // namespace tessera
