#include "apps/free_memory.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "test/io/temporary_directory.h"

using namespace tessera;

namespace {

/// A tree with the files of /proc and /sys that matter.
struct System {
    System() { write("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable:    4000 kB\n"); }
    void write(const std::string& name, const std::string& text) const {
        const std::filesystem::path path = directory.path(name);
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    [[nodiscard]] FreeMemory free(std::int64_t ranks) const { return free_memory(ranks, directory.path("")); }
    TemporaryDirectory directory;
};

}  // namespace

TEST_CASE("what the node has available is shared among its ranks") {
    const System system;
    CHECK(system.free(1) == FreeMemory{4000 * 1024, "available on this node"});
    CHECK(system.free(4) == FreeMemory{1000 * 1024, "available on this node, shared by 4 ranks"});
}

TEST_CASE("a control group of version 2, or one above it, bounds it; pages of files do not count as taken") {
    const System system;
    system.write("proc/self/cgroup", "0::/job/step\n");
    system.write("sys/fs/cgroup/job/step/memory.max", "max\n");
    system.write("sys/fs/cgroup/job/step/memory.current", "500\n");
    system.write("sys/fs/cgroup/job/memory.max", "100000\n");
    system.write("sys/fs/cgroup/job/memory.current", "70000\n");
    system.write("sys/fs/cgroup/job/memory.stat", "anon 20000\ninactive_file 30000\nactive_file 10000\n");
    CHECK(system.free(2) == FreeMemory{(100000 - 30000) / 2, "left in the control group /job, shared by 2 ranks"});
    system.write("sys/fs/cgroup/job/memory.current", "170000\n");
    CHECK(system.free(1).bytes == 0);
}

TEST_CASE("a control group of version 1 bounds it") {
    const System system;
    system.write("proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n");
    system.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "100000\n");
    system.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "60000\n");
    system.write("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 5000\n");
    system.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    system.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
    CHECK(system.free(1) == FreeMemory{45000, "left in the control group /job"});
}

TEST_CASE("this machine has memory") {
    CHECK(free_memory(1).bytes > 0);
}
