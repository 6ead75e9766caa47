#include "apps/stop_signals.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace tessera {
namespace {

constexpr std::int64_t kUsr1 = 1;
constexpr std::int64_t kTerm = std::int64_t{1} << 32;  // beyond any number of ranks that could have had SIGUSR1

// A handler knows nothing but what is global, and any thread of the process may run it.
std::atomic<std::int64_t> received_signals{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler must not wait for a lock");

extern "C" void note_signal(int signal) {
    // The first one stays: it is the one that the message names.
    std::int64_t none = 0;
    received_signals.compare_exchange_strong(none, signal == SIGUSR1 ? kUsr1 : kTerm);
}

void install(int signal, const struct sigaction& action, struct sigaction* before) {
    if (sigaction(signal, &action, before) != 0) {
        fail(ExitCode::internal, "the handler of signal {} cannot be installed: {}", signal, std::strerror(errno));
    }
}

}  // namespace

StopSignals::StopSignals() {
    received_signals = 0;
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;  // reads and writes go on as if nothing had happened
    sigemptyset(&action.sa_mask);
    install(SIGUSR1, action, &usr1_before_);
    install(SIGTERM, action, &term_before_);
}

StopSignals::~StopSignals() {
    if (received_signals == 0) {
        sigaction(SIGUSR1, &usr1_before_, nullptr);
        sigaction(SIGTERM, &term_before_, nullptr);
    }
}

void StopSignals::let_terminate() {
    static_cast<void>(std::signal(SIGTERM, SIG_DFL));
}

std::int64_t StopSignals::received() const {
    return received_signals;
}

std::string StopSignals::name_of(std::int64_t sum) {
    return sum >= kTerm ? "SIGTERM" : "SIGUSR1";
}

}  // namespace tessera
