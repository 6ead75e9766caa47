// The block that runs: its threads as fibers, who runs next, and where threads wait for one another.
//
// One block runs at a time. A thread runs until it must wait for others and then switches to the next that can run.
// The first failure ends the launch: its own fiber unwinds, and the others are abandoned where they stand. No exception
// crosses from one fiber to another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/simt.h"
#include "test/simt/async_copies.h"
#include "test/simt/emulator.h"
#include "test/simt/fiber.h"
#include "test/simt/shared_memory.h"

namespace tessera::simt::emulated {

/// A launch whose parameters the emulator owns.
struct Launch {
    std::string kernel;
    KernelCall call;
    std::shared_ptr<std::byte[]> parameters;
    Emulation emulation;
};

enum class State : std::uint8_t { ready, waiting, finished };

struct Thread {
    Fiber fiber;
    int index = 0;
    State state = State::ready;
    // What it waits for.
    Word word = Word::none;
    int barrier = 0;  // of sync_named
    unsigned mask = 0;
    Place place;
    void* operands = nullptr;

    std::vector<AsyncCopy> copies;  // under way, oldest first
    int copy_groups = 0;            // committed so far

    [[nodiscard]] int lane() const { return index % kWarp; }
    [[nodiscard]] int warp() const { return index / kWarp; }
};

/// Lanes of one warp that came with the same word and mask.
struct Meeting {
    Word word;
    unsigned mask;
    unsigned arrived;
    Place place;
};

struct Warp {
    std::vector<Meeting> meetings;  // of which lanes still wait for others
    unsigned finished = 0;
};

struct NamedBarrier {
    int expected = 0;
    std::vector<int> arrived;  // threads
};

/// Numbers for Order::random.
class RandomOrder {
  public:
    explicit RandomOrder(std::uint64_t seed) : state_(seed) {}
    /// In [0, count).
    [[nodiscard]] std::int64_t below(std::int64_t count);

  private:
    std::uint64_t state_;
};

class Block {
  public:
    Block();

    /// Runs all blocks of a launch. Throws EmulationError.
    void run(const Launch& launch);

    // For the words, on the fiber of `self`.
    void meet_warp(Thread& self, Word word, unsigned mask, void* operands, const Place& place);
    void meet_block(Thread& self, const Place& place);
    void meet_named(Thread& self, int id, int threads, const Place& place);
    /// Ends the launch, by an exception that the thread's own fiber catches.
    [[noreturn]] void fail(const Thread& self, const std::string& what);
    [[noreturn]] void fail(const Thread& self, const Place& place, const std::string& what);

    /// Whether an asynchronous copy reads its source at once: both may happen on the device.
    [[nodiscard]] bool take_copy_early() { return launch_->emulation.order == Order::random && random_.below(2) == 0; }

    /// The same where no exception can be thrown; what the callers own is not freed.
    [[noreturn]] void end_launch(const char* failure);

    [[nodiscard]] std::int64_t x() const { return place_.x; }
    [[nodiscard]] std::int64_t y() const { return place_.y; }
    [[nodiscard]] std::int64_t z() const { return place_.z; }
    [[nodiscard]] std::int64_t number() const { return (place_.z * grid().y + place_.y) * grid().x + place_.x; }
    [[nodiscard]] const Grid& grid() const { return launch_->call.grid; }
    [[nodiscard]] const Launch& launch() const { return *launch_; }
    [[nodiscard]] bool checked() const { return launch_->call.checked; }
    [[nodiscard]] SharedMemory& shared() { return shared_; }
    [[nodiscard]] Thread& thread(int index) { return threads_[static_cast<std::size_t>(index)]; }
    [[nodiscard]] Thread& thread(int warp, int lane) { return thread(warp * kWarp + lane); }
    [[nodiscard]] const FiberStacks& stacks() const { return stacks_; }
    [[nodiscard]] std::string describe(const Thread& thread) const;
    [[nodiscard]] std::string describe_block(std::int64_t number) const;

  private:
    static void run_thread();
    void run_blocks();
    void run_block(std::int64_t number);
    void finish(Thread& self);
    void wait(Thread& self, Word word, const Place& place);
    void leave(Thread& self);
    /// Makes the waiting threads `indices` (in ascending order) ready.
    void release(const std::vector<int>& indices);
    void release_lanes(int warp, unsigned lanes);
    void release_all();
    void order_released(std::size_t first);
    // Why a thread cannot join, apart from the way of those that can.
    [[noreturn]] void refuse_lane(Thread& self, Word word, unsigned mask, const Place& place);
    [[noreturn]] void refuse_mix(Thread& self, Word word, unsigned mask, const Place& place, const Meeting& other);
    [[noreturn]] void refuse_barrier(Thread& self, const Place& place);
    [[nodiscard]] Thread* take_next();
    [[nodiscard]] std::string describe_waiting() const;

    FiberStacks stacks_;
    SharedMemory shared_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::array<NamedBarrier, 16> named_;
    int at_block_barrier_ = 0;  // threads that arrived
    int first_at_block_barrier_ = 0;
    std::vector<int> ready_;  // the next one last
    int thread_count_ = 0;
    int finished_ = 0;

    Fiber scheduler_;
    bool scheduler_started_ = false;  // the running fiber: the first of its block knows who switched to it
    const Launch* launch_ = nullptr;
    Grid place_;
    RandomOrder random_{1};
    std::string failure_;
};

/// The block that runs on this thread of the system, or ran last: kernels run one at a time, and all on one Block.
extern constinit Block* the_block;
[[nodiscard]] inline Block& block() {
    return *the_block;
}
/// The same where no kernel may have run yet.
[[nodiscard]] Block& make_block();

/// The emulated thread that runs on this thread of the system, or null.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Thread* current_thread;
/// The same while the kernel's own code runs, whose accesses to memory are checked; null in the emulator's.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Thread* watched_thread;

/// While it lives, the emulator's own code runs on the fiber of a kernel.
class InEmulator {
  public:
    InEmulator() { watched_thread = nullptr; }
    ~InEmulator() { watched_thread = current_thread; }
    InEmulator(const InEmulator&) = delete;
    InEmulator& operator=(const InEmulator&) = delete;
};

[[nodiscard]] const char* name_of(Word word);
[[nodiscard]] std::string describe(const Place& place);

}  // namespace tessera::simt::emulated
