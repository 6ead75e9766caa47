#include "test/simt/block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

#include "test/simt/faults.h"
#include "test/simt/memory_checks.h"
#include "test/simt/races.h"
#include "test/simt/settings.h"
#include "test/simt/warp_words.h"

namespace tessera::simt::emulated {

constinit thread_local Thread* current_thread = nullptr;
constinit thread_local Thread* watched_thread = nullptr;

namespace {

constexpr int kMostThreads = 1024;

/// "0-31, 40": runs of an ascending list.
std::string describe_runs(const std::vector<int>& indices) {
    std::string text;
    for (std::size_t i = 0; i < indices.size();) {
        std::size_t end = i + 1;
        while (end < indices.size() && indices[end] == indices[end - 1] + 1) {
            ++end;
        }
        text += text.empty() ? "" : ", ";
        text += end - i == 1 ? fmt::format("{}", indices[i]) : fmt::format("{}-{}", indices[i], indices[end - 1]);
        i = end;
    }
    return text;
}

bool same_place(const Place& a, const Place& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

std::int64_t RandomOrder::below(std::int64_t count) {
    // SplitMix64 (Steele, Lea and Flood, 2014).
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return static_cast<std::int64_t>((z ^ (z >> 31)) % static_cast<std::uint64_t>(count));
}

const char* name_of(Word word) {
    switch (word) {
        case Word::none:
            return "nothing";
        case Word::sync_block:
            return "sync_block";
        case Word::sync_named:
            return "sync_named";
        case Word::sync_warp:
            return "sync_warp";
        case Word::shuffle:
            return "shuffle";
        case Word::shuffle_xor:
            return "shuffle_xor";
        case Word::shuffle_down:
            return "shuffle_down";
        case Word::any:
            return "any";
        case Word::all:
            return "all";
        case Word::ballot:
            return "ballot";
        case Word::load_matrix_x4:
            return "load_matrix_x4";
        case Word::load_matrix_x4_transposed:
            return "load_matrix_x4_transposed";
        case Word::mma_bfloat16:
            return "mma_16x8x16<bfloat16>";
        case Word::mma_float16:
            return "mma_16x8x16<float16>";
    }
    return "?";
}

std::string describe(const Place& place) {
    return fmt::format("{}:{}", place.file, place.line);
}

Block::Block()
    : stacks_(kMostThreads), threads_(static_cast<std::size_t>(kMostThreads)), warps_(kMostThreads / kWarp) {}

constinit Block* the_block = nullptr;

Block& make_block() {
    static Block only;
    the_block = &only;
    return only;
}

std::string Block::describe_block(std::int64_t number) const {
    const Grid& size = grid();
    return fmt::format("({}, {}, {})", number % size.x, number / size.x % size.y, number / size.x / size.y);
}

std::string Block::describe(const Thread& thread) const {
    return fmt::format("kernel {}, block {}, thread {}", launch_->kernel, describe_block(number()), thread.index);
}

void Block::fail(const Thread& self, const std::string& what) {
    throw EmulationError(fmt::format("{}: {}", describe(self), what));
}

void Block::fail(const Thread& self, const Place& place, const std::string& what) {
    fail(self, fmt::format("{} (at {})", what, emulated::describe(place)));
}

void Block::end_launch(const char* failure) {
    watched_thread = nullptr;
    failure_ = failure;
    switch_fiber(current_thread->fiber, scheduler_, true);
    std::terminate();  // an abandoned fiber never runs again
}

// Running.

void Block::run(const Launch& launch) {
    launch_ = &launch;
    thread_count_ = launch.call.threads;
    random_ = RandomOrder(launch.emulation.seed);
    failure_.clear();
    shared_.begin_launch(launch.call.dynamic_shared_bytes, launch.emulation.capability);
    races().begin_launch(launch.call.checked, thread_count_);
    const FaultReports reports;
    ++counted_statistics().launches;
    run_blocks();
    current_thread = nullptr;
    launch_ = nullptr;
    if (!failure_.empty()) {
        throw EmulationError(failure_);
    }
}

void Block::run_blocks() {
    const std::int64_t count = grid().x * grid().y * grid().z;
    const Order order = launch_->emulation.order;
    std::vector<std::int64_t> shuffled;
    if (order == Order::random) {
        shuffled.resize(static_cast<std::size_t>(count));
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t other = random_.below(i + 1);
            shuffled[static_cast<std::size_t>(i)] = shuffled[static_cast<std::size_t>(other)];
            shuffled[static_cast<std::size_t>(other)] = i;
        }
    }
    for (std::int64_t i = 0; i < count && failure_.empty(); ++i) {
        run_block(order == Order::forward   ? i
                  : order == Order::reverse ? count - 1 - i
                                            : shuffled[static_cast<std::size_t>(i)]);
    }
}

void Block::run_block(std::int64_t number) {
    ++counted_statistics().blocks;
    const Grid& size = grid();
    place_ = {number % size.x, number / size.x % size.y, number / size.x / size.y};
    shared_.begin_block();
    races().begin_block(number);
    for (Warp& warp : warps_) {
        warp.meetings.clear();
        warp.finished = 0;
    }
    for (NamedBarrier& barrier : named_) {
        barrier.arrived.clear();
    }
    at_block_barrier_ = 0;
    finished_ = 0;
    ready_.clear();
    for (int i = 0; i < thread_count_; ++i) {
        Thread& thread = threads_[static_cast<std::size_t>(i)];
        thread.index = i;
        thread.copies.clear();
        thread.copy_groups = 0;
        prepare(thread.fiber, stacks_.low(i), FiberStacks::bytes(i), run_thread);
    }
    release_all();
    scheduler_started_ = false;
    current_thread = take_next();
    switch_fiber(scheduler_, current_thread->fiber);
}

void Block::run_thread() {
    Block& self = block();
    begin_fiber(self.scheduler_started_ ? nullptr : &self.scheduler_);
    self.scheduler_started_ = true;
    watched_thread = current_thread;
    try {
        self.launch_->call.body(self.launch_->parameters.get());
        watched_thread = nullptr;
        self.finish(*current_thread);  // leaves, unless it fails
    } catch (const EmulationError& error) {
        watched_thread = nullptr;
        self.failure_ = error.what();
    } catch (const std::exception& error) {
        watched_thread = nullptr;
        self.failure_ = fmt::format("{}: throws an exception: {}", self.describe(*current_thread), error.what());
    }
    switch_fiber(current_thread->fiber, self.scheduler_, true);
}

void Block::finish(Thread& self) {
    check_copies_are_done(self);
    self.state = State::finished;
    ++finished_;
    Warp& warp = warps_[static_cast<std::size_t>(self.warp())];
    const unsigned bit = 1U << self.lane();
    warp.finished |= bit;
    for (const Meeting& meeting : warp.meetings) {
        if ((meeting.mask & bit) != 0) {
            fail(self, meeting.place,
                 fmt::format("lane {} ended, but is in the mask {:#010x} with which lanes {:#010x} wait at {}",
                             self.lane(), meeting.mask, meeting.arrived, name_of(meeting.word)));
        }
    }
    if (at_block_barrier_ > 0) {
        const Thread& other = thread(first_at_block_barrier_);
        fail(self, other.place,
             fmt::format("ended while thread {} waits at sync_block, which all threads of the block must reach",
                         other.index));
    }
    leave(self);
}

void Block::order_released(std::size_t first) {
    if (launch_->emulation.order == Order::forward) {
        std::reverse(ready_.begin() + static_cast<std::ptrdiff_t>(first), ready_.end());
    }
}

void Block::release(const std::vector<int>& indices) {
    const std::size_t first = ready_.size();
    for (const int index : indices) {
        thread(index).state = State::ready;
        ready_.push_back(index);
    }
    order_released(first);
}

void Block::release_lanes(int warp, unsigned lanes) {
    const std::size_t first = ready_.size();
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        const int index = warp * kWarp + std::countr_zero(rest);
        thread(index).state = State::ready;
        ready_.push_back(index);
    }
    order_released(first);
}

void Block::release_all() {
    for (int index = 0; index < thread_count_; ++index) {
        thread(index).state = State::ready;
        ready_.push_back(index);
    }
    order_released(0);
}

Thread* Block::take_next() {
    if (ready_.empty()) {
        return nullptr;
    }
    if (launch_->emulation.order == Order::random) {
        std::swap(ready_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(ready_.size())))],
                  ready_.back());
    }
    Thread& next = thread(ready_.back());
    ready_.pop_back();
    return &next;
}

