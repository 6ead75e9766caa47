#include "io/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/base/error.h"

namespace tessera {

namespace {

using nlohmann::json;

constexpr std::int64_t kLongestOwner = 64 << 10;

/// What identifies a process for good: its number is used again, its number and start on one boot of one host are not.
struct Process {
    std::string host;
    std::string boot;       // id of this boot of the host
    std::string container;  // process numbers mean something within one namespace only
    std::int64_t id = 0;
    std::string start;  // clock ticks since boot
};

/// The first line of a file of /proc, which says that it has no bytes; empty where it cannot be read.
std::string first_line(const std::string& path) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 4096> buffer{};
    const ssize_t count = file.is_open() ? ::read(file.get(), buffer.data(), buffer.size()) : 0;
    const std::string text(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text.substr(0, text.find('\n'));
}

/// When a process started; empty where there is none of that number.
std::string start_of(std::int64_t id) {
    const std::string text = first_line(fmt::format("/proc/{}/stat", id));
    // The name of the program may hold spaces and brackets; the 22nd field is the 20th after the last bracket.
    std::size_t at = text.rfind(')');
    for (int field = 2; field < 22 && at != std::string::npos; ++field) {
        at = text.find(' ', at + 1);
    }
    if (at == std::string::npos) {
        return "";
    }
    return text.substr(at + 1, text.find(' ', at + 1) - at - 1);
}

std::string pid_namespace() {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
}

Process this_process() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const auto id = static_cast<std::int64_t>(::getpid());
    return {host.data(), first_line("/proc/sys/kernel/random/boot_id"), pid_namespace(), id, start_of(id)};
}

std::string describe(const Process& process, const std::string& job_name) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 32> since{};
    std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
    const json owner = {{"job", job_name},         {"host", process.host}, {"process", process.id},
                        {"since", since.data()},   {"boot", process.boot}, {"container", process.container},
                        {"started", process.start}};
    return owner.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string text_of(const json& owner, const char* key) {
    const auto value = owner.is_object() ? owner.find(key) : owner.end();
    return owner.is_object() && value != owner.end() && value->is_string() ? value->get<std::string>() : "";
}

std::int64_t process_of(const json& owner) {
    const auto value = owner.is_object() ? owner.find("process") : owner.end();
    return owner.is_object() && value != owner.end() && value->is_number_integer() ? value->get<std::int64_t>() : 0;
}

json read_owner(const std::string& path) {
    try {
        return json::parse(read_text_file(path, kLongestOwner), nullptr, false);
    } catch (const Error&) {
        return nullptr;
    }
}

enum class Life : std::uint8_t { alive, dead, unknown };

Life life_of(const json& owner) {
    const Process here = this_process();
    if (text_of(owner, "host") != here.host) {
        return Life::unknown;
    }
    if (text_of(owner, "boot") != here.boot) {
        return Life::dead;
    }
    if (text_of(owner, "container") != here.container) {
        return Life::unknown;
    }
    const std::string start = start_of(process_of(owner));
    return !start.empty() && start == text_of(owner, "started") ? Life::alive : Life::dead;
}

[[noreturn]] void refuse(const std::string& directory, const json& owner, const std::string& advice) {
    if (!owner.is_object()) {
        fail(ExitCode::cannot_write, "another run is using the output directory {}; {}", directory, advice);
    }
    fail(ExitCode::cannot_write,
         "another run is using the output directory {}: job {} on host {}, process {}, since {}; {}", directory,
         text_of(owner, "job"), text_of(owner, "host"), process_of(owner), text_of(owner, "since"), advice);
}

constexpr const char* kWaitOrMove = "wait for it, stop it, or give this run another output_dir";

/// Who holds the system's lock. A run that has just taken it may not have put its name in yet.
json owner_of_held_lock(const std::string& path) {
    json owner;
    for (int attempt = 0; attempt < 10; ++attempt) {
        owner = read_owner(path);
        if (owner.is_object() && life_of(owner) != Life::dead) {
            return owner;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return nullptr;
}

void put_text(int file, const std::string& text, const std::string& path) {
    if (::ftruncate(file, 0) != 0 || ::lseek(file, 0, SEEK_SET) != 0) {
        fail_to_write("write to", path, errno);
    }
    write_all(file, text.data(), static_cast<std::int64_t>(text.size()), path);
}

}  // namespace

OutputLock::OutputLock(const std::string& directory, const std::string& job_name, LockMethod method) {
    const std::string path = directory + "/.lock";
    const std::string owner = describe(this_process(), job_name);
    if (method == LockMethod::owner_file) {
        claim_owner_file(directory, owner);
        return;
    }
    file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file_.is_open()) {
        fail_to_write("create", path, errno);
    }
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
        switch (errno) {
            case EINTR:
                continue;
            case EWOULDBLOCK:
                refuse(directory, owner_of_held_lock(path), kWaitOrMove);
            case ENOSYS:
            case EOPNOTSUPP:
            case EINVAL:
            case ENOLCK:
                file_ = FileDescriptor();
                claim_owner_file(directory, owner);
                return;
            default:
                fail_to_write("lock", path, errno);
        }
    }
    put_text(file_.get(), owner, path);
}

void OutputLock::claim_owner_file(const std::string& directory, const std::string& owner) {
    const std::string path = directory + "/.lock.owner";
    const std::string own = fmt::format("{}.{}.{}", path, this_process().host, this_process().id);
    // Written under a name of its own and linked: the file appears with its contents, and for one process only.
    for (int attempt = 0; attempt < 10; ++attempt) {
        {
            DurableFile file(own);
            file.write(owner);
            file.close();
        }
        const int linked = ::link(own.c_str(), path.c_str());
        const int error = errno;
        ::unlink(own.c_str());
        if (linked == 0) {
            owner_file_ = path;
            return;
        }
        if (error != EEXIST) {
            fail_to_write("create", path, error);
        }
        const json other = read_owner(path);
        const Life life = life_of(other);
        if (life == Life::alive) {
            refuse(directory, other, kWaitOrMove);
        }
        if (life == Life::unknown) {
            refuse(directory, other, fmt::format("if that run is gone, remove {}", path));
        }
        // Of several that find the same dead owner, one gets the rename; who got a newcomer's file by it gives it back.
        if (::rename(path.c_str(), own.c_str()) == 0) {
            if (read_owner(own) != other) {
                (void)!::link(own.c_str(), path.c_str());
            }
            ::unlink(own.c_str());
        }
    }
    refuse(directory, nullptr, kWaitOrMove);
}

OutputLock::~OutputLock() {
    if (!owner_file_.empty()) {
        ::unlink(owner_file_.c_str());
    } else if (file_.is_open()) {
        // The name must not outlive the hold on it.
        (void)!::ftruncate(file_.get(), 0);
    }
}

}  // namespace tessera
