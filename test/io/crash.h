// What the tests of written files share: a disk that is small or read-only, a writer that is killed in the midst of its
// work.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "test/io/temporary_directory.h"

namespace tessera::test {

/// A file system in memory of so many bytes, where this process may mount one (root outside of most containers).
class SmallDisk {
  public:
    explicit SmallDisk(std::int64_t bytes) {
        const std::string options = "size=" + std::to_string(bytes);
        mounted_ = ::mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
    }
    SmallDisk(SmallDisk&&) = delete;
    ~SmallDisk() {
        if (mounted_) {
            ::umount2(directory_.path().c_str(), MNT_DETACH);
        }
    }
    [[nodiscard]] bool mounted() const { return mounted_; }
    [[nodiscard]] std::string path() const { return directory_.path(); }
    [[nodiscard]] bool make_read_only() const {
        return ::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
    }

  private:
    TemporaryDirectory directory_;
    bool mounted_ = false;
};

struct Killed {
    bool finished;               // the writer had ended by itself
    int exit_code;               // if so
    std::int64_t last_reported;  // -1: nothing
};

/// Runs `writer` in a process of its own and kills it after `delay` (never: when below 0). The writer reports numbers;
/// the last one that it reported before its end comes back.
inline Killed run_and_kill(std::chrono::microseconds delay,
                           const std::function<void(const std::function<void(std::int64_t)>& report)>& writer) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        throw std::runtime_error("no pipe");
    }
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(ends[0]);
        try {
            writer([&](std::int64_t number) {
                if (::write(ends[1], &number, sizeof number) != sizeof number) {
                    ::_exit(3);
                }
            });
        } catch (const std::exception& error) {
            std::string line = std::string("writer: ") + error.what() + "\n";
            (void)!::write(STDERR_FILENO, line.data(), line.size());
            ::_exit(2);
        }
        ::_exit(0);
    }
    ::close(ends[1]);
    if (delay.count() >= 0) {
        std::this_thread::sleep_for(delay);
        ::kill(child, SIGKILL);
    }
    Killed result{false, 0, -1};
    std::int64_t number = 0;
    while (::read(ends[0], &number, sizeof number) == sizeof number) {
        result.last_reported = number;
    }
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    result.finished = WIFEXITED(status);
    result.exit_code = result.finished ? WEXITSTATUS(status) : 0;
    return result;
}

}  // namespace tessera::test