void Block::leave(Thread& self) {
    Thread* next = take_next();
    if (next == &self) {
        return;
    }
    const bool ends = self.state == State::finished;
    if (next != nullptr) {
        current_thread = next;
        switch_fiber(self.fiber, next->fiber, ends);
    } else if (finished_ == thread_count_) {
        switch_fiber(self.fiber, scheduler_, true);
    } else {
        fail(self, "deadlock: no thread of the block can go on." + describe_waiting());
    }
}

std::string Block::describe_waiting() const {
    std::vector<std::pair<std::string, std::vector<int>>> groups;
    for (int i = 0; i < thread_count_; ++i) {
        const Thread& thread = threads_[static_cast<std::size_t>(i)];
        std::string state = "ended";
        if (thread.state != State::finished) {
            state = fmt::format("at {}", name_of(thread.word));
            if (thread.word == Word::sync_named) {
                const NamedBarrier& barrier = named_[static_cast<std::size_t>(thread.barrier)];
                state += fmt::format("<{}>, where {} of {} threads are", thread.barrier, barrier.arrived.size(),
                                     barrier.expected);
            } else if (thread.word == Word::sync_block) {
                state += fmt::format(", where {} of {} threads are", at_block_barrier_, thread_count_);
            } else {
                state += fmt::format(" with mask {:#010x}", thread.mask);
            }
            state += " (" + emulated::describe(thread.place) + ")";
        }
        const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == state; });
        if (group == groups.end()) {
            groups.push_back({state, {i}});
        } else {
            group->second.push_back(i);
        }
    }
    std::string text;
    for (const auto& [state, indices] : groups) {
        text +=
            fmt::format("\n    {} {}: {}", indices.size() == 1 ? "thread" : "threads", describe_runs(indices), state);
    }
    return text;
}

