#include "test/simt/races.h"

#include <algorithm>
#include <bit>

#include "core/base/checked.h"
#include "test/simt/address_range.h"
#include "test/simt/block.h"
#include "test/simt/device_memory.h"
#include "test/simt/shared_memory.h"

namespace tessera::simt::emulated {

namespace {

const char* name_of(Access access) {
    return access == Access::read ? "read" : "write";
}

}  // namespace

Races& races() {
    static Races the_races;
    return the_races;
}

Races::Races()
    : shared_cells_(reinterpret_cast<Cell*>(reserve_addresses(SharedMemory::kBytes / kGranule * sizeof(Cell)))),
      device_cells_(reinterpret_cast<Cell*>(reserve_addresses(DeviceMemory::kBytes / kGranule * sizeof(Cell)))) {}

// What orders accesses.

void Races::begin_launch(bool checked, int threads) {
    ++launch_;
    split_.clear();
    threads_ = checked ? threads : 0;
    clocks_.assign(static_cast<std::size_t>(threads_) * static_cast<std::size_t>(threads_), 0);
    joined_.resize(static_cast<std::size_t>(threads_));
}

void Races::begin_block(std::int64_t number) {
    block_number_ = narrow<std::int32_t>(number + 1);
    barriers_between_warps_ = false;
    order_block();
    block_ = epoch_;
}

void Races::order_block() {
    // Of an earlier epoch everything is ordered, so that what threads know of one another may stay behind. Their own
    // clocks move on, so that nobody knows of what they do now.
    ++epoch_;
    readers_.clear();
    for (int thread = 0; thread < threads_; ++thread) {
        ++clock(thread, thread);
    }
}

template <typename Threads>
void Races::join(const Threads& threads, int first, int count) {
    std::fill_n(joined_.begin(), count, 0U);
    for (const int thread : threads) {
        const std::uint32_t* known = &clock(first, thread);
        for (int i = 0; i < count; ++i) {
            joined_[static_cast<std::size_t>(i)] = std::max(joined_[static_cast<std::size_t>(i)], known[i]);
        }
    }
    for (const int thread : threads) {
        std::copy_n(joined_.begin(), count, &clock(first, thread));
        ++clock(thread, thread);
    }
}

void Races::order_threads(const std::vector<int>& threads) {
    if (threads_ > 0) {
        barriers_between_warps_ = true;
        join(threads, 0, threads_);
    }
}

void Races::order_lanes(int warp, unsigned lanes) {
    if (threads_ == 0) {
        return;
    }
    std::vector<int> threads;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
        threads.push_back(warp * kWarp + std::countr_zero(rest));
    }
    if (barriers_between_warps_) {
        join(threads, 0, threads_);
    } else {
        join(threads, warp * kWarp, kWarp);
    }
}

// Accesses.

void Races::report(const Event& event, const std::string& what) {
    const std::string where = event.memory == Memory::shared ? block().shared().describe_offset(event.offset)
                                                             : device_memory().describe_offset(event.offset);
    block().fail(event.thread, fmt::format("{} of {} bytes at {}{} {}", name_of(event.access), event.bytes, where,
                                           event.site.describe(), what));
}

void Races::report_race(const Event& event, const char* other, int other_thread, Site other_site) {
    report(event, fmt::format("races with the {} by thread {}{}: no barrier or sync_warp orders them", other,
                              other_thread, other_site.describe()));
}

void Races::access_shared(Thread& thread, std::int64_t offset, std::int64_t bytes, Access access, Site site) {
    access_cells(shared_cells_, block_, {thread, Memory::shared, access, site, offset, bytes});
}

void Races::access_device(Thread& thread, std::int64_t offset, std::int64_t bytes, Access access, Site site) {
    access_cells(device_cells_, launch_, {thread, Memory::device, access, site, offset, bytes});
}

void Races::access_cells(Cell* cells, std::uint32_t generation, const Event& event) {
    const std::int64_t end = event.offset + event.bytes;
    for (std::int64_t granule = event.offset / kGranule; granule * kGranule < end; ++granule) {
        const std::int64_t begin = granule * kGranule;
        const auto first = static_cast<int>(std::max<std::int64_t>(event.offset - begin, 0));
        const auto last = static_cast<int>(std::min<std::int64_t>(end - begin, kGranule));
        const auto bytes = static_cast<std::uint8_t>((1U << last) - (1U << first));
        Cell& cell = cells[granule];
        if (cell.generation != generation) {
            cell = Cell{.generation = generation, .bytes = bytes};
        }
        if (cell.split == 0 && cell.bytes == bytes) {
            touch(cell, event);
            continue;
        }
        if (cell.split == 0) {
            split(cell);
        }
        for (int byte = first; byte < last; ++byte) {
            touch(split_[cell.split - 1][static_cast<std::size_t>(byte)], event);
        }
    }
}

void Races::split(Cell& cell) {
    std::array<Cell, kGranule> parts;
    for (std::size_t byte = 0; byte < kGranule; ++byte) {
        if ((cell.bytes >> byte & 1U) == 0) {
            continue;
        }
        parts[byte] = cell;
        // Each byte gets a list of readers of its own.
        std::uint32_t* link = &parts[byte].readers;
        while (*link != 0 && cell.epoch == epoch_) {
            const Readers copy = readers_[*link - 1];
            readers_.push_back(copy);
            *link = static_cast<std::uint32_t>(readers_.size());
            link = &readers_.back().next;
        }
    }
    split_.push_back(parts);
    cell.split = static_cast<std::uint32_t>(split_.size());
}

