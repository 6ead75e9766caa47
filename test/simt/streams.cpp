#include "test/simt/streams.h"

#include <algorithm>
#include <vector>

#include "test/simt/settings.h"

namespace tessera::simt::emulated {

namespace {

struct Streams {
    CUstream_st unnamed;  // what a null stream stands for
    std::vector<Stream> all{&unnamed};
    RandomOrder random{emulation().seed};
};

Streams& streams() {
    static Streams the_streams;
    return the_streams;
}

Stream resolve(Stream stream) {
    return stream != nullptr ? stream : &streams().unnamed;
}

bool can_go_on(const CUstream_st& stream) {
    return !stream.tasks.empty() && (stream.tasks.front().awaited == nullptr || stream.tasks.front().awaited->passed);
}

/// Does the first task of a stream. What goes wrong ends all that the stream was given, and what waits for it.
void step(CUstream_st& stream) {
    const Task task = std::move(stream.tasks.front());
    stream.tasks.pop_front();
    std::exception_ptr failure = task.awaited != nullptr ? task.awaited->failure : nullptr;
    if (failure == nullptr && task.work) {
        try {
            task.work();
        } catch (...) {
            failure = std::current_exception();
        }
    }
    if (task.reached != nullptr) {
        task.reached->passed = true;
        task.reached->time = std::chrono::steady_clock::now();
        task.reached->failure = failure;
    }
    if (failure != nullptr) {
        stream.failure = failure;
        for (const Task& dropped : std::exchange(stream.tasks, {})) {
            if (dropped.reached != nullptr) {
                dropped.reached->passed = true;
                dropped.reached->failure = failure;
            }
        }
    }
}

bool step_other_than(Stream stream, bool any) {
    std::vector<Stream> able;
    for (Stream other : streams().all) {
        if ((any || other != stream) && can_go_on(*other) && !other->tasks.front().meets_ranks) {
            able.push_back(other);
        }
    }
    if (able.empty()) {
        return false;
    }
    step(*able[static_cast<std::size_t>(streams().random.below(static_cast<std::int64_t>(able.size())))]);
    return true;
}

/// One task nearer to the end of the first task of `stream`.
void advance(Stream stream) {
    const Order order = emulation().order;
    if (order != Order::forward && step_other_than(stream, order == Order::random)) {
        return;
    }
    Stream needed = stream;
    for (std::size_t hops = 0; !can_go_on(*needed); ++hops) {
        if (needed->tasks.empty() || hops > streams().all.size()) {
            throw EmulationError("deadlock: a stream waits for an event that no stream will reach");
        }
        needed = needed->tasks.front().awaited->stream;
    }
    step(*needed);
}

}  // namespace

void enqueue(Stream stream, Task task) {
    const std::lock_guard lock(emulator_mutex());
    stream = resolve(stream);
    if (task.reached != nullptr) {
        task.reached->stream = stream;
    }
    stream->tasks.push_back(std::move(task));
}

void finish(Stream stream) {
    stream = resolve(stream);
    while (!stream->tasks.empty()) {
        advance(stream);
    }
    if (const std::exception_ptr failure = std::exchange(stream->failure, nullptr)) {
        std::rethrow_exception(failure);
    }
}

void reach(Point& point) {
    while (!point.passed) {
        advance(point.stream);
    }
}

bool poll(Point& point) {
    // A stream may have got anywhere since; forward: to the point, so that polling ends.
    if (!point.passed && emulation().order == Order::forward) {
        reach(point);
    } else if (!point.passed) {
        advance(point.stream);
    }
    if (point.failure != nullptr) {
        std::rethrow_exception(point.failure);
    }
    return point.passed;
}

void seed_streams(std::uint64_t seed) {
    streams().random = RandomOrder(seed);
}

Stream new_stream() {
    streams().all.push_back(new CUstream_st);
    return streams().all.back();
}

void end_stream(Stream stream) {
    const bool unwinding = std::uncaught_exceptions() > 0;  // what tasks refer to may be gone already
    try {
        while (!unwinding && !stream->tasks.empty()) {
            advance(stream);
        }
        if (!unwinding && stream->failure != nullptr) {
            std::rethrow_exception(stream->failure);
        }
    } catch (const std::exception& error) {
        fmt::print(stderr, "an emulated stream ended with an error that nobody saw: {}\n", error.what());
    }
    for (const Task& dropped : stream->tasks) {
        if (dropped.reached != nullptr) {
            dropped.reached->passed = true;
        }
    }
    std::erase(streams().all, stream);
    delete stream;
}

}  // namespace tessera::simt::emulated

namespace tessera::simt {

void synchronize_all() {
    const std::lock_guard lock(emulated::emulator_mutex());
    std::exception_ptr first;
    for (Stream stream : std::vector<Stream>(emulated::streams().all)) {
        try {
            emulated::finish(stream);
        } catch (...) {
            first = first != nullptr ? first : std::current_exception();
        }
    }
    if (first != nullptr) {
        std::rethrow_exception(first);
    }
}

}  // namespace tessera::simt
