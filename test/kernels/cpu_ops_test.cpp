// The CPU backend against the reference in double, fused and composed, on random shapes: everything but attention.
#include "kernels/cpu/cpu_ops.h"

#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::OpsWithWorkspace;
using testing::random_indices;
using testing::random_tensor;
using testing::require_close;
using testing::Tensor;
using testing::unit_roundoff;

constexpr double kUnit = 0x1p-24;  // of f32, in which everything is computed

/// Limits that cover every case below; `columns` also of one group of a norm.
OpsLimits limits(std::int64_t columns = 700) {
    return {.tokens = 600, .columns = columns, .weight_elements = 1 << 20, .logits_rows = 64, .vocabulary = 200000};
}

/// The backend under test, the truth, and random values of the storage type.
struct Case {
    Case(const OpsOptions& options, unsigned seed, std::int64_t columns = 700)
        : storage(options.storage),
          rounding(unit_roundoff(options.storage)),
          cpu(make_cpu_ops(options), limits(columns)),
          exact(make_reference_ops(DType::f64)),
          generator(seed) {}
    explicit Case(unsigned seed, std::int64_t columns = 700) : Case(options_of(seed), seed, columns) {}

    /// Both storage types, fused and composed, in turn.
    static OpsOptions options_of(unsigned seed) {
        return {.storage = seed % 2 == 0 ? DType::f32 : DType::bf16, .fused = seed / 2 % 3 != 0};
    }

    [[nodiscard]] Tensor random(std::int64_t rows, std::int64_t cols, double scale = 1) {
        return random_tensor(generator, storage, rows, cols, scale);
    }
    [[nodiscard]] Tensor random_f32(std::int64_t rows, std::int64_t cols, double scale = 1) {
        return random_tensor(generator, DType::f32, rows, cols, scale);
    }
    [[nodiscard]] std::int64_t pick(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
    }
    /// Sizes around the widths of vectors and blocks.
    [[nodiscard]] std::int64_t pick_size(std::int64_t high) {
        static constexpr std::int64_t kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 577};
        const std::int64_t size = kSizes[pick(0, 16)];
        return size <= high ? size : pick(1, high);
    }

    DType storage;
    double rounding;
    OpsWithWorkspace cpu;
    std::unique_ptr<Ops> exact;
    std::mt19937 generator;
};

Tensor exactly(const Tensor& x) {
    return x.as(DType::f64);
}

/// Bound of the error of a sum in f32 of `terms` products of normally distributed numbers: the partial sums are below
/// 5 sqrt(terms), and roundings add up like a random walk, with room for an unlucky one.
double sum_error(std::int64_t terms) {
    const double n = static_cast<double>(terms);
    return 8 * kUnit * (n + 5 * std::sqrt(n));
}

constexpr unsigned kSeeds = 18;

}  // namespace

TEST_CASE("Products agree with double") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t tokens = c.pick_size(600);
        const std::int64_t in = c.pick_size(600);
        const std::int64_t out = seed % 5 == 0 ? c.pick(500, 1100) : c.pick_size(600);
        CAPTURE(seed, tokens, in, out);
        const Tensor x = c.random(tokens, in);
        const Tensor w = c.random(out, in);
        const Tensor bias = seed % 3 == 0 ? c.random(1, out) : Tensor();
        const Tensor dy = c.random(tokens, out);
        const Tensor exact_bias = seed % 3 == 0 ? exactly(bias) : Tensor();

        Tensor y(c.storage, tokens, out);
        Tensor y_exact(DType::f64, tokens, out);
        c.cpu->linear_forward(y, x, w, bias);
        c.exact->linear_forward(y_exact, exactly(x), exactly(w), exact_bias);
        require_close("y", y, y_exact, c.rounding, sum_error(in));

        Tensor logits(DType::f32, tokens, out);
        c.cpu->logits_forward(logits, x, w);
        c.exact->logits_forward(y_exact, exactly(x), exactly(w));
        require_close("logits", logits, y_exact, 0, sum_error(in));

        Tensor dx(c.storage, tokens, in);
        Tensor dx_exact(DType::f64, tokens, in);
        c.cpu->linear_backward_input(dx, dy, w);
        c.exact->linear_backward_input(dx_exact, exactly(dy), exactly(w));
        require_close("dx", dx, dx_exact, c.rounding, sum_error(out));

        Tensor dw = c.random_f32(out, in);
        Tensor dw_exact = exactly(dw);
        c.cpu->linear_backward_weight(dw, dy, x);
        c.exact->linear_backward_weight(dw_exact, exactly(dy), exactly(x));
        require_close("dw", dw, dw_exact, 0, sum_error(tokens));

        Tensor db = c.random_f32(1, out);
        Tensor db_exact = exactly(db);
        c.cpu->bias_backward(db, dy);
        c.exact->bias_backward(db_exact, exactly(dy));
        require_close("db", db, db_exact, 0, sum_error(tokens));
    }
}

