#include "apps/hang_watch.h"

#include <catch2/catch.hpp>

using namespace tessera;
using Report = HangWatch::Report;

namespace {

const std::vector<std::string> kNames = {"rank 0 on a, process 10", "rank 1 on a, process 11",
                                         "rank 2 on b, process 12"};
const Report kWaiting{7, 31, true, "reduce gradients of unit 2, 64 bytes"};

}  // namespace

TEST_CASE("a rank that says nothing is named, and where the others wait") {
    CHECK(HangWatch::explain(5, {kWaiting, std::nullopt, kWaiting}, kNames) ==
          "no progress for 5 s (limits.hang_seconds); no sign of life from rank 1 on a, process 11; 2 other ranks at "
          "step "
          "7, in exchange 31 (reduce gradients of unit 2, 64 bytes)");
}

TEST_CASE("a rank that is elsewhere than the others is named") {
    const Report elsewhere{7, 30, false, "reduce gradients of unit 3, 64 bytes"};
    const std::string text = HangWatch::explain(5, {kWaiting, kWaiting, elsewhere}, kNames);
    CHECK_THAT(text, Catch::Contains("rank 2 on b, process 12 at step 7, computing after exchange 30") &&
                         Catch::Contains("2 other ranks at step 7, in exchange 31"));
}

TEST_CASE("ranks that exchange different things are told apart") {
    const Report other{7, 31, true, "reduce gradients of unit 2, 128 bytes"};
    const std::string text = HangWatch::explain(5, {kWaiting, other, kWaiting}, kNames);
    CHECK_THAT(text,
               Catch::Contains("rank 1 on a, process 11 at step 7, in exchange 31 (reduce gradients of unit 2, 128"));
}

TEST_CASE("where all are at the same place, all are named") {
    const std::string text = HangWatch::explain(5, {kWaiting, kWaiting}, {kNames[0], kNames[1]});
    CHECK_THAT(text, Catch::Contains("rank 0 on a, process 10 and rank 1 on a, process 11 at step 7"));
}