// Meeting.

void Block::wait(Thread& self, Word word, const Place& place) {
    self.state = State::waiting;
    self.word = word;
    self.place = place;
}

void Block::refuse_lane(Thread& self, Word word, unsigned mask, const Place& place) {
    if ((mask & (1U << self.lane())) == 0) {
        fail(self, place,
             fmt::format("lane {} is not in its own mask {:#010x} of {}", self.lane(), mask, name_of(word)));
    }
    fail(self, place,
         fmt::format("the mask {:#010x} of {} names lanes {:#010x} that ended", mask, name_of(word),
                     mask & warps_[static_cast<std::size_t>(self.warp())].finished));
}

void Block::refuse_mix(Thread& self, Word word, unsigned mask, const Place& place, const Meeting& other) {
    fail(self, place,
         fmt::format("different operations meet: lane {} comes with {} and mask {:#010x} where lanes {:#010x} wait for "
                     "it at {} with mask {:#010x} ({})",
                     self.lane(), name_of(word), mask, other.arrived, name_of(other.word), other.mask,
                     emulated::describe(other.place)));
}

void Block::meet_warp(Thread& self, Word word, unsigned mask, void* operands, const Place& place) {
    const unsigned bit = 1U << self.lane();
    Warp& warp = warps_[static_cast<std::size_t>(self.warp())];
    if ((mask & bit) == 0 || (mask & warp.finished) != 0) {
        refuse_lane(self, word, mask, place);
    }
    Meeting* meeting = nullptr;
    for (Meeting& other : warp.meetings) {
        if (other.mask == mask && other.word == word && same_place(other.place, place)) {
            meeting = &other;
        } else if ((other.arrived & mask) != 0 && (other.mask & bit) != 0) {
            refuse_mix(self, word, mask, place, other);
        }
    }
    if (meeting == nullptr) {
        warp.meetings.push_back({word, mask, 0, place});
        meeting = &warp.meetings.back();
    }
    meeting->arrived |= bit;
    wait(self, word, place);
    self.mask = mask;
    self.operands = operands;
    if (meeting->arrived == mask) {
        *meeting = warp.meetings.back();
        warp.meetings.pop_back();
        ++counted_statistics().meetings;
        do_warp_word(*this, self, word, mask);
        release_lanes(self.warp(), mask);
    }
    leave(self);
}

void Block::refuse_barrier(Thread& self, const Place& place) {
    if (finished_ > 0) {
        fail(self, place,
             fmt::format("reaches sync_block, which all threads of the block must reach, but {} ended before it",
                         finished_));
    }
    const Thread& other = thread(first_at_block_barrier_);
    fail(self, place,
         fmt::format("sync_block in divergent code: thread {} waits at another one ({})", other.index,
                     emulated::describe(other.place)));
}

void Block::meet_block(Thread& self, const Place& place) {
    if (at_block_barrier_ == 0) {
        first_at_block_barrier_ = self.index;
    }
    if (finished_ > 0 || (at_block_barrier_ > 0 && !same_place(thread(first_at_block_barrier_).place, place))) {
        refuse_barrier(self, place);
    }
    wait(self, Word::sync_block, place);
    if (++at_block_barrier_ == thread_count_) {
        at_block_barrier_ = 0;
        ++counted_statistics().meetings;
        races().order_block();
        release_all();
    }
    leave(self);
}

void Block::meet_named(Thread& self, int id, int threads, const Place& place) {
    NamedBarrier& barrier = named_[static_cast<std::size_t>(id)];
    if (threads <= 0 || threads % kWarp != 0 || threads > thread_count_) {
        fail(self, place, fmt::format("sync_named<{}> of {} threads in a block of {}", id, threads, thread_count_));
    }
    if (barrier.arrived.empty()) {
        barrier.expected = threads;
    } else if (barrier.expected != threads) {
        fail(self, place,
             fmt::format("sync_named<{}> with {} threads, where thread {} waits for {}", id, threads,
                         barrier.arrived.front(), barrier.expected));
    }
    barrier.arrived.push_back(self.index);
    wait(self, Word::sync_named, place);
    self.barrier = id;
    if (static_cast<int>(barrier.arrived.size()) == threads) {
        std::sort(barrier.arrived.begin(), barrier.arrived.end());
        for (std::size_t i = 0; i < barrier.arrived.size(); ++i) {
            // Whole warps: in each run of 32 the lanes are 0 to 31.
            if (barrier.arrived[i] % kWarp != static_cast<int>(i) % kWarp) {
                fail(self, place,
                     fmt::format("sync_named<{}> is reached by parts of warps: threads {}", id,
                                 describe_runs(barrier.arrived)));
            }
        }
        ++counted_statistics().meetings;
        races().order_threads(barrier.arrived);
        release(barrier.arrived);
        barrier.arrived.clear();
    }
    leave(self);
}

}  // namespace tessera::simt::emulated
