// What emulator.h sets and counts, for the emulator itself.
#pragma once

#include <mutex>

#include "test/simt/emulator.h"

namespace tessera::simt::emulated {

/// Guards streams, memory and the block that runs. Recursive: the emulator's public functions call one another.
[[nodiscard]] std::recursive_mutex& emulator_mutex();

[[nodiscard]] LaunchStatistics& counted_statistics();

}  // namespace tessera::simt::emulated
