#include "core/progress.h"

#include <catch2/catch.hpp>
#include <thread>

using namespace tessera;

TEST_CASE("silence grows until the next sign of life, and not during a pause") {
    Progress progress;
    const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    sleep();
    CHECK(progress.seconds_since_mark() >= 0.02);
    {
        const Progress::Pause pause(progress);
        sleep();
        CHECK(progress.seconds_since_mark() == 0);
    }
    // The pause has ended with a sign of life; a slow machine may take a while from there to here.
    CHECK(progress.seconds_since_mark() < 10);
    sleep();
    CHECK(progress.seconds_since_mark() >= 0.02);
}

TEST_CASE("exchanges are numbered, and it is known whether one is under way") {
    Progress progress;
    CHECK(!progress.exchanging());
    progress.begin_exchange("reduce gradients", 3, 64);
    CHECK(progress.exchanging());
    CHECK(progress.exchanges_begun() == 1);
    progress.end_exchange();
    CHECK(!progress.exchanging());
    CHECK(progress.unit() == 3);
    CHECK(progress.bytes() == 64);
}
