#include "test/simt/fiber.h"

#include <sys/mman.h>

#include "core/base/error.h"
#include "test/simt/address_range.h"
#include "test/simt/poison.h"

#ifdef __x86_64__
// The control words of floating point are the same in all fibers. Returns by a jump: the processor would foresee the
// return to the stack that was left.
asm(R"(
    .text
    .p2align 4
    .globl tessera_switch_stack
    .type tessera_switch_stack, @function
tessera_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size tessera_switch_stack, .-tessera_switch_stack
)");
#endif

namespace tessera::simt::emulated {

void prepare(Fiber& fiber, std::byte* low, std::size_t bytes, void (*entry)()) {
    fiber.low = low;
    fiber.bytes = bytes;
    fiber.fake_stack = nullptr;
    unpoison(low, static_cast<std::int64_t>(bytes));  // whose last user left without returning from its functions
#ifdef __x86_64__
    constexpr int kSaved = 6;
    // Above the saved registers the address of `entry`, and a null where it would return to, which ends the stack: a
    // multiple of 16, as before a call.
    auto* top = reinterpret_cast<void**>(low + bytes) - 1;
    top[0] = nullptr;
    top[-1] = reinterpret_cast<void*>(entry);
    for (int i = 2; i < 2 + kSaved; ++i) {
        top[-i] = nullptr;
    }
    fiber.stack_pointer = top - 1 - kSaved;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = low;
    fiber.context.uc_stack.ss_size = bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#endif
}

void begin_fiber([[maybe_unused]] Fiber* starter) {
#ifdef __SANITIZE_ADDRESS__
    const void* low = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &low, &bytes);
    if (starter != nullptr) {
        starter->low = const_cast<std::byte*>(static_cast<const std::byte*>(low));
        starter->bytes = bytes;
    }
#endif
}

FiberStacks::FiberStacks(int count) : count_(count) {
    memory_ = reserve_addresses(static_cast<std::size_t>(count) * kSlot);
    for (int i = 0; i < count; ++i) {
        if (mprotect(memory_ + static_cast<std::size_t>(i) * kSlot, kGuard, PROT_NONE) != 0) {
            fail(ExitCode::internal, "no guard pages for {} stacks of emulated threads", count);
        }
    }
}

int FiberStacks::owner(const void* address) const {
    const std::int64_t offset = static_cast<const std::byte*>(address) - memory_;
    const std::int64_t index = offset / static_cast<std::int64_t>(kSlot);
    return offset >= 0 && index < count_ ? static_cast<int>(index) : -1;
}

int FiberStacks::overflown(const void* address) const {
    const int index = owner(address);
    return index >= 0 && static_cast<const std::byte*>(address) < low(index) ? index : -1;
}

}  // namespace tessera::simt::emulated
