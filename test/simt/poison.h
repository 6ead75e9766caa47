// Marks memory that nobody may touch, where the address sanitizer is there to see it.
#pragma once

#include <cstdint>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace tessera::simt::emulated {

inline void poison([[maybe_unused]] const void* memory, [[maybe_unused]] std::int64_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(memory, static_cast<std::size_t>(bytes));
#endif
}

inline void unpoison([[maybe_unused]] const void* memory, [[maybe_unused]] std::int64_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(memory, static_cast<std::size_t>(bytes));
#endif
}

}  // namespace tessera::simt::emulated
