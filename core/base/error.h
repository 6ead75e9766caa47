// Errors are exceptions that say what is wrong, where, and what to do. Each carries the exit code of the process.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

/// Exit codes of the program (docs/architecture.md). The first eleven follow sysexits.h where it has one.
enum class ExitCode : int {
    ok = 0,
    usage = 64,          // command line or job file
    bad_data = 65,       // a model, token or checkpoint file that is not what it should be
    missing_input = 66,  // a file or directory that is not there
    internal = 70,
    cannot_write = 73,
    stopped_early = 75,  // with a valid checkpoint: run again
    disagree = 76,       // ranks or devices disagree
    numerical = 77,
    hang = 124,
};

class Error : public std::runtime_error {
  public:
    Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    [[nodiscard]] ExitCode code() const noexcept { return code_; }

  private:
    ExitCode code_;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tessera
