// Streams, events, copies and memory of the emulated device, and host code that uses them wrongly.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <thread>

#include "test/simt/reports.h"

using Catch::Matchers::Contains;

namespace tessera::simt {
namespace {

struct Fill {
    static constexpr int kThreads = 32;
    static constexpr int kMinBlocks = 0;
    float* x;
    std::int64_t count;
    float value;
    SIMT_DEVICE void operator()() const {
        for (std::int64_t i = thread(); i < count; i += kThreads) {
            x[i] = value;
        }
    }
};
struct AddTo {
    static constexpr int kThreads = 32;
    static constexpr int kMinBlocks = 0;
    float* to;
    const float* from;
    std::int64_t count;
    SIMT_DEVICE void operator()() const {
        for (std::int64_t i = thread(); i < count; i += kThreads) {
            to[i] += from[i];
        }
    }
};

struct Impossible {
    static constexpr int kThreads = 32;
    static constexpr int kMinBlocks = 0;
    SIMT_DEVICE void operator()() const { sync_warp(0); }
};

class PinnedFloats {
  public:
    explicit PinnedFloats(std::int64_t count)
        : memory_(allocate_pinned(count * static_cast<std::int64_t>(sizeof(float)))) {}
    ~PinnedFloats() { free_pinned(memory_); }
    PinnedFloats(const PinnedFloats&) = delete;
    PinnedFloats& operator=(const PinnedFloats&) = delete;
    [[nodiscard]] float* data() const { return reinterpret_cast<float*>(memory_); }

  private:
    std::byte* memory_;
};

TEST_CASE("a stream does its work in order, and only when it must") {
    set_emulation({});
    const OwnStream stream;
    const DeviceArray<float> x(4);
    const PinnedFloats out(4);
    out.data()[0] = -1;
    launch(stream, {}, Fill{x.data(), 4, 1.0F});
    launch(stream, {}, AddTo{x.data(), x.data(), 4});
    copy_async(out.data(), x.data(), 16, stream);
    CHECK(out.data()[0] == -1);
    synchronize(stream);
    CHECK(out.data()[0] == 2);
    zero_async(x.data() + 1, 8, stream);
    synchronize(stream);
    CHECK(x.read() == std::vector<float>{2, 0, 0, 2});
}

TEST_CASE("memory is not initialised, and as large as was asked for") {
    const DeviceArray<float> x(3);
    CHECK(std::isnan(x.read()[2]));
    CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 256 == 0);
    std::array<float, 4> host{};
    CHECK_THROWS_WITH(copy_async(host.data(), x.data(), 16, nullptr), Contains("16 bytes at byte 0 of 12 bytes"));
    CHECK_THROWS_WITH(copy_async(x.data(), host.data(), 16, nullptr), Contains("what a copy writes"));
    CHECK_THROWS_WITH(zero_async(x.data() + 3, 1, nullptr), Contains("0 bytes past the end of 12 bytes"));
    CHECK_THROWS_WITH(zero_async(host.data(), 4, nullptr), Contains("no memory of the device"));
    CHECK(allocate_device(0) != nullptr);
}

TEST_CASE("rows are copied and set to zero with strides") {
    const DeviceArray<float> x(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
    std::vector<float> host(6, 0.0F);
    copy_rows_async(host.data(), 12, x.data() + 1, 16, 8, 2, nullptr);
    synchronize(nullptr);
    CHECK(host == std::vector<float>{2, 3, 0, 6, 7, 0});
    zero_rows_async(x.data(), 16, 4, 2, nullptr);
    CHECK(x.read() == std::vector<float>{0, 2, 3, 4, 0, 6, 7, 8});
    const std::vector<float> source{10, 11, 12, 13};
    copy_rows_async(x.data() + 2, 16, source.data(), 8, 8, 2, nullptr);
    CHECK(x.read() == std::vector<float>{0, 2, 10, 11, 0, 6, 12, 13});
}

/// x is made by one stream and used by another, that waits or does not.
std::vector<float> produce_and_consume(bool wait) {
    const OwnStream producer;
    const OwnStream consumer;
    const DeviceArray<float> x(1);
    const DeviceArray<float> sum(std::vector<float>{1});
    launch(producer, {}, Fill{x.data(), 1, 5.0F});
    Event made;
    made.record(producer);
    if (wait) {
        made.make_wait(consumer);
    }
    launch(consumer, {}, AddTo{sum.data(), x.data(), 1});
    synchronize(consumer);
    return sum.read();
}

TEST_CASE("an event makes a stream wait, and without it the data is wrong") {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK(produce_and_consume(true) == std::vector<float>{6});
    }
    set_emulation({.order = Order::forward});
    CHECK(std::isnan(produce_and_consume(false)[0]));
    set_emulation({});
}

TEST_CASE("a missing wait before memory is used again shows when other streams go first") {
    set_emulation({.order = Order::reverse});
    const OwnStream user;
    const OwnStream next;
    const DeviceArray<float> x(std::vector<float>{1});
    const DeviceArray<float> sum(std::vector<float>{1});
    launch(user, {}, AddTo{sum.data(), x.data(), 1});
    launch(next, {}, Fill{x.data(), 1, 100.0F});
    synchronize(user);
    CHECK(sum.read() == std::vector<float>{101});
    set_emulation({});
}

TEST_CASE("events pass, again and again") {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const OwnStream stream;
        const DeviceArray<float> x(1);
        Event event;
        CHECK(event.passed());
        for (int round = 0; round < 3; ++round) {
            launch(stream, {}, Fill{x.data(), 1, static_cast<float>(round)});
            event.record(stream);
            int polls = 0;
            while (!event.passed()) {
                REQUIRE(++polls < 1000);
            }
            CHECK(x.read() == std::vector<float>{static_cast<float>(round)});
        }
    }
    set_emulation({});
}

