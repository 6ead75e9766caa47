// Fibers: stacks of their own between which one OS thread switches.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __x86_64__
/// Saves what a called function must preserve on the running stack, whose pointer goes to `*from`, and goes on where
/// the stack `to` was left.
extern "C" void tessera_switch_stack(void** from, void* to);
#else
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera::simt::emulated {

/// The place where a stack of execution stands. A fiber that is the OS thread's own needs no preparing.
struct Fiber {
    std::byte* low = nullptr;  // of its stack
    std::size_t bytes = 0;
    void* fake_stack = nullptr;  // of the address sanitizer
#ifdef __x86_64__
    void* stack_pointer = nullptr;
#else
    ucontext_t context{};
#endif
};

/// Makes `fiber` begin in `entry`, which must never return, on the stack [low, low + bytes).
void prepare(Fiber& fiber, std::byte* low, std::size_t bytes, void (*entry)());
/// To be called first in `entry`. `starter`: the fiber of the OS thread where that switched here, else null.
void begin_fiber(Fiber* starter);

/// Stacks of equal size, each behind a guard page, all in one mapping, kept until the process ends.
class FiberStacks {
  public:
    explicit FiberStacks(int count);
    /// The stack of number `index`. Its top is shifted, so that equal frames do not share one set of the cache.
    [[nodiscard]] std::byte* low(int index) const { return memory_ + static_cast<std::size_t>(index) * kSlot + kGuard; }
    [[nodiscard]] static std::size_t bytes(int index) { return kBytes - static_cast<std::size_t>(index % 64) * 64; }
    /// The number of the stack whose guard page holds `address`, or -1.
    [[nodiscard]] int overflown(const void* address) const;
    /// The number of the stack that holds `address`, or -1.
    [[nodiscard]] int owner(const void* address) const;

  private:
    static constexpr std::size_t kGuard = 4096;
    static constexpr std::size_t kBytes = 256 << 10;
    static constexpr std::size_t kSlot = kGuard + kBytes;
    std::byte* memory_;
    int count_;
};

/// Leaves the running fiber `from`, to be taken up again by a switch back to it unless it `ends`.
inline void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool ends = false) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.low, to.bytes);
#endif
#ifdef __x86_64__
    tessera_switch_stack(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.context, &to.context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

}  // namespace tessera::simt::emulated