TEST_CASE("Rows of a table agree with double, in the order of the tokens") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t tokens = c.pick(1, 300);
        const std::int64_t hidden = c.pick_size(600);
        const std::int64_t vocabulary = c.pick(1, 40);
        const std::vector<std::int32_t> ids = random_indices(c.generator, tokens, vocabulary);
        const Tensor table = c.random(vocabulary, hidden);
        Tensor out(c.storage, tokens, hidden);
        Tensor out_exact(DType::f64, tokens, hidden);
        c.cpu->embedding_forward(out, table, ids);
        c.exact->embedding_forward(out_exact, exactly(table), ids);
        require_close("out", out, out_exact, 0, 0);

        const Tensor dout = c.random(tokens, hidden);
        Tensor dtable = c.random_f32(vocabulary, hidden);
        Tensor dtable_exact = exactly(dtable);
        c.cpu->embedding_backward(dtable, dout, ids);
        c.exact->embedding_backward(dtable_exact, exactly(dout), ids);
        require_close("dtable", dtable, dtable_exact, 0, sum_error(tokens));

        // Sums of S: the composed loops in f32 and bf16 have the same order, so also the same bits.
        const std::unique_ptr<Ops> composed = make_reference_ops(c.storage);
        Tensor to = c.random(vocabulary, hidden);
        Tensor to_composed = to;
        c.cpu->scatter_add_rows(to, dout, ids);
        composed->scatter_add_rows(to_composed, dout, ids);
        CHECK(to == to_composed);
        c.cpu->gather_rows(out, to, ids);
        composed->embedding_forward(out_exact = Tensor(c.storage, tokens, hidden), to, ids);
        CHECK(out == out_exact);
    }
}

TEST_CASE("RMSNorm agrees with double: rows, heads, residuals, aliases") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        const bool large = seed == 5;
        Case c(seed, large ? 3 * 8192 : 3 * 600);
        const std::int64_t tokens = c.pick_size(large ? 20 : 200);
        const std::int64_t groups = c.pick(1, 3);
        const std::int64_t cols = large ? 8192 : c.pick_size(600);
        const std::int64_t width = groups * cols;
        const bool adds = c.pick(0, 1) == 1;
        const double scale = std::pow(10.0, c.pick(-3, 3));
        const double eps = 1e-6;
        CAPTURE(seed, tokens, groups, cols, adds, scale);
        const Tensor x = c.random(tokens, width, scale);
        const Tensor delta = adds ? c.random(tokens, width, scale) : Tensor();
        const Tensor weight = c.random(1, cols);
        Tensor sum = x;
        Tensor y(c.storage, tokens, width);
        Tensor rstd(DType::f32, tokens, groups);
        c.cpu->add_rmsnorm_forward(y, rstd, sum, sum, delta, weight, eps);  // sum over x

        Tensor sum_exact = exactly(x);
        if (adds) {
            c.exact->add(sum_exact, exactly(x), exactly(delta));
            require_close("sum", sum, sum_exact, c.rounding, 0);
        } else {
            CHECK(sum == x);
        }
        // From the rounded sum on.
        Tensor y_exact(DType::f64, tokens, width);
        Tensor rstd_exact(DType::f64, tokens, groups);
        c.exact->add_rmsnorm_forward(y_exact, rstd_exact, Tensor(), exactly(sum), Tensor(), exactly(weight), eps);
        require_close("rstd", rstd, rstd_exact, 64 * kUnit, 0);  // sums of squares in runs: errors of some units
        require_close("y", y, y_exact, 2.01 * c.rounding + 64 * kUnit, 0);  // two roundings to S

        const bool has_residual = c.pick(0, 1) == 1;
        const Tensor dy = c.random(tokens, width);
        const Tensor residual = has_residual ? c.random(tokens, width) : Tensor();
        Tensor dx = has_residual ? residual : dy;  // in place over either
        Tensor dweight = c.random_f32(1, cols);
        Tensor dx_exact(DType::f64, tokens, width);
        Tensor dweight_exact = exactly(dweight);
        c.exact->rmsnorm_backward(dx_exact, dweight_exact, has_residual ? exactly(residual) : Tensor(), exactly(dy),
                                  exactly(sum), exactly(rstd), exactly(weight));
        if (has_residual) {
            c.cpu->rmsnorm_backward(dx, dweight, dx, dy, sum, rstd, weight);
        } else {
            c.cpu->rmsnorm_backward(dx, dweight, Tensor(), dx, sum, rstd, weight);
        }
        // Terms of order weight * dy / scale, below 25, and a mean of such terms.
        require_close("dx", dx, dx_exact, c.rounding, 100 * kUnit * (25 / scale + 5));
        require_close("dweight", dweight, dweight_exact, 0, 4 * sum_error(tokens * groups));

        Tensor dx_only(c.storage, tokens, width);
        c.cpu->rmsnorm_backward(dx_only, Tensor(), residual, dy, sum, rstd, weight);
        CHECK(dx_only == dx);
    }
}