TEST_CASE("memory of the host is read when the copy's turn comes") {
    set_emulation({});
    const OwnStream stream;
    const DeviceArray<float> x(1);
    const PinnedFloats pinned(1);
    pinned.data()[0] = 1;
    copy_async(x.data(), pinned.data(), 4, stream);
    pinned.data()[0] = 2;  // too early
    synchronize(stream);
    CHECK(x.read() == std::vector<float>{2});
    float host = 3;
    copy_async(x.data(), &host, 4, stream);
    host = 4;  // too early
    synchronize(stream);
    CHECK(x.read() == std::vector<float>{4});
}

TEST_CASE("what is freed too early is reported") {
    set_emulation({});
    const OwnStream stream;
    {
        const DeviceArray<float> x(1);
        zero_async(x.data(), 4, stream);
    }
    CHECK_THROWS_WITH(synchronize(stream), Contains("byte 0 of 4 bytes of freed device memory"));
    const DeviceArray<float> y(1);
    zero_async(y.data(), 4, stream);
    CHECK_NOTHROW(synchronize(stream));
}

TEST_CASE("an error reaches those who wait for it, once") {
    set_emulation({});
    const OwnStream bad;
    const OwnStream waiting;
    const DeviceArray<float> x(32);
    launch(bad, {}, Impossible{});
    Event event;
    event.record(bad);
    event.make_wait(waiting);
    launch(waiting, {}, Fill{x.data(), 32, 1.0F});
    CHECK_THROWS_AS(synchronize(waiting), EmulationError);
    CHECK_THROWS_AS(event.passed(), EmulationError);
    CHECK_THROWS_WITH(synchronize(bad), Contains("Impossible"));
    CHECK_NOTHROW(synchronize(bad));
    CHECK(std::isnan(x.read()[0]));
}

TEST_CASE("streams of several threads of the system") {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        std::array<std::vector<float>, 2> results;
        std::array<std::thread, 2> threads;
        for (std::size_t t = 0; t < 2; ++t) {
            threads[t] = std::thread([&results, t] {
                const OwnStream stream;
                const DeviceArray<float> x(std::vector<float>(64, 1.0F));
                for (int i = 0; i < 50; ++i) {
                    launch(stream, {}, AddTo{x.data(), x.data(), 64});
                    launch(stream, {}, Fill{x.data(), 32, static_cast<float>(t)});
                    if (i % 10 == 0) {
                        synchronize(stream);
                    }
                }
                results[t] = x.read();
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (std::size_t t = 0; t < 2; ++t) {
            CHECK(results[t][0] == static_cast<float>(t));
            CHECK(results[t][63] == std::ldexp(1.0F, 50));
        }
    }
    set_emulation({});
}

TEST_CASE("the device says what it is") {
    CHECK(device_count() > 0);
    CHECK_NOTHROW(use_device(0));
    CHECK_THROWS_AS(use_device(device_count()), EmulationError);
    CHECK(device_info().name == "emulated device");
    CHECK(device_info().capability == 80);
    CHECK(device_info().multiprocessors == 4);
    CHECK(free_device_bytes() > 0);
    CHECK(free_device_bytes() <= device_info().total_bytes);
}

}  // namespace
}  // namespace tessera::simt
