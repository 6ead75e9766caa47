// Log-probs, entropy and cross-entropy of the reference against their formulas in long double.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::random_indices;
using testing::random_tensor;
using testing::Tensor;
using testing::unit_roundoff;

/// softmax, logsumexp and entropy of one row, straight from the definitions (after a shift that changes nothing).
struct Row {
    std::vector<long double> p;
    long double log_sum = 0;
    long double entropy = 0;
};

Row row_by_formula(const Tensor& logits, std::int64_t r, long double temperature) {
    long double largest = -std::numeric_limits<long double>::infinity();
    for (std::int64_t c = 0; c < logits.cols(); ++c) {
        largest = std::max(largest, static_cast<long double>(logits.get(r, c)) / temperature);
    }
    Row row;
    long double sum = 0;
    for (std::int64_t c = 0; c < logits.cols(); ++c) {
        row.p.push_back(std::exp(static_cast<long double>(logits.get(r, c)) / temperature - largest));
        sum += row.p.back();
    }
    for (long double& p : row.p) {
        p /= sum;
        row.entropy -= p > 0 ? p * std::log(p) : 0;
    }
    row.log_sum = largest + std::log(sum);
    return row;
}

/// z - logsumexp(z) rounds z, and exp turns an absolute error of its argument into a relative one: some units of the
/// largest |z|, and the logarithm's own.
void require_log_probs(Ops& ops, const Tensor& logits, const std::vector<std::int32_t>& targets, double temperature) {
    const DType a = ops.accumulate();
    const std::int64_t rows = logits.rows();
    Tensor log_probs(a, 1, rows);
    Tensor entropy(a, 1, rows);
    ops.log_prob_forward(log_probs, entropy, logits, targets, temperature);
    for (std::int64_t r = 0; r < rows; ++r) {
        const Row row = row_by_formula(logits, r, temperature);
        long double largest = 0;
        for (std::int64_t c = 0; c < logits.cols(); ++c) {
            largest = std::max(largest, std::abs(static_cast<long double>(logits.get(r, c)) / temperature));
        }
        const long double expected = logits.get(r, targets[r]) / static_cast<long double>(temperature) - row.log_sum;
        const double allowed = 4 * unit_roundoff(a) * static_cast<double>(8 + largest);
        CAPTURE(r, temperature);
        REQUIRE(log_probs.get(0, r) == Approx(static_cast<double>(expected)).margin(allowed).epsilon(0));
        // Each p * log p carries the relative error of p and the absolute one of log p: at most (1 + entropy) times.
        const double entropy_allowed = allowed * (1 + static_cast<double>(row.entropy));
        REQUIRE(entropy.get(0, r) == Approx(static_cast<double>(row.entropy)).margin(entropy_allowed).epsilon(0));
        REQUIRE(entropy.get(0, r) >= -entropy_allowed);
    }
    Tensor without(a, 1, rows);
    ops.log_prob_forward(without, Tensor(), logits, targets, temperature);
    REQUIRE(without == log_probs);
}

}  // namespace

TEST_CASE("Log-probs and entropy follow the formulas at every temperature and vocabulary") {
    const DType storage = GENERATE(DType::f64, DType::f32, DType::bf16);
    const double temperature = GENERATE(1.0, 0.7, 0.1, 5.0);
    const auto ops = make_reference_ops(storage);
    for (const std::int64_t vocabulary : {1, 2, 7, 64, 129, 5003}) {
        std::mt19937 random(static_cast<unsigned>(vocabulary));
        const Tensor logits = random_tensor(random, ops->accumulate(), 5, vocabulary, 3);
        require_log_probs(*ops, logits, random_indices(random, 5, vocabulary), temperature);
    }
}

TEST_CASE("Extreme logits stay finite") {
    const DType storage = GENERATE(DType::f64, DType::f32);
    const auto ops = make_reference_ops(storage);
    Tensor logits(ops->accumulate(), 6, 4);
    const double rows[6][4] = {{1e4, -1e4, 0, 1}, {-1e30, -1e30, -1e30, -1e30},
                               {1e30, 1, 2, 3},   {1e30, -1e30, 0, 1e30},
                               {88, 89, -104, 0}, {5e-324, 0, 0, 0}};
    for (std::int64_t r = 0; r < 6; ++r) {
        for (std::int64_t c = 0; c < 4; ++c) {
            logits.set(r, c, rows[r][c]);
        }
    }
    const std::vector<std::int32_t> targets = {0, 3, 0, 3, 2, 1};
    require_log_probs(*ops, logits, targets, 1);
    require_log_probs(*ops, logits, targets, 0.5);

    Tensor log_probs(ops->accumulate(), 1, 6);
    Tensor dlogits(storage, 6, 4);
    Tensor weights(ops->accumulate(), 1, 6);
    for (std::int64_t r = 0; r < 6; ++r) {
        weights.set(0, r, 1);
    }
    ops->cross_entropy(log_probs, dlogits, logits, targets, weights);
    for (std::int64_t r = 0; r < 6; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < 4; ++c) {
            sum += dlogits.get(r, c);
        }
        REQUIRE(std::abs(sum) <= 8 * unit_roundoff(storage));  // softmax and onehot both sum to 1
    }
}

