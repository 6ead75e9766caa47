#include "zero/partition.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "test/zero/sized_units.h"

using namespace tessera;
using tessera::testing::sized_units;

TEST_CASE("every element has one owner, whatever the sizes") {
    const std::int64_t ranks = GENERATE(1, 2, 3, 5, 16);
    const std::int64_t bucket = GENERATE(1, 100, 4096, 1'000'000);
    const std::vector<std::int64_t> sizes = {1000, 17, 1, 4096, 5003};
    CAPTURE(ranks, bucket);
    const Partition partition(sized_units(sizes), ranks, bucket);

    // Units follow each other, each padded to whole pieces.
    std::int64_t flat = 0;
    for (std::int64_t u = 0; u < partition.units(); ++u) {
        CHECK(partition.flat(u) == flat);
        std::int64_t end = 0;
        for (const Bucket& one : partition.buckets()) {
            if (one.unit == u) {
                CHECK(one.first == end);
                CHECK(one.piece % 16 == 0);
                CHECK(one.piece * ranks <= std::max(bucket + 16 * ranks, 16 * ranks));
                end += one.piece * ranks;
            }
        }
        CHECK(end >= sizes[static_cast<std::size_t>(u)]);
        CHECK(end - sizes[static_cast<std::size_t>(u)] < 16 * ranks);  // less than a step of padding
        flat += end;
    }
    CHECK(partition.flat_elements() == flat);
    CHECK(partition.shard_elements() * ranks == flat);

    std::map<std::pair<std::int64_t, std::int64_t>, int> owners;
    for (std::int64_t r = 0; r < ranks; ++r) {
        std::int64_t shard_end = 0;
        for (const UnitRange& range : partition.owned(r)) {
            CHECK(range.shard >= shard_end);
            CHECK(range.flat == partition.flat(range.unit) + range.first);
            shard_end = range.shard + range.count;
            for (std::int64_t i = 0; i < range.count; ++i) {
                ++owners[{range.unit, range.first + i}];
            }
        }
        CHECK(shard_end <= partition.shard_elements());
    }
    std::int64_t elements = 0;
    for (const std::int64_t size : sizes) {
        elements += size;
    }
    CHECK(static_cast<std::int64_t>(owners.size()) == elements);
    CHECK(std::ranges::all_of(owners, [](const auto& owner) { return owner.second == 1; }));
}

TEST_CASE("states that are not sharded are ranges of whole units") {
    const Partition partition(sized_units({100, 33}), 3, 64);
    const std::vector<UnitRange> all = partition.everything();
    REQUIRE(all.size() == 2);
    CHECK(all[1].count == 33);
    CHECK(all[1].flat == partition.flat(1));
    CHECK(all[1].shard == all[1].flat);
}

TEST_CASE("buckets are cut where the resident part of a unit begins") {
    std::vector<Unit> units = sized_units({200, 40});
    units[0].resident_from = 96;  // two steps of 16 x 3
    units[1].resident_from = 0;
    const Partition partition(units, 3, 64);
    const std::vector<Bucket> expected = {
        {0, 0, 32, 0, false},  // 96, the bucket size rounded up to a multiple of 48
        {0, 96, 32, 32, true},
        {0, 192, 16, 64, true},
        {1, 0, 16, 80, true},
    };
    CHECK(partition.buckets() == expected);
    CHECK(partition.gathered_elements(0) == 96);
    CHECK(partition.gathered_elements(1) == 0);
    CHECK(partition.padded_elements(0) == 240);
    units[0].resident_from = 100;
    CHECK_THROWS_AS(Partition(units, 3, 64), Error);
}
