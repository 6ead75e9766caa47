#include "zero/partition.h"

#include <catch2/catch.hpp>
#include <algorithm>
#include <map>

using namespace tessera;

TEST_CASE("every element has one owner, whatever the sizes") {
    const std::int64_t ranks = GENERATE(1, 2, 3, 5, 16);
    const std::int64_t bucket = GENERATE(1, 100, 4096, 1'000'000);
    const std::vector<std::int64_t> sizes = {1000, 17, 1, 4096, 5003};
    CAPTURE(ranks, bucket);
    const Partition partition(sizes, ranks, bucket);

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
    const Partition partition({100, 33}, 3, 64);
    const std::vector<UnitRange> all = partition.everything();
    REQUIRE(all.size() == 2);
    CHECK(all[1].count == 33);
    CHECK(all[1].flat == partition.flat(1));
    CHECK(all[1].shard == all[1].flat);
}
