// copy_async16: 16 bytes that land in shared memory when the thread that issued the copy waits for it, and not before.
#pragma once

#include <array>
#include <cstddef>

#include "test/simt/place.h"

namespace tessera::simt::emulated {

struct Thread;

struct AsyncCopy {
    std::byte* to;
    const std::byte* from;  // null: zeros
    int group;              // number of the group of its thread
    bool taken;             // whether the source was read when the copy was issued: both may happen on the device
    std::array<std::byte, 16> bytes;
    Place place;
};

/// Reports copies that `thread` never waited for.
void check_copies_are_done(const Thread& thread);

}  // namespace tessera::simt::emulated
