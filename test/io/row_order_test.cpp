#include "io/row_order.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

using namespace tessera;

namespace {

std::vector<std::int64_t> epoch(const RowOrder& order, std::int64_t number) {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < order.rows(); ++i) {
        rows.push_back(order.row_at(number * order.rows() + i));
    }
    return rows;
}

}  // namespace

TEST_CASE("every epoch has every row once") {
    std::vector<std::int64_t> sizes = {1, 2, 3, 5, 10, 100, 1000, 12345};
    for (std::int64_t power = 4; power <= 4096; power *= 2) {
        sizes.insert(sizes.end(), {power - 1, power, power + 1});
    }
    for (const std::int64_t size : sizes) {
        for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{42}, ~std::uint64_t{0}}) {
            const RowOrder order(size, seed, true);
            for (const std::int64_t number : {0, 1, 7}) {
                std::vector<std::int64_t> rows = epoch(order, number);
                std::sort(rows.begin(), rows.end());
                std::vector<std::int64_t> all(static_cast<std::size_t>(size));
                std::iota(all.begin(), all.end(), 0);
                REQUIRE(rows == all);
            }
        }
    }
}

TEST_CASE("a permutation of far more rows than memory would hold") {
    const std::int64_t rows = (std::int64_t{1} << 40) + 7;
    const RowOrder order(rows, 1, true);
    std::set<std::int64_t> seen;
    double mean = 0;
    const int count = 20000;
    for (int i = 0; i < count; ++i) {
        const std::int64_t row = order.row_at(i);
        REQUIRE(row >= 0);
        REQUIRE(row < rows);
        seen.insert(row);
        mean += static_cast<double>(row) / static_cast<double>(rows) / count;
    }
    CHECK(seen.size() == count);
    CHECK(std::abs(mean - 0.5) < 5 / std::sqrt(12.0 * count));  // five standard deviations of a mean of uniform values
    CHECK(order.row_at(3 * rows + 5) < rows);
}

TEST_CASE("the order depends on seed and epoch") {
    const RowOrder order(1000, 42, true);
    const RowOrder again(1000, 42, true);
    const RowOrder other(1000, 43, true);
    CHECK(epoch(order, 0) == epoch(again, 0));
    CHECK(epoch(order, 0) != epoch(order, 1));
    CHECK(epoch(order, 0) != epoch(other, 0));
    // Unrelated permutations agree in one place on average (Poisson: more than 8 has a probability of 1e-6).
    const auto agreements = [](const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
        int count = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            count += a[i] == b[i] ? 1 : 0;
        }
        return count;
    };
    CHECK(agreements(epoch(order, 0), epoch(order, 1)) <= 8);
    CHECK(agreements(epoch(order, 0), epoch(other, 0)) <= 8);
    const RowOrder plain(1000, 0, false);
    CHECK(agreements(epoch(order, 0), epoch(plain, 0)) <= 8);
}

TEST_CASE("without shuffle the order is that of the file") {
    const RowOrder order(7, 42, false);
    for (std::int64_t i = 0; i < 30; ++i) {
        CHECK(order.row_at(i) == i % 7);
        CHECK(order.epoch_of(i) == i / 7);
    }
}

TEST_CASE("all permutations of few rows come equally often") {
    // Chi-square over n! permutations; the bound is the mean of that distribution plus six of its standard deviations.
    for (const std::int64_t rows : {2, 3, 4, 5}) {
        double permutations = 1;
        for (std::int64_t i = 2; i <= rows; ++i) {
            permutations *= static_cast<double>(i);
        }
        const int epochs = 24000;
        std::map<std::vector<std::int64_t>, int> counts;
        const RowOrder order(rows, 5, true);
        for (int number = 0; number < epochs; ++number) {
            ++counts[epoch(order, number)];
        }
        REQUIRE(static_cast<double>(counts.size()) == permutations);
        const double expected = epochs / permutations;
        double chi = 0;
        for (const auto& [permutation, count] : counts) {
            chi += (count - expected) * (count - expected) / expected;
        }
        const double freedom = permutations - 1;
        INFO(rows << " rows: chi-square " << chi);
        CHECK(chi < freedom + 6 * std::sqrt(2 * freedom));
    }
}

TEST_CASE("every row comes to every place equally often, and neighbours part") {
    const std::int64_t rows = 50;
    const int epochs = 20000;
    std::vector<int> counts(rows * rows);
    int neighbours = 0;
    const RowOrder order(rows, 9, true);
    for (int number = 0; number < epochs; ++number) {
        const std::vector<std::int64_t> permutation = epoch(order, number);
        for (std::size_t i = 0; i < permutation.size(); ++i) {
            ++counts[i * rows + static_cast<std::size_t>(permutation[i])];
            neighbours += i > 0 && permutation[i] == permutation[i - 1] + 1 ? 1 : 0;
        }
    }
    double chi = 0;
    const double expected = epochs / static_cast<double>(rows);
    for (const int count : counts) {
        chi += (count - expected) * (count - expected) / expected;
    }
    const double freedom = (rows - 1) * (rows - 1);
    CHECK(chi < freedom + 6 * std::sqrt(2 * freedom));
    // Row k + 1 follows row k with probability 1 / rows, at 49 places: 0.98 an epoch, nearly Poisson.
    const double following = 0.98 * epochs;
    CHECK(std::abs(neighbours - following) < 6 * std::sqrt(following));
}

TEST_CASE("the parts of a batch are the batch, whatever the ranks") {
    const std::int64_t batch = 24;
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
        for (const std::int64_t micro : {1, 2}) {
            const BatchShape shape{micro, batch / (micro * ranks), ranks};
            REQUIRE(shape.batch() == batch);
            for (std::int64_t step = 0; step < 3; ++step) {
                // The rule as it is written: row i goes to micro-step i / (micro*ranks), rank (i / micro) % ranks.
                std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> expected;
                for (std::int64_t i = 0; i < batch; ++i) {
                    expected[{i / (micro * ranks), (i / micro) % ranks}].push_back(step * batch + i);
                }
                std::size_t parts = 0;
                for (std::int64_t micro_step = 0; micro_step < shape.accumulation; ++micro_step) {
                    for (std::int64_t rank = 0; rank < ranks; ++rank, ++parts) {
                        std::vector<std::int64_t> positions(static_cast<std::size_t>(micro));
                        std::iota(positions.begin(), positions.end(), first_position(shape, step, micro_step, rank));
                        CHECK(positions == expected[{micro_step, rank}]);
                    }
                }
                CHECK(parts == expected.size());
            }
        }
    }
}

TEST_CASE("steps of epochs are rounded up") {
    CHECK(steps_of_epochs(6, 2, 3) == 4);
    CHECK(steps_of_epochs(5, 2, 3) == 4);
    CHECK(steps_of_epochs(1, 1, 100) == 1);
    CHECK(steps_of_epochs(std::int64_t{1} << 40, 3, 1) == 3 * (std::int64_t{1} << 40));
}
