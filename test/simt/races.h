// Accesses to memory that nothing orders: within a block, and between the blocks of a launch.
//
// Within a block, vector clocks (Fidge; Mattern, 1988; as FastTrack, Flanagan and Freund, 2009, keeps them): barriers
// order the accesses of their threads, sync_warp those of its lanes, and nothing else does, not even within a warp.
// Between blocks nothing orders anything. Each 4 bytes of memory have a cell that knows their last write and the reads
// since; it is split into one for each byte where accesses touch different parts of it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "test/simt/memory_checks.h"

namespace tessera::simt::emulated {

struct Thread;

class Races {
  public:
    Races();

    void begin_launch(bool checked, int threads);
    void begin_block(std::int64_t number);

    void order_block();
    /// Threads of a barrier, in ascending order.
    void order_threads(const std::vector<int>& threads);
    void order_lanes(int warp, unsigned lanes);

    /// Offsets are those of SharedMemory and DeviceMemory.
    void access_shared(Thread& thread, std::int64_t offset, std::int64_t bytes, Access access, Site site);
    void access_device(Thread& thread, std::int64_t offset, std::int64_t bytes, Access access, Site site);

    /// From here on, until end_copy(), nobody may touch the 16 bytes of shared memory at `to`, nor write those of
    /// device memory at `from` (negative: none).
    void begin_copy(std::int64_t to, std::int64_t from);
    void end_copy(std::int64_t to, std::int64_t from);

  private:
    static constexpr std::int64_t kGranule = 4;

    /// Reads by threads of one warp.
    struct Readers {
        int warp;
        unsigned lanes;
        std::array<std::uint32_t, 32> clocks;
        std::uint32_t next;  // 1 + place in readers_; 0: none
    };

    struct Cell {
        std::uint32_t generation = 0;  // the launch or the block that the rest belongs to
        std::uint32_t epoch = 0;       // between two barriers of the block: that of writer and readers
        std::uint32_t writer_clock = 0;
        std::uint32_t reader_clock = 0;
        std::uint16_t writer = 0;        // 1 + thread; 0: none
        std::uint16_t reader = 0;        // the same, where there is only one
        std::uint32_t readers = 0;       // 1 + place in readers_, where there are more
        std::int32_t writing_block = 0;  // 1 + number; 0: none
        std::int32_t reading_block = 0;  // the same; kSeveral
        std::uint32_t split = 0;         // 1 + place in split_
        std::uint16_t copy_sources = 0;  // copies under way from here
        std::uint8_t bytes = 0;          // which of the granule the rest is about
        bool written = false;
        bool copy_target = false;  // a copy is under way to here
        Site write_site{};
        Site read_site{};
    };
    static constexpr std::int32_t kSeveral = -1;

    enum class Memory : std::uint8_t { shared, device };
    struct Event {
        Thread& thread;
        Memory memory;
        Access access;
        Site site;
        std::int64_t offset;
        std::int64_t bytes;
    };

    void access_cells(Cell* cells, std::uint32_t generation, const Event& event);
    void touch(Cell& cell, const Event& event);
    void touch_between_blocks(Cell& cell, const Event& event);
    void touch_within_block(Cell& cell, const Event& event);
    void add_reader(Cell& cell, const Event& event);
    void split(Cell& cell);
    template <typename Body>
    void for_cells(Cell* cells, std::int64_t offset, Body&& body);
    [[nodiscard]] std::uint32_t& clock(int of, int known_by) {
        return clocks_[static_cast<std::size_t>(known_by) * static_cast<std::size_t>(threads_) +
                       static_cast<std::size_t>(of)];
    }
    [[nodiscard]] bool is_ordered(int earlier, std::uint32_t earlier_clock, int later) {
        return earlier == later || clock(earlier, later) >= earlier_clock;
    }
    /// Makes each of `threads` know what any of them knows of the threads [first, first + count).
    template <typename Threads>
    void join(const Threads& threads, int first, int count);
    [[noreturn]] void report(const Event& event, const std::string& what);
    [[noreturn]] void report_race(const Event& event, const char* other, int other_thread, Site other_site);

    int threads_ = 0;
    std::vector<std::uint32_t> clocks_;  // [known by][of]
    std::vector<std::uint32_t> joined_;
    bool barriers_between_warps_ = false;  // in this block, so that clocks of other warps matter
    std::uint32_t launch_ = 0;
    std::uint32_t block_ = 0;  // the epoch it began with
    std::uint32_t epoch_ = 0;
    std::int32_t block_number_ = 0;
    Cell* shared_cells_;
    Cell* device_cells_;
    std::deque<std::array<Cell, kGranule>> split_;  // of this launch
    std::deque<Readers> readers_;                   // of this epoch
};

[[nodiscard]] Races& races();

}  // namespace tessera::simt::emulated
