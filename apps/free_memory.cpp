#include "apps/free_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "core/base/error.h"

namespace tessera {
namespace {

constexpr const char* kOwnStatus = "/proc/self/status";     // sizes in kB
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;  // beyond this a limit is none

/// The number behind `name` in a file of lines "name number ...", or in its only line where `name` is empty.
std::optional<std::int64_t> number_in(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string word;
        std::int64_t number = 0;
        if (!name.empty() && !(words >> word && word == name)) {
            continue;
        }
        return words >> number && number >= 0 ? std::optional(number) : std::nullopt;
    }
    return std::nullopt;
}

/// What is left below the limit of one control group.
std::optional<std::int64_t> left_in_group(const std::string& directory, bool second_version) {
    const auto limit = number_in(directory + (second_version ? "/memory.max" : "/memory.limit_in_bytes"), "");
    const auto taken = number_in(directory + (second_version ? "/memory.current" : "/memory.usage_in_bytes"), "");
    if (!limit || !taken || *limit >= kUnlimited) {
        return std::nullopt;
    }
    std::int64_t files = 0;
    for (const char* kind : {"inactive_file", "active_file"}) {
        files += number_in(directory + "/memory.stat", std::string(second_version ? "" : "total_") + kind).value_or(0);
    }
    return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *taken - files));
}

}  // namespace

std::int64_t resident_bytes() {
    return (number_in(kOwnStatus, "RssAnon:").value_or(0) + number_in(kOwnStatus, "RssShmem:").value_or(0)) * 1024;
}

FreeMemory free_memory(std::int64_t ranks, const std::string& root) {
    FreeMemory least{std::numeric_limits<std::int64_t>::max(), "no limit is known"};
    const auto consider = [&](std::optional<std::int64_t> bytes, std::int64_t sharers, const std::string& source) {
        if (bytes && *bytes / sharers < least.bytes) {
            least = {*bytes / sharers, sharers > 1 ? fmt::format("{}, shared by {} ranks", source, sharers) : source};
        }
    };
    if (const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:")) {
        consider(*kilobytes * 1024, ranks, "available on this node");
    }
    // Lines "0::/path" (version 2) or "4:memory:/path" (version 1). Where a container hides the path, its root holds.
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const bool second_version = line.starts_with("0::");
        if (!second_version && line.find(":memory:") == std::string::npos) {
            continue;
        }
        const std::string mount = root + (second_version ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
        std::filesystem::path path = line.substr(line.find(':', line.find(':') + 1) + 1);
        while (true) {
            consider(left_in_group(mount + path.string(), second_version), ranks,
                     fmt::format("left in the control group {}", path.string()));
            if (!path.has_relative_path()) {
                break;
            }
            path = path.parent_path();
        }
    }
    const auto own_limit = [&](auto resource, const char* used, const char* source) {
        rlimit limit{};
        if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
            limit.rlim_cur < static_cast<rlim_t>(kUnlimited)) {
            const std::int64_t taken = number_in(kOwnStatus, used).value_or(0) * 1024;
            consider(std::max<std::int64_t>(0, static_cast<std::int64_t>(limit.rlim_cur) - taken), 1, source);
        }
    };
    own_limit(RLIMIT_AS, "VmSize:", "left of this process's address space (ulimit -v)");
    own_limit(RLIMIT_DATA, "VmData:", "left of this process's data (ulimit -d)");
    return least;
}

FreeMemory least_of_all(const FreeMemory& own, const Communicator& communicator) {
    FreeMemory least = own;
    for (const std::string& text : communicator.all_gather(fmt::format("{} {}", own.bytes, own.source))) {
        const std::int64_t bytes = std::stoll(text);
        if (bytes < least.bytes) {
            least = {bytes, text.substr(text.find(' ') + 1)};
        }
    }
    return least;
}

}  // namespace tessera
