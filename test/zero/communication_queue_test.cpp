// One rank here, and by ctest under mpirun with three.
#include "zero/communication_queue.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "test/core/mpi_world.h"

using namespace tessera;
using tessera::testing::world;

namespace {

const std::unique_ptr<Device> device = make_cpu_device();

CommunicationQueue::Collective reduce(std::int64_t bytes) {
    return {Exchange::reduce_gradients, 3, bytes};
}

}  // namespace

TEST_CASE("exchanges are done in the order of their submission, and counted") {
    const bool threaded = GENERATE(false, true);
    Progress progress;
    CommunicationQueue queue(world(), *device, progress, threaded, true);
    std::vector<int> order;
    CommunicationQueue::Ticket second = 0;
    for (int i = 0; i < 5; ++i) {
        const auto ticket = queue.submit(reduce(10 * i), [&order, i] { order.push_back(i); });
        second = i == 1 ? ticket : second;
    }
    queue.wait(second, Exchange::reduce_gradients);
    queue.drain(Exchange::reduce_gradients);
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
    CHECK(queue.traffic()[Exchange::reduce_gradients].calls == 5);
    CHECK(queue.traffic()[Exchange::reduce_gradients].bytes == 100);
    CHECK(queue.traffic().all().calls == 5);
    CHECK(progress.exchanges_begun() == 5);
    CHECK(!progress.exchanging());
}

TEST_CASE("an exchange that fails is told to whoever waits, and nothing follows it") {
    const bool threaded = GENERATE(false, true);
    Progress progress;
    CommunicationQueue queue(world(), *device, progress, threaded, false);
    bool followed = false;
    const auto submit_both = [&] {
        static_cast<void>(queue.submit(reduce(1), [] { fail(ExitCode::internal, "broken"); }));
        static_cast<void>(queue.submit(reduce(1), [&] { followed = true; }));
        queue.drain(Exchange::reduce_gradients);
    };
    CHECK_THROWS_WITH(submit_both(), "broken");
    CHECK(!followed);
}

TEST_CASE("a thread of its own does the exchange while the submitter computes") {
    Progress progress;
    CommunicationQueue queue(world(), *device, progress, true, false);
    std::atomic<bool> released = false;
    static_cast<void>(queue.submit(reduce(1), [&] {
        while (!released) {
            std::this_thread::yield();
        }
    }));
    released = true;  // reached only if submit() did not wait
    queue.drain(Exchange::reduce_gradients);
    CHECK(queue.traffic()[Exchange::reduce_gradients].calls == 1);
}

TEST_CASE("a rank that exchanges something else is named before it can hang the others") {
    Progress progress;
    CommunicationQueue queue(world(), *device, progress, true, true);
    const bool odd = world().rank() == 1;
    const auto exchange = [&] {
        static_cast<void>(queue.submit(reduce(odd ? 128 : 64), [] {}));
        queue.drain(Exchange::reduce_gradients);
    };
    if (world().size() == 1) {
        CHECK_NOTHROW(exchange());
        return;
    }
    try {
        exchange();
        FAIL("nothing was noticed");
    } catch (const AgreedError& error) {
        CHECK(error.code() == ExitCode::disagree);
        CHECK_THAT(error.what(), Catch::Contains("rank 1 is at exchange 1: reduce gradients, unit 3, 128 bytes") &&
                                     Catch::Contains("rank 0 at exchange 1: reduce gradients, unit 3, 64 bytes"));
    }
}
