#include "apps/stop_signals.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <tuple>

namespace tessera {

TEST_CASE("signals are noted however often they come, and the first is named") {
    for (const auto& [first, second, name] :
         {std::tuple{SIGUSR1, SIGTERM, "SIGUSR1"}, std::tuple{SIGTERM, SIGUSR1, "SIGTERM"}}) {
        const StopSignals signals;
        CHECK(signals.received() == 0);
        std::raise(first);
        const std::int64_t received = signals.received();
        CHECK(received > 0);
        CHECK(StopSignals::name_of(received) == name);
        std::raise(first);
        std::raise(second);
        CHECK(signals.received() == received);
    }
}

TEST_CASE("the sum over many ranks names what some of them received; SIGTERM where it is among it") {
    std::int64_t usr1 = 0;
    std::int64_t term = 0;
    {
        const StopSignals signals;
        std::raise(SIGUSR1);
        usr1 = signals.received();
    }
    {
        const StopSignals signals;
        std::raise(SIGTERM);
        term = signals.received();
    }
    constexpr std::int64_t kRanks = 1 << 20;
    CHECK(StopSignals::name_of(usr1) == "SIGUSR1");
    CHECK(StopSignals::name_of(kRanks * usr1) == "SIGUSR1");
    CHECK(StopSignals::name_of((kRanks - 1) * usr1 + term) == "SIGTERM");
    CHECK(StopSignals::name_of(kRanks * term) == "SIGTERM");
}

TEST_CASE("without a signal, what one does is restored; after one, it stays without effect") {
    const auto handler_before = std::signal(SIGUSR1, SIG_IGN);
    { const StopSignals signals; }
    CHECK(std::signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    {
        const StopSignals signals;
        std::raise(SIGTERM);
    }
    std::raise(SIGUSR1);  // would end the test
    std::raise(SIGTERM);
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGUSR1, handler_before);
}

}  // namespace tessera