TEST_CASE("Rope agrees with double and its inverse undoes it") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t tokens = c.pick_size(200);
        const std::int64_t head_dim = 2 * c.pick_size(64);
        const std::int64_t heads = c.pick(1, 5);
        const std::int64_t table_rows = c.pick(1, 50);
        const std::vector<std::int32_t> positions = random_indices(c.generator, tokens, table_rows);
        Tensor cosines(DType::f32, table_rows, head_dim / 2);
        Tensor sines(DType::f32, table_rows, head_dim / 2);
        for (std::int64_t p = 0; p < table_rows; ++p) {
            for (std::int64_t i = 0; i < head_dim / 2; ++i) {
                const double angle = static_cast<double>(p) * std::pow(10.0, -static_cast<double>(i) / 8);
                cosines.set(p, i, std::cos(angle));
                sines.set(p, i, std::sin(angle));
            }
        }
        Tensor exact_cosines = exactly(cosines);
        Tensor exact_sines = exactly(sines);
        const Tensor before = c.random(tokens, heads * head_dim);
        for (const bool inverse : {false, true}) {
            Tensor x = before;
            Tensor x_exact = exactly(before);
            c.cpu->rope(x, {cosines, sines}, positions, head_dim, inverse);
            c.exact->rope(x_exact, {exact_cosines, exact_sines}, positions, head_dim, inverse);
            require_close("x", x, x_exact, c.rounding, 10 * 3 * kUnit);  // two products below 10 and their sum
        }
    }
}

TEST_CASE("SwiGLU agrees with double, also for gates far from 0") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t tokens = c.pick_size(200);
        const std::int64_t inner = c.pick_size(600);
        const double scale = seed % 4 < 2 ? 2 : 100;
        const Tensor gate_up = c.random(tokens, 2 * inner, scale);
        const Tensor dact = c.random(tokens, inner);
        Tensor act(c.storage, tokens, inner);
        Tensor act_exact(DType::f64, tokens, inner);
        c.cpu->swiglu_forward(act, gate_up);
        c.exact->swiglu_forward(act_exact, exactly(gate_up));
        // An exponential within 2 units, a sum, a quotient and two products; below 1e-30 (a gate of -69) accuracy ends.
        require_close("act", act, act_exact, c.rounding + 6 * kUnit, 1e-30);

        Tensor exact_gradient(DType::f64, tokens, 2 * inner);
        c.exact->swiglu_backward(exact_gradient, exactly(dact), exactly(gate_up));
        Tensor gradient = gate_up;
        c.cpu->swiglu_backward(gradient, dact, gradient);
        // silu' is a sum of terms up to 0.3 that cancel near the gate -1.28; dact and up are below 5 times their size.
        require_close("dgate_up", gradient, exact_gradient, c.rounding + 8 * kUnit, 25 * scale * 4 * kUnit);
    }
}