TEST_CASE("A logit of minus infinity has probability 0 and spoils nothing") {
    const auto ops = make_reference_ops(DType::f32);
    Tensor logits(DType::f32, 1, 3);
    logits.set(0, 1, -std::numeric_limits<double>::infinity());
    Tensor log_probs(DType::f32, 1, 1);
    Tensor entropy(DType::f32, 1, 1);
    ops->log_prob_forward(log_probs, entropy, logits, std::vector<std::int32_t>{0}, 1);
    REQUIRE(log_probs.get(0, 0) == Approx(-std::log(2.0)));
    REQUIRE(entropy.get(0, 0) == Approx(std::log(2.0)));
    ops->log_prob_forward(log_probs, entropy, logits, std::vector<std::int32_t>{1}, 1);
    REQUIRE(log_probs.get(0, 0) == -std::numeric_limits<double>::infinity());
}

TEST_CASE("Cross-entropy follows the formulas, in place too") {
    const DType storage = GENERATE(DType::f64, DType::f32, DType::bf16);
    const auto ops = make_reference_ops(storage);
    const DType a = ops->accumulate();
    for (const std::int64_t vocabulary : {1, 2, 7, 8, 127, 129}) {
        std::mt19937 random(static_cast<unsigned>(vocabulary));
        const std::int64_t rows = 6;
        Tensor logits = random_tensor(random, a, rows, vocabulary, 3);
        Tensor weights = random_tensor(random, a, 1, rows);
        weights.set(0, 2, 0);
        const std::vector<std::int32_t> targets = random_indices(random, rows, vocabulary);
        Tensor log_probs(a, 1, rows);
        Tensor dlogits(storage, rows, vocabulary);
        ops->cross_entropy(log_probs, dlogits, logits, targets, weights);

        Tensor same(a, 1, rows);
        ops->log_prob_forward(same, Tensor(), logits, targets, 1);
        REQUIRE(same == log_probs);
        Tensor expected(DType::f64, rows, vocabulary);
        for (std::int64_t r = 0; r < rows; ++r) {
            const Row row = row_by_formula(logits, r, 1);
            for (std::int64_t c = 0; c < vocabulary; ++c) {
                const long double onehot = c == targets[r] ? 1 : 0;
                expected.set(r, c, static_cast<double>(weights.get(0, r) * (row.p[c] - onehot)));
            }
        }
        // p carries some units of A for each of |z| up to about 12; weights are below 4.
        testing::require_close("dlogits", dlogits, expected, unit_roundoff(storage), 4 * 64 * unit_roundoff(a));
        if (storage == a) {
            ops->cross_entropy(log_probs, logits, logits, targets, weights);
            REQUIRE(logits == dlogits);
        }
    }
}

TEST_CASE("A masked row has gradient exactly 0, whatever its logits") {
    const DType storage = GENERATE(DType::f64, DType::f32, DType::bf16);
    const auto ops = make_reference_ops(storage);
    const DType a = ops->accumulate();
    for (const std::int64_t vocabulary : {1, 2, 3, 7, 8, 63, 64, 65, 127, 129}) {
        std::mt19937 random(7);
        Tensor logits = random_tensor(random, a, 4, vocabulary, 3);
        logits.set(1, 0, std::numeric_limits<double>::infinity());
        logits.set(2, 0, std::numeric_limits<double>::quiet_NaN());
        Tensor weights(a, 1, 4);
        weights.set(0, 0, -0.0);
        weights.set(0, 3, 1);
        Tensor log_probs(a, 1, 4);
        Tensor dlogits = random_tensor(random, storage, 4, vocabulary);
        ops->cross_entropy(log_probs, dlogits, logits, std::vector<std::int32_t>(4, 0), weights);
        REQUIRE(dlogits.rows_from(0, 3) == Tensor(storage, 3, vocabulary));
        // The gradients that follow from such rows are exactly 0 as well.
        Tensor w = random_tensor(random, storage, vocabulary, 5);
        Tensor dx = random_tensor(random, storage, 3, 5);
        ops->linear_backward_input(dx, ConstMatrix(dlogits).row_range(0, 3), w);
        REQUIRE(dx == Tensor(storage, 3, 5));
        Tensor dw(a, vocabulary, 5);
        ops->linear_backward_weight(dw, ConstMatrix(dlogits).row_range(0, 3), random_tensor(random, storage, 3, 5));
        REQUIRE(dw == Tensor(a, vocabulary, 5));
    }
}

TEST_CASE("No rows are legal") {
    const auto ops = make_reference_ops(DType::f32);
    ops->cross_entropy(Tensor(DType::f32, 1, 0), Tensor(DType::f32, 0, 5), Tensor(DType::f32, 0, 5), {},
                       Tensor(DType::f32, 1, 0));
    ops->log_prob_forward(Tensor(DType::f32, 1, 0), Tensor(), Tensor(DType::f32, 0, 5), {}, 1);
}

}  // namespace tessera
