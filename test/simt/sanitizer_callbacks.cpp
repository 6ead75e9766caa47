// What -fsanitize=thread makes instrumented code call. Its own library is not linked: these see each access of a kernel
// to memory, and do nothing for the code of the host in the same files.
#include <cstddef>
#include <cstdint>

#include "test/simt/block.h"
#include "test/simt/memory_checks.h"

namespace tessera::simt::emulated {

namespace {

/// `aligned`: the compiler took the address to be a multiple of `bytes`, and so does the device.
inline void on_access(const void* address, std::size_t bytes, Access access, bool aligned, const void* instruction) {
    Thread* thread = watched_thread;
    if (thread == nullptr ||
        static_cast<std::size_t>(static_cast<const std::byte*>(address) - thread->fiber.low) < thread->fiber.bytes) {
        return;
    }
    const InEmulator inside;
    std::string failure;
    try {
        if (aligned) {
            check_alignment(*thread, address, static_cast<std::int64_t>(bytes), Site(instruction));
        }
        check_access(*thread, address, static_cast<std::int64_t>(bytes), access, Site(instruction));
        return;
    } catch (const EmulationError& error) {
        failure = error.what();
    }
    block().end_launch(failure.c_str());  // the compiler takes these calls for such that never throw
}

/// Kernels have no atomic operations; the code of the host in their files has, in the standard library.
template <typename T>
T* plain(volatile T* address) {
    return const_cast<T*>(address);
}

}  // namespace

}  // namespace tessera::simt::emulated

using tessera::simt::emulated::Access;
using tessera::simt::emulated::on_access;
using tessera::simt::emulated::plain;

// NOLINTBEGIN(bugprone-reserved-identifier): the compiler chose the names
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** /*address*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*address*/) {}

void __tsan_read1(void* address) {
    on_access(address, 1, Access::read, true, __builtin_return_address(0));
}
void __tsan_read2(void* address) {
    on_access(address, 2, Access::read, true, __builtin_return_address(0));
}
void __tsan_read4(void* address) {
    on_access(address, 4, Access::read, true, __builtin_return_address(0));
}
void __tsan_read8(void* address) {
    on_access(address, 8, Access::read, true, __builtin_return_address(0));
}
void __tsan_read16(void* address) {
    on_access(address, 16, Access::read, true, __builtin_return_address(0));
}
void __tsan_write1(void* address) {
    on_access(address, 1, Access::write, true, __builtin_return_address(0));
}
void __tsan_write2(void* address) {
    on_access(address, 2, Access::write, true, __builtin_return_address(0));
}
void __tsan_write4(void* address) {
    on_access(address, 4, Access::write, true, __builtin_return_address(0));
}
void __tsan_write8(void* address) {
    on_access(address, 8, Access::write, true, __builtin_return_address(0));
}
void __tsan_write16(void* address) {
    on_access(address, 16, Access::write, true, __builtin_return_address(0));
}
// What the compiler could not show to be aligned, and the device reads or writes in parts.
void __tsan_unaligned_read2(void* address) {
    on_access(address, 2, Access::read, false, __builtin_return_address(0));
}
void __tsan_unaligned_read4(void* address) {
    on_access(address, 4, Access::read, false, __builtin_return_address(0));
}
void __tsan_unaligned_read8(void* address) {
    on_access(address, 8, Access::read, false, __builtin_return_address(0));
}
void __tsan_unaligned_read16(void* address) {
    on_access(address, 16, Access::read, false, __builtin_return_address(0));
}
void __tsan_unaligned_write2(void* address) {
    on_access(address, 2, Access::write, false, __builtin_return_address(0));
}
void __tsan_unaligned_write4(void* address) {
    on_access(address, 4, Access::write, false, __builtin_return_address(0));
}
void __tsan_unaligned_write8(void* address) {
    on_access(address, 8, Access::write, false, __builtin_return_address(0));
}
void __tsan_unaligned_write16(void* address) {
    on_access(address, 16, Access::write, false, __builtin_return_address(0));
}
void __tsan_read_range(void* address, std::size_t bytes) {
    on_access(address, bytes, Access::read, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
    on_access(address, bytes, Access::write, false, __builtin_return_address(0));
}

std::uint8_t __tsan_atomic8_load(const volatile std::uint8_t* address, int /*order*/) {
    return __atomic_load_n(plain(address), __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_load(const volatile std::uint32_t* address, int /*order*/) {
    return __atomic_load_n(plain(address), __ATOMIC_SEQ_CST);
}
std::uint64_t __tsan_atomic64_load(const volatile std::uint64_t* address, int /*order*/) {
    return __atomic_load_n(plain(address), __ATOMIC_SEQ_CST);
}
void __tsan_atomic8_store(volatile std::uint8_t* address, std::uint8_t value, int /*order*/) {
    __atomic_store_n(plain(address), value, __ATOMIC_SEQ_CST);
}
void __tsan_atomic32_store(volatile std::uint32_t* address, std::uint32_t value, int /*order*/) {
    __atomic_store_n(plain(address), value, __ATOMIC_SEQ_CST);
}
void __tsan_atomic64_store(volatile std::uint64_t* address, std::uint64_t value, int /*order*/) {
    __atomic_store_n(plain(address), value, __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_fetch_add(volatile std::uint32_t* address, std::uint32_t value, int /*order*/) {
    return __atomic_fetch_add(plain(address), value, __ATOMIC_SEQ_CST);
}
std::uint64_t __tsan_atomic64_fetch_add(volatile std::uint64_t* address, std::uint64_t value, int /*order*/) {
    return __atomic_fetch_add(plain(address), value, __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_fetch_sub(volatile std::uint32_t* address, std::uint32_t value, int /*order*/) {
    return __atomic_fetch_sub(plain(address), value, __ATOMIC_SEQ_CST);
}
std::uint64_t __tsan_atomic64_fetch_sub(volatile std::uint64_t* address, std::uint64_t value, int /*order*/) {
    return __atomic_fetch_sub(plain(address), value, __ATOMIC_SEQ_CST);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
