#include "test/simt/faults.h"

#include <vector>

#include "test/simt/block.h"
#include "test/simt/memory_checks.h"

namespace tessera::simt::emulated {

#ifndef __SANITIZE_ADDRESS__
namespace {

struct sigaction handler_before;

void handle(int signal, siginfo_t* info, void* /*context*/) {
    if (current_thread == nullptr) {
        sigaction(signal, &handler_before, nullptr);  // the access is tried again, and goes there
        return;
    }
    watched_thread = nullptr;
    std::string what;
    const int overflown = block().stacks().overflown(info->si_addr);
    // Leaves the handler by a switch to the scheduler. The signal is not blocked meanwhile (SA_NODEFER), and what the
    // kernel interrupted is never taken up again.
    if (overflown >= 0) {
        what = "its local variables overflow the stack of an emulated thread";
    } else {
        what = fmt::format("a fault at {}", describe_address(info->si_addr));
    }
    block().end_launch(fmt::format("{}: {}", block().describe(*current_thread), what).c_str());
}

}  // namespace
#endif

FaultReports::FaultReports() {
#ifndef __SANITIZE_ADDRESS__
    static thread_local std::vector<std::byte> stack(64 << 10);
    stack_t own{};
    own.ss_sp = stack.data();
    own.ss_size = stack.size();
    sigaltstack(&own, &stack_before_);
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before_);
    handler_before = before_;
#endif
}

FaultReports::~FaultReports() {
#ifndef __SANITIZE_ADDRESS__
    sigaction(SIGSEGV, &before_, nullptr);
    sigaltstack(&stack_before_, nullptr);
#endif
}

}  // namespace tessera::simt::emulated
