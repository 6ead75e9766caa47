// Run with one rank, and by ctest under mpirun with three.
#include "core/communicator.h"

#include <catch2/catch.hpp>

#include "test/core/mpi_world.h"

using namespace tessera;
using tessera::testing::world;

TEST_CASE("texts go from rank 0 to all, from all to all, and from all to rank 0") {
    const std::int64_t rank = world().rank();
    const std::string own(static_cast<std::size_t>(rank), 'x');
    CHECK(world().broadcast("from " + std::to_string(rank)) == "from 0");
    CHECK(world().broadcast("").empty());
    const auto all = world().all_gather(own);
    REQUIRE(static_cast<std::int64_t>(all.size()) == world().size());
    for (std::size_t r = 0; r < all.size(); ++r) {
        CHECK(all[r].size() == r);
    }
    const auto gathered = world().gather(std::as_bytes(std::span(own)));
    CHECK(gathered == (rank == 0 ? all : std::vector<std::string>{}));
}

TEST_CASE("sums are the same on every rank, and real ones are added in rank order") {
    std::vector<std::int64_t> sums = {world().rank(), 1};
    world().all_reduce_sum(sums);
    CHECK(sums[0] == world().size() * (world().size() - 1) / 2);
    CHECK(sums[1] == world().size());
    // 1e17 + 1 - 1e17 is 0 in one order and 1 in another.
    const std::vector<double> values = {1e17, 1, -1e17};
    double expected = 0;
    for (std::int64_t r = 0; r < world().size(); ++r) {
        expected += values[static_cast<std::size_t>(r % 3)];
    }
    CHECK(world().ordered_sum(values[static_cast<std::size_t>(world().rank() % 3)]) == expected);
}

TEST_CASE("all_to_all sends piece r to rank r") {
    const std::int64_t count = GENERATE(1, 16, 1000);
    const std::int64_t ranks = world().size();
    const std::int64_t rank = world().rank();
    std::vector<float> send(static_cast<std::size_t>(ranks * count));
    std::vector<float> receive(send.size(), -1);
    for (std::size_t i = 0; i < send.size(); ++i) {
        send[i] = static_cast<float>(rank * 100000) + static_cast<float>(i);
    }
    world().all_to_all(std::as_bytes(std::span(send)).data(), std::as_writable_bytes(std::span(receive)).data(),
                       count * static_cast<std::int64_t>(sizeof(float)));
    for (std::int64_t r = 0; r < ranks; ++r) {
        for (std::int64_t i = 0; i < count; ++i) {
            REQUIRE(receive[static_cast<std::size_t>(r * count + i)] ==
                    static_cast<float>(r * 100000 + rank * count + i));
        }
    }
}

TEST_CASE("all_gather_in_place fills every bucket from the owners of its pieces") {
    const std::int64_t buckets = GENERATE(1, 2, 5);
    const std::int64_t piece = GENERATE(2, 64);  // bytes
    const std::int64_t ranks = world().size();
    const auto value = [&](std::int64_t bucket, std::int64_t rank, std::int64_t i) {
        return static_cast<std::byte>((bucket * 31 + rank * 7 + i) % 251);
    };
    std::vector<std::byte> buffer(static_cast<std::size_t>(buckets * ranks * piece), std::byte{255});
    const auto at = [&](std::int64_t bucket, std::int64_t rank, std::int64_t i) -> std::byte& {
        return buffer[static_cast<std::size_t>((bucket * ranks + rank) * piece + i)];
    };
    for (std::int64_t b = 0; b < buckets; ++b) {
        for (std::int64_t i = 0; i < piece; ++i) {
            at(b, world().rank(), i) = value(b, world().rank(), i);
        }
    }
    world().all_gather_in_place(buffer.data(), buckets, piece);
    for (std::int64_t b = 0; b < buckets; ++b) {
        for (std::int64_t r = 0; r < ranks; ++r) {
            for (std::int64_t i = 0; i < piece; ++i) {
                REQUIRE(at(b, r, i) == value(b, r, i));
            }
        }
    }
}

TEST_CASE("an error on one rank is the same error on all, with the message of the lowest") {
    world().agree([] {});
    const std::int64_t last = world().size() - 1;
    const auto fails = [&] {
        if (world().rank() == last) {
            fail(ExitCode::bad_data, "rank's own words");
        }
    };
    CHECK_THROWS_AS(world().agree(fails), AgreedError);
    try {
        world().agree(fails);
    } catch (const AgreedError& error) {
        CHECK(error.code() == ExitCode::bad_data);
        CHECK(std::string(error.what()) ==
              (last == 0 ? "" : "rank " + std::to_string(last) + ": ") + "rank's own words");
    }
}

TEST_CASE("ranks of one machine share its memory") {
    const auto local = world().local();
    CHECK(local.size == world().size());
    CHECK(local.rank == world().rank());
}
