#include "test/simt/async_copies.h"

#include <algorithm>
#include <cstring>

#include "test/simt/block.h"
#include "test/simt/device_memory.h"
#include "test/simt/memory_checks.h"
#include "test/simt/races.h"

namespace tessera::simt {

using emulated::current_thread;

namespace emulated {

namespace {

constexpr std::int64_t kBytes = 16;

std::int64_t shared_offset(const AsyncCopy& copy) {
    return block().shared().offset(copy.to);
}
std::int64_t source_offset(const AsyncCopy& copy) {
    return copy.from != nullptr ? device_memory().offset(copy.from) : -1;
}

void land(Thread& thread, const AsyncCopy& copy) {
    const Site site(copy.place);
    if (block().checked()) {
        races().end_copy(shared_offset(copy), source_offset(copy));
    }
    check_shared_access(thread, copy.to, kBytes, Access::write, site);
    if (copy.from != nullptr) {
        check_device_access(thread, copy.from, kBytes, Access::read, site);
    }
    if (copy.from != nullptr && !copy.taken) {
        std::memcpy(copy.to, copy.from, kBytes);
    } else {
        std::memcpy(copy.to, copy.bytes.data(), kBytes);
    }
}

}  // namespace

void wait_copies(int groups) {
    const InEmulator inside;
    Thread& self = *current_thread;
    const int done = self.copy_groups - groups;  // of a lower number
    auto copy = self.copies.begin();
    for (; copy != self.copies.end() && copy->group < done; ++copy) {
        land(self, *copy);
    }
    self.copies.erase(self.copies.begin(), copy);
}

void check_copies_are_done(const Thread& thread) {
    if (!thread.copies.empty()) {
        block().fail(
            thread, thread.copies.front().place,
            fmt::format("ended with {} copies of copy_async16 that it never waited for", thread.copies.size()));
    }
}

}  // namespace emulated

void copy_async16(void* to, const void* from, bool valid, const Place& place) {
    using namespace emulated;
    Thread& self = *current_thread;
    const InEmulator inside;
    const Site site(place);
    check_alignment(self, to, kBytes, site);
    check_alignment(self, from, kBytes, site);
    check_shared_access(self, to, kBytes, Access::write, site);
    AsyncCopy copy{static_cast<std::byte*>(to),
                   valid ? static_cast<const std::byte*>(from) : nullptr,
                   self.copy_groups,
                   false,
                   {},
                   place};
    if (valid) {
        check_device_access(self, from, kBytes, Access::read, site);
        copy.taken = block().take_copy_early();
        if (copy.taken) {
            std::memcpy(copy.bytes.data(), from, kBytes);
        }
    }
    if (block().checked()) {
        races().begin_copy(shared_offset(copy), source_offset(copy));
    }
    std::memset(to, 0xff, kBytes);
    self.copies.push_back(copy);
}

void commit_copies() {
    ++current_thread->copy_groups;
}

}  // namespace tessera::simt
