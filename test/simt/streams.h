// Emulated streams: queues that do their work only when somebody must see it done.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>

#include "kernels/cuda/runtime.h"
#include "test/simt/block.h"

namespace tessera::simt::emulated {

/// A point in a stream, as an event recorded it.
struct Point {
    CUstream_st* stream = nullptr;
    bool passed = false;
    std::chrono::steady_clock::time_point time;  // when it was passed
    std::exception_ptr failure;                  // what went wrong before it
};

struct Task {
    std::function<void()> work{};              // may be empty
    std::shared_ptr<Point> reached = nullptr;  // passed when the task is done, or null
    std::shared_ptr<Point> awaited = nullptr;  // must be passed before, or null
    bool meets_ranks =
        false;  // other ranks must do it too: not before it is needed, as they may wait for the host here
};

}  // namespace tessera::simt::emulated

struct CUstream_st {
    std::deque<tessera::simt::emulated::Task> tasks;
    std::exception_ptr failure;  // not yet thrown
};

struct CUevent_st {
    bool timed = false;
    std::shared_ptr<tessera::simt::emulated::Point> point{};  // null: never recorded
};

namespace tessera::simt::emulated {

void enqueue(Stream stream, Task task);
/// Works until `stream` has done all that it was given; null: all streams.
void finish(Stream stream);
/// Works until the point is passed.
void reach(Point& point);
/// Whether the point is passed, after what a device might have done since it was last asked.
[[nodiscard]] bool poll(Point& point);

/// Begins the numbers anew that choose between streams.
void seed_streams(std::uint64_t seed);
[[nodiscard]] Stream new_stream();
void end_stream(Stream stream);

}  // namespace tessera::simt::emulated