TEST_CASE("The exponentials of SiLU are accurate to units in the last place") {
    // act = gate * sigmoid(gate) * 1, with a sigmoid near e^gate for very negative gates.
    OpsWithWorkspace ops(make_cpu_ops({.storage = DType::f32}), limits());
    const std::int64_t count = 100001;
    Tensor gate_up(DType::f32, 1, 2 * count);
    for (std::int64_t i = 0; i < count; ++i) {
        gate_up.set(0, i, -80 + 100 * static_cast<double>(i) / static_cast<double>(count));
        gate_up.set(0, count + i, 1);
    }
    Tensor act(DType::f32, 1, count);
    ops->swiglu_forward(act, gate_up);
    double worst = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const double gate = gate_up.get(0, i);
        const double expected = gate / (1 + std::exp(-gate));
        worst = std::max(worst, std::abs(act.get(0, i) / expected - 1));
    }
    CHECK(worst < 5 * kUnit);  // 2 of the exponential, and one each of a sum, a quotient and a product
}

TEST_CASE("Log-probs, entropy and gradients agree with double") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t rows = c.pick_size(40);
        const std::int64_t vocabulary = seed % 6 == 0 ? c.pick(1000, 5000) : c.pick_size(600);
        const double scale = std::pow(10.0, c.pick(-1, 2));
        const double temperature = seed % 3 == 0 ? 1 : 0.5 + static_cast<double>(c.pick(0, 10)) / 4;
        CAPTURE(seed, rows, vocabulary, scale, temperature);
        Tensor logits = c.random_f32(rows, vocabulary, scale);
        const std::vector<std::int32_t> targets = random_indices(c.generator, rows, vocabulary);
        // Logits of minus infinity, but never the target's or all.
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t i = 0; i < vocabulary; i += 7) {
                if (i != targets[r]) {
                    logits.set(r, i, -std::numeric_limits<double>::infinity());
                }
            }
        }
        Tensor log_probs(DType::f32, 1, rows);
        Tensor entropy(DType::f32, 1, rows);
        Tensor exact_log_probs(DType::f64, 1, rows);
        Tensor exact_entropy(DType::f64, 1, rows);
        c.cpu->log_prob_forward(log_probs, entropy, logits, targets, temperature);
        c.exact->log_prob_forward(exact_log_probs, exact_entropy, exactly(logits), targets, temperature);
        // z carries roundings of its size, which is below 5 scale / temperature.
        const double size = 5 * scale / temperature + std::log(static_cast<double>(vocabulary));
        require_close("log_probs", log_probs, exact_log_probs, 2 * kUnit, 4 * size * kUnit + 1e-7);
        require_close("entropy", entropy, exact_entropy, 8 * kUnit, 8 * size * kUnit + 1e-7);
        Tensor without(DType::f32, 1, rows);
        c.cpu->log_prob_forward(without, Tensor(), logits, targets, temperature);
        CHECK(without == log_probs);

        Tensor weights = c.random_f32(1, rows);
        weights.set(0, 0, 0);
        Tensor dlogits(c.storage, rows, vocabulary);
        Tensor exact_dlogits(DType::f64, rows, vocabulary);
        c.exact->cross_entropy(exact_log_probs, exact_dlogits, exactly(logits), targets, exactly(weights));
        c.cpu->cross_entropy(log_probs, dlogits, logits, targets, weights);
        require_close("log_probs", log_probs, exact_log_probs, 2 * kUnit, 4 * (5 * scale + 9) * kUnit);
        // A probability to the rounding of its exponent, and a weight below 5.
        require_close("dlogits", dlogits, exact_dlogits, c.rounding + 4 * (10 * scale + 9) * kUnit, 5 * 8 * kUnit);
        for (std::int64_t i = 0; i < vocabulary; ++i) {
            REQUIRE(dlogits.get(0, i) == 0);
        }
        if (c.storage == DType::f32) {
            Tensor in_place = logits;
            c.cpu->cross_entropy(log_probs, in_place, in_place, targets, weights);
            CHECK(in_place == dlogits);
        }
    }
}

