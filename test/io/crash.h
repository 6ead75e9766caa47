// What the tests of written files share: a directory of their own, a disk that is small or read-only, a writer that is
// killed in the midst of its work.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace tessera::test {

/// A new directory, removed with all it holds at the end of the scope.
class TemporaryDirectory {
  public:
    TemporaryDirectory() {
        std::string name = (std::filesystem::temp_directory_path() / "tessera-test-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            throw std::runtime_error("no temporary directory");
        }
        path_ = name;
    }
    TemporaryDirectory(TemporaryDirectory&&) = delete;
    ~TemporaryDirectory() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
    }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

  private:
    std::string path_;
};

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
    [[nodiscard]] const std::string& path() const { return directory_.path(); }
    [[nodiscard]] bool make_read_only() const {
        return ::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
    }

  private:
    TemporaryDirectory directory_;
    bool mounted_ = false;
};

inline std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void put(const std::string& path, std::string_view text) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
}

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
