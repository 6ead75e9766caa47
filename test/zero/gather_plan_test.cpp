#include "zero/gather_plan.h"

#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "core/transformer.h"
#include "test/core/model_memory.h"
#include "test/zero/sized_units.h"

using namespace tessera;
using tessera::testing::sized_units;

namespace {

/// Uses one after another.
std::vector<UnitUse> in_turn(const std::vector<std::int64_t>& units) {
    std::vector<UnitUse> uses;
    for (std::size_t i = 0; i < units.size(); ++i) {
        const auto time = static_cast<std::int64_t>(2 * i);
        uses.push_back({units[i], time, time + 1});
    }
    return uses;
}

const std::vector<Unit> kUnits = sized_units({64, 16, 16, 16, 32});

GatherPlan plan(const std::vector<std::int64_t>& order, const GatherLimits& limits) {
    return {in_turn(order), Partition(kUnits, 1, 1000), limits};
}

}  // namespace

TEST_CASE("by default the next unit is gathered while one is used, and nothing stays") {
    const GatherPlan made = plan({0, 1, 2, 3, 4, 3, 2, 1}, {});
    REQUIRE(made.gathers.size() == 8);
    for (std::size_t i = 0; i < made.gathers.size(); ++i) {
        CHECK(made.gathers[i].needed == static_cast<std::int64_t>(i));
        CHECK(made.gathers[i].issued == std::max<std::int64_t>(0, static_cast<std::int64_t>(i) - 1));
        CHECK(made.gathers[i].released == static_cast<std::int64_t>(2 * i + 1));
    }
    CHECK(made.largest_live_elements == 64 + 16);
    CHECK(made.block_elements == 64 + 16);
}

TEST_CASE("without prefetch each unit is gathered when it is used") {
    const GatherPlan made = plan({0, 1, 2}, {.prefetch = 0});
    for (const UnitGather& gather : made.gathers) {
        CHECK(gather.issued == gather.needed);
    }
    CHECK(made.block_elements == 64);
}

TEST_CASE("as many units are gathered ahead as the prefetch size holds") {
    const GatherPlan made = plan({0, 1, 2, 3, 4}, {.prefetch = 48});
    CHECK(made.gathers[3].issued == 0);  // 1, 2 and 3: 48
    CHECK(made.gathers[4].issued == 2);  // 3 and 4: 48, when 2 has come into use
}

TEST_CASE("a unit stays where it is used again within the reuse distance") {
    const std::vector<std::int64_t> order = {1, 2, 2, 1};
    CHECK(plan(order, {}).gathers.size() == 3);  // distance 0: unit 2 stays between its two uses
    CHECK(plan(order, {.reuse_distance = 31}).gathers.size() == 3);
    CHECK(plan(order, {.reuse_distance = 32}).gathers.size() == 2);              // 16 + 16 in between
    CHECK(plan(order, {.live = 16, .reuse_distance = 32}).gathers.size() == 3);  // not beyond the bound
}

TEST_CASE("what is live stays within the bound, and an impossible bound is refused with the least that works") {
    CHECK(plan({0, 1, 2, 3, 4}, {.prefetch = 1000, .live = 80}).largest_live_elements <= 80);
    CHECK(plan({0, 1, 2, 3, 4}, {.live = 64}).largest_live_elements == 64);
    CHECK_THROWS_WITH(plan({0, 1, 2}, {.live = 63}), Catch::Contains("= 63") && Catch::Contains("works is 64"));
}

TEST_CASE("units that are held at the same time lie beside each other") {
    const std::vector<UnitUse> nested = {{4, 0, 3}, {0, 1, 2}};
    const GatherPlan made(nested, Partition(kUnits, 1, 1000), {});
    CHECK(made.block_elements == 96);
    CHECK_THROWS_WITH(GatherPlan(nested, Partition(kUnits, 1, 1000), {.live = 95}), Catch::Contains("works is 96"));
}

TEST_CASE("plans of models never put two units in one place, whatever the limits") {
    std::mt19937 random(3);
    for (const std::string family : {"llama", "qwen2"}) {  // untied, tied
        const ModelConfig config = testing::small_config(family);
        const std::vector<Unit> units = make_units(config, {12, 48});
        const Partition partition(units, 3, 100);
        for (const Pass last : {Pass::forward, Pass::backward}) {
            const std::vector<UnitUse> uses = Transformer::uses(config, last).parameters;
            for (int round = 0; round < 50; ++round) {
                GatherLimits limits;
                if (round > 0) {
                    const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random()) % end; };
                    limits = {.prefetch = below(4000), .live = 4000 + below(4000), .reuse_distance = below(6000)};
                }
                const GatherPlan made(uses, partition, limits);
                CHECK(made.largest_live_elements <= limits.live.value_or(std::numeric_limits<std::int64_t>::max()));
                for (std::size_t i = 0; i < made.gathers.size(); ++i) {
                    const UnitGather& a = made.gathers[i];
                    CHECK((i == 0 || a.issued >= made.gathers[i - 1].issued));
                    for (std::size_t j = 0; j < i; ++j) {
                        const UnitGather& b = made.gathers[j];
                        const bool together = uses[static_cast<std::size_t>(a.issued)].begin <= b.released;
                        const bool apart = a.offset + partition.padded_elements(a.unit) <= b.offset ||
                                           b.offset + partition.padded_elements(b.unit) <= a.offset;
                        CHECK((!together || apart));
                    }
                }
                for (std::size_t use = 0; use < uses.size(); ++use) {
                    if (made.gather_of[use] < 0) {
                        CHECK(partition.gathered_elements(uses[use].unit) == 0);
                        continue;
                    }
                    const UnitGather& gather = made.gathers[static_cast<std::size_t>(made.gather_of[use])];
                    CHECK(gather.unit == uses[use].unit);
                    CHECK(gather.needed <= static_cast<std::int64_t>(use));
                    CHECK(gather.released >= uses[use].end);
                }
            }
        }
    }
}