TEST_CASE("A log-prob over a long vocabulary is right to a millionth, whatever the size of the logits") {
    OpsWithWorkspace ops(make_cpu_ops({.storage = DType::f32}), limits());
    const std::unique_ptr<Ops> exact = make_reference_ops(DType::f64);
    std::mt19937 random(1);
    const std::int64_t vocabulary = 151936;
    for (const double offset : {0.0, 1e4, -1e4}) {
        Tensor logits = random_tensor(random, DType::f32, 2, vocabulary, 3);
        for (std::int64_t r = 0; r < 2; ++r) {
            for (std::int64_t i = 0; i < vocabulary; ++i) {
                logits.set(r, i, logits.get(r, i) + offset);
            }
        }
        const std::vector<std::int32_t> targets = random_indices(random, 2, vocabulary);
        Tensor log_probs(DType::f32, 1, 2);
        Tensor entropy(DType::f32, 1, 2);
        Tensor exact_log_probs(DType::f64, 1, 2);
        Tensor exact_entropy(DType::f64, 1, 2);
        ops->log_prob_forward(log_probs, entropy, logits, targets, 1);
        exact->log_prob_forward(exact_log_probs, exact_entropy, exactly(logits), targets, 1);
        require_close("log_probs", log_probs, exact_log_probs, 0, 1e-6);
        require_close("entropy", entropy, exact_entropy, 0, 2e-6);
    }
}

TEST_CASE("A masked row has gradient exactly 0 even where its logits are not numbers") {
    OpsWithWorkspace ops(make_cpu_ops({.storage = GENERATE(DType::f32, DType::bf16)}), limits());
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        Tensor logits(DType::f32, 1, 19);
        logits.set(0, 3, bad);
        Tensor weights(DType::f32, 1, 1);
        weights.set(0, 0, -0.0);
        Tensor log_probs(DType::f32, 1, 1);
        Tensor dlogits(ops->storage(), 1, 19);
        const std::vector<std::int32_t> targets = {4};
        ops->cross_entropy(log_probs, dlogits, logits, targets, weights);
        CHECK(dlogits == Tensor(ops->storage(), 1, 19));
        CHECK(std::isnan(log_probs.get(0, 0)));  // a number that is not one is not hidden
    }
}

TEST_CASE("Zero, copy, add and sums of rows agree with double") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t rows = c.pick_size(300);
        const std::int64_t cols = c.pick_size(600);
        const Tensor a = c.random(rows, cols, 100);
        const Tensor b = c.random(rows, cols, 100);
        Tensor sum = a;
        Tensor sum_exact(DType::f64, rows, cols);
        c.cpu->add(sum, sum, b);
        c.exact->add(sum_exact, exactly(a), exactly(b));
        require_close("sum", sum, sum_exact, c.rounding, 0);

        static constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
        for (const DType from : kTypes) {
            for (const DType to : kTypes) {
                const Tensor source = a.as(from);
                Tensor target = random_tensor(c.generator, to, rows, cols);
                c.cpu->copy(target, source);
                REQUIRE(target == source.as(to));
            }
        }
        c.cpu->zero(sum);
        CHECK(sum == Tensor(c.storage, rows, cols));

        const Tensor pieces = c.random_f32(rows, cols);
        Tensor y(DType::f32, 1, cols);
        Tensor y_exact(DType::f64, 1, cols);
        c.cpu->sum_rows(y, pieces, false);
        c.exact->sum_rows(y_exact, exactly(pieces), false);
        require_close("y", y, y_exact, 0, sum_error(rows));
        Tensor in_place = pieces;
        c.cpu->sum_rows(Matrix(in_place).row_range(0, 1), in_place, false);
        require_close("in place", in_place.rows_from(0, 1), y, 0, 0);

        const Tensor rounded = pieces.as(DType::bf16);
        c.cpu->sum_rows(y, rounded, false);
        c.exact->sum_rows(y_exact, rounded, false);
        require_close("of bf16", y, y_exact, 0, sum_error(rows));
        Tensor added = c.random_f32(1, cols);
        Tensor added_exact = exactly(added);
        c.cpu->sum_rows(added, rounded, true);
        c.exact->sum_rows(added_exact, rounded, true);
        require_close("added", added, added_exact, 0, sum_error(rows + 1));
    }
}