void Races::touch(Cell& cell, const Event& event) {
    if (cell.copy_target) {
        report(event, fmt::format("touches what copy_async16 of thread {}{} is copying into: wait_copies comes first",
                                  cell.writer - 1, cell.write_site.describe()));
    }
    if (event.access == Access::write && cell.copy_sources > 0) {
        report(event, "touches what a copy_async16 is copying from: wait_copies comes first");
    }
    if (event.memory == Memory::device) {
        touch_between_blocks(cell, event);
    } else if (event.access == Access::read && !cell.written) {
        report(event, "is of shared memory that nobody wrote");
    }
    touch_within_block(cell, event);
}

void Races::touch_between_blocks(Cell& cell, const Event& event) {
    const bool foreign_write = cell.writing_block != 0 && cell.writing_block != block_number_;
    const bool foreign_read = cell.reading_block != 0 && cell.reading_block != block_number_;
    if (foreign_write || (event.access == Access::write && foreign_read)) {
        const std::int32_t other = foreign_write ? cell.writing_block : cell.reading_block;
        report(event, fmt::format("races with the {} by {}{}: nothing orders blocks", foreign_write ? "write" : "read",
                                  other == kSeveral ? "several blocks" : "block " + block().describe_block(other - 1),
                                  (foreign_write ? cell.write_site : cell.read_site).describe()));
    }
    if (event.access == Access::write) {
        cell.writing_block = block_number_;
    } else {
        cell.reading_block = foreign_read ? kSeveral : block_number_;
    }
}

void Races::touch_within_block(Cell& cell, const Event& event) {
    if (cell.epoch != epoch_) {
        cell.epoch = epoch_;
        cell.writer = 0;
        cell.reader = 0;
        cell.readers = 0;
    }
    const int self = event.thread.index;
    if (cell.writer != 0 && !is_ordered(cell.writer - 1, cell.writer_clock, self)) {
        report_race(event, "write", cell.writer - 1, cell.write_site);
    }
    if (event.access == Access::read) {
        add_reader(cell, event);
        return;
    }
    if (cell.reader != 0 && !is_ordered(cell.reader - 1, cell.reader_clock, self)) {
        report_race(event, "read", cell.reader - 1, cell.read_site);
    }
    for (std::uint32_t link = cell.readers; link != 0; link = readers_[link - 1].next) {
        const Readers& readers = readers_[link - 1];
        for (unsigned rest = readers.lanes; rest != 0; rest &= rest - 1) {
            const int lane = std::countr_zero(rest);
            const int reader = readers.warp * kWarp + lane;
            if (!is_ordered(reader, readers.clocks[static_cast<std::size_t>(lane)], self)) {
                report_race(event, "read", reader, cell.read_site);
            }
        }
    }
    cell.reader = 0;
    cell.readers = 0;
    cell.writer = static_cast<std::uint16_t>(self + 1);
    cell.writer_clock = clock(self, self);
    cell.write_site = event.site;
    cell.written = true;
}

void Races::add_reader(Cell& cell, const Event& event) {
    const int self = event.thread.index;
    const std::uint32_t now = clock(self, self);
    cell.read_site = event.site;
    if (cell.readers == 0 && (cell.reader == 0 || is_ordered(cell.reader - 1, cell.reader_clock, self))) {
        cell.reader = static_cast<std::uint16_t>(self + 1);
        cell.reader_clock = now;
        return;
    }
    const auto add = [&](int thread, std::uint32_t clock_of_read) {
        std::uint32_t link = cell.readers;
        while (link != 0 && readers_[link - 1].warp != thread / kWarp) {
            link = readers_[link - 1].next;
        }
        if (link == 0) {
            readers_.push_back({thread / kWarp, 0, {}, cell.readers});
            link = cell.readers = static_cast<std::uint32_t>(readers_.size());
        }
        Readers& readers = readers_[link - 1];
        readers.lanes |= 1U << thread % kWarp;
        readers.clocks[static_cast<std::size_t>(thread % kWarp)] = clock_of_read;
    };
    if (cell.reader != 0) {
        add(cell.reader - 1, cell.reader_clock);
        cell.reader = 0;
    }
    add(self, now);
}

// Asynchronous copies. Their first access has made the cells what they are.

template <typename Body>
void Races::for_cells(Cell* cells, std::int64_t offset, Body&& body) {
    constexpr std::int64_t kCopied = 16;
    for (std::int64_t granule = offset / kGranule; granule < (offset + kCopied) / kGranule; ++granule) {
        Cell& cell = cells[granule];
        if (cell.split == 0) {
            body(cell);
        } else {
            std::for_each(split_[cell.split - 1].begin(), split_[cell.split - 1].end(), body);
        }
    }
}

void Races::begin_copy(std::int64_t to, std::int64_t from) {
    for_cells(shared_cells_, to, [](Cell& cell) { cell.copy_target = true; });
    if (from >= 0) {
        for_cells(device_cells_, from, [](Cell& cell) { ++cell.copy_sources; });
    }
}

void Races::end_copy(std::int64_t to, std::int64_t from) {
    for_cells(shared_cells_, to, [](Cell& cell) { cell.copy_target = false; });
    if (from >= 0) {
        for_cells(device_cells_, from, [](Cell& cell) { --cell.copy_sources; });
    }
}

}  // namespace tessera::simt::emulated