TEST_CASE("Adam and AdamW agree with double over several steps") {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Case c(seed);
        const std::int64_t count = seed % 4 == 0 ? c.pick(5000, 20000) : c.pick_size(600);
        Tensor w = c.random_f32(1, count);
        Tensor m(DType::f32, 1, count);
        Tensor v(DType::f32, 1, count);
        Tensor published(c.storage, 1, count);
        Tensor w_exact = exactly(w);
        Tensor m_exact = exactly(m);
        Tensor v_exact = exactly(v);
        AdamStep step{.lr = 0.01, .weight_decay = 0.1, .decoupled = seed % 3 != 0, .gradient_scale = 0.7};
        for (int t = 1; t <= 5; ++t) {
            step.bias_correction1 = 1 - std::pow(step.beta1, t);
            step.bias_correction2 = 1 - std::pow(step.beta2, t);
            const Tensor gradient = c.random_f32(1, count);
            c.cpu->adam(w, m, v, gradient, published, step);
            c.exact->adam(w_exact, m_exact, v_exact, exactly(gradient), Tensor(), step);
        }
        // A few roundings of numbers below 5 a step; the update is below lr times 10.
        require_close("w", w, w_exact, 0, 5 * 4 * 5 * kUnit);
        require_close("m", m, m_exact, 0, 5 * 4 * 5 * kUnit);
        require_close("v", v, v_exact, 0, 5 * 4 * kUnit);
        CHECK(published == w.as(c.storage));
    }
}

TEST_CASE("An element of the optimizer has the same bits wherever its range begins") {
    OpsWithWorkspace ops(make_cpu_ops({.storage = DType::bf16}), limits());
    std::mt19937 random(3);
    const std::int64_t count = 9001;
    const Tensor gradient = random_tensor(random, DType::f32, 1, count);
    const Tensor weight = random_tensor(random, DType::f32, 1, count);
    const Tensor mean = random_tensor(random, DType::f32, 1, count, 0.1);
    Tensor square = random_tensor(random, DType::f32, 1, count, 0.1);
    for (std::int64_t i = 0; i < count; ++i) {
        square.set(0, i, std::abs(square.get(0, i)));
    }
    const AdamStep step{.lr = 0.01, .weight_decay = 0.1, .gradient_scale = 0.9};
    const auto run = [&](const std::vector<std::int64_t>& borders) {
        std::vector<Tensor> state = {weight, mean, square, Tensor(DType::bf16, 1, count)};
        for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
            const auto range = [&](auto matrix) { return matrix.col_range(borders[i], borders[i + 1] - borders[i]); };
            ops->adam(range(Matrix(state[0])), range(Matrix(state[1])), range(Matrix(state[2])),
                      range(ConstMatrix(gradient)), range(Matrix(state[3])), step);
        }
        return state;
    };
    const std::vector<Tensor> whole = run({0, count});
    CHECK(run({0, 1, 8, 17, 4099, 4100, 9000, count}) == whole);
    CHECK(run({0, 3, 5000, count}) == whole);
}

TEST_CASE("The squared norm is exact to double, with any number of threads") {
    OpsWithWorkspace ops(make_cpu_ops({.storage = DType::f32}), limits());
    std::mt19937 random(5);
    const int before = omp_get_max_threads();
    for (const std::int64_t count : {0, 1, 7, 64, 100, 511, 513, 70001}) {
        const Tensor x = random_tensor(random, DType::f32, 1, count, 1000);
        const double expected = testing::inner_product(x, x);
        const double norm = ops->squared_norm(x);
        CHECK(norm == Approx(expected).epsilon(1e-13));
        omp_set_num_threads(3);
        CHECK(make_cpu_ops({.storage = DType::f32})->squared_norm(x) == norm);
        omp_set_num_threads(before);
    }
}

TEST_CASE("Norms, losses and embeddings have the same bits with any number of threads") {
    const DType storage = GENERATE(DType::f32, DType::bf16);
    const int before = omp_get_max_threads();
    const auto run = [&](int threads) {
        omp_set_num_threads(threads);
        Case c({.storage = storage}, 7);
        const std::int64_t tokens = 333;
        const std::int64_t hidden = 130;
        const Tensor x = c.random(tokens, hidden);
        const Tensor dy = c.random(tokens, hidden);
        const Tensor weight = c.random(1, hidden);
        Tensor y(storage, tokens, hidden);
        Tensor rstd(DType::f32, tokens, 1);
        Tensor dx(storage, tokens, hidden);
        Tensor dweight(DType::f32, 1, hidden);
        c.cpu->add_rmsnorm_forward(y, rstd, Tensor(), x, Tensor(), weight, 1e-5);
        c.cpu->rmsnorm_backward(dx, dweight, Tensor(), dy, x, rstd, weight);
        Tensor db(DType::f32, 1, hidden);
        c.cpu->bias_backward(db, dy);
        Tensor dtable(DType::f32, 9, hidden);
        c.cpu->embedding_backward(dtable, dy, random_indices(c.generator, tokens, 9));
        const Tensor logits = c.random_f32(60, 1000);
        Tensor log_probs(DType::f32, 1, 60);
        Tensor dlogits(storage, 60, 1000);
        c.cpu->cross_entropy(log_probs, dlogits, logits, random_indices(c.generator, 60, 1000), c.random_f32(1, 60));
        return std::vector<Tensor>{y, dx, dweight, db, dtable, log_probs, dlogits};
    };
    const std::vector<Tensor> one = run(1);
    CHECK(run(2) == one);
    CHECK(run(5) == one);
    omp_set_num_threads(before);
}

TEST_CASE("Nothing to do is legal") {
    const OpsOptions options = {.storage = GENERATE(DType::f32, DType::bf16), .fused = GENERATE(true, false)};
    Case c(options, 1);
    const Tensor none(options.storage, 0, 4);
    const Tensor w = c.random(3, 4);
    Tensor y(options.storage, 0, 3);
    c.cpu->linear_forward(y, none, w, Tensor());
    c.cpu->linear_backward_input(Tensor(options.storage, 0, 4), y, w);
    Tensor dw = c.random_f32(3, 4);
    const Tensor before = dw;
    c.cpu->linear_backward_weight(dw, y, none);
    CHECK(dw == before);
    Tensor dweight = c.random_f32(1, 4);
    const Tensor dweight_before = dweight;
    c.cpu->rmsnorm_backward(Tensor(options.storage, 0, 4), dweight, Tensor(), none, none, Tensor(DType::f32, 0, 1),
                            c.random(1, 4));
    CHECK(dweight == dweight_before);
    c.cpu->cross_entropy(Tensor(DType::f32, 1, 0), Tensor(options.storage, 0, 5), Tensor(DType::f32, 0, 5), {},
                         Tensor(DType::f32, 1, 0));
    c.cpu->zero(Tensor());
}

TEST_CASE("Wrong arguments and a workspace that is too small are named faults of the program") {
    CHECK_THROWS_WITH(make_cpu_ops({.storage = DType::f16}), Catch::Contains("f16"));
    CHECK_THROWS_WITH(make_cpu_ops({.attention = AttentionKind::cudnn}), Catch::Contains("say device = \"cuda\""));
    const OpsOptions options = {.storage = GENERATE(DType::f32, DType::bf16),
                                .attention = GENERATE(AttentionKind::flash, AttentionKind::eager)};
    const std::unique_ptr<Ops> ops = make_cpu_ops(options);
    std::vector<std::byte> memory(64);
    CHECK_THROWS_AS(ops->bind_workspace(memory, limits()), Error);

    Case c(options, 1);
    Tensor y(options.storage, 5, 3);
    CHECK_THROWS_WITH(c.cpu->linear_forward(y, c.random(5, 4), c.random(3, 5), Tensor()),
                      Catch::Contains("linear_forward"));
    CHECK_THROWS_WITH(c.cpu->logits_forward(Tensor(DType::f64, 5, 3), c.random(5, 4), c.random(3, 4)),
                      Catch::Contains("logits"));
    const std::vector<std::int32_t> targets = {0, 5};
    CHECK_THROWS_WITH(c.cpu->log_prob_forward(Tensor(DType::f32, 1, 2), Tensor(), c.random_f32(2, 5), targets, 1),
                      Catch::Contains("targets"));
}

}  // namespace tessera
