#include "io/output_lock.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "test/io/crash.h"

using namespace tessera;
using namespace tessera::test;
using nlohmann::json;

namespace {

std::string refusal(const std::string& directory, LockMethod method) {
    try {
        const OutputLock lock(directory, "second", method);
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::cannot_write);
        return error.what();
    }
    return "";
}

std::string owner_path(const std::string& directory, LockMethod method) {
    return directory + (method == LockMethod::automatic ? "/.lock" : "/.lock.owner");
}

}  // namespace

TEST_CASE("a second run is refused and told who holds the directory; afterwards it may") {
    const auto method = GENERATE(LockMethod::automatic, LockMethod::owner_file);
    const TemporaryDirectory directory;
    {
        const OutputLock lock(directory.path(), "first job", method);
        const json owner = json::parse(contents(owner_path(directory.path(), method)));
        CHECK(owner["job"] == "first job");
        CHECK(owner["process"] == ::getpid());
        const std::string text = refusal(directory.path(), method);
        CHECK_THAT(text, Catch::Contains("first job") && Catch::Contains(std::to_string(::getpid())) &&
                             Catch::Contains(owner["host"].get<std::string>()) && Catch::Contains("since 20") &&
                             Catch::Contains(directory.path()) && Catch::Contains("another output_dir"));
    }
    CHECK(refusal(directory.path(), method).empty());
    CHECK(refusal(directory.path(), method).empty());
}

TEST_CASE("a killed owner holds nothing") {
    const auto method = GENERATE(LockMethod::automatic, LockMethod::owner_file);
    const TemporaryDirectory directory;
    Killed killed{};
    for (int delay = 50; killed.last_reported != 1; delay *= 2) {  // longer where the machine is busy
        REQUIRE(delay < 20000);
        killed = run_and_kill(std::chrono::milliseconds(delay), [&](const auto& report) {
            const OutputLock lock(directory.path(), "dead job", method);
            report(1);
            for (;;) {
                ::pause();
            }
        });
    }
    CHECK_THAT(contents(owner_path(directory.path(), method)), Catch::Contains("dead job"));
    CHECK(refusal(directory.path(), method).empty());
}

TEST_CASE("an owner file of a process that has another's number is not believed") {
    const TemporaryDirectory directory;
    const std::string path = owner_path(directory.path(), LockMethod::owner_file);
    json owner;
    {
        const OutputLock lock(directory.path(), "job", LockMethod::owner_file);
        owner = json::parse(contents(path));
    }
    const auto taken_with = [&](const char* key, const json& value) {
        json changed = owner;
        changed[key] = value;
        write_file(path, changed.dump());
        const std::string text = refusal(directory.path(), LockMethod::owner_file);
        std::filesystem::remove(path);
        return text;
    };
    CHECK_THAT(taken_with("job", "job"), Catch::Contains("process " + std::to_string(::getpid())));
    CHECK(taken_with("started", "1").empty());      // our number, but of a process that started earlier
    CHECK(taken_with("boot", "before").empty());    // from before a reboot
    CHECK(taken_with("process", 1 << 30).empty());  // no such process
    // Another host's, or another container's, process cannot be judged from here: its user must.
    CHECK_THAT(taken_with("host", "elsewhere"), Catch::Contains("elsewhere") && Catch::Contains("remove " + path));
    CHECK_THAT(taken_with("container", "pid:[1]"), Catch::Contains("remove " + path));
    write_file(path, "nonsense");
    CHECK_THAT(refusal(directory.path(), LockMethod::owner_file), Catch::Contains("remove " + path));
}

TEST_CASE("of processes that race for a directory one gets it") {
    const auto method = GENERATE(LockMethod::automatic, LockMethod::owner_file);
    const TemporaryDirectory directory;
    const std::string counter = directory / "counter";
    constexpr int kProcesses = 4;
    constexpr int kRounds = 50;
    // Each holder creates a file that must not be there; whoever finds it there saw two holders at once.
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            int held = 0;
            while (held < kRounds) {
                try {
                    const OutputLock lock(directory.path(), "racer", method);
                    const int file = ::open(counter.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
                    if (file < 0) {
                        ::_exit(1);
                    }
                    ::close(file);
                    ::usleep(100);
                    ::unlink(counter.c_str());
                    ++held;
                } catch (const Error& error) {
                    if (error.code() != ExitCode::cannot_write) {
                        ::_exit(2);
                    }
                    ::usleep(200);
                }
            }
            ::_exit(0);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
    }
}

TEST_CASE("a directory that cannot be written to is reported") {
    const TemporaryDirectory directory;
    try {
        const OutputLock lock(directory / "none", "job");
        FAIL("locked");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::cannot_write);
        CHECK_THAT(error.what(), Catch::Contains("none/.lock"));
    }
    const SmallDisk disk(64 << 10);
    if (!disk.mounted() || !disk.make_read_only()) {
        WARN("skipped: this process may not mount a file system");
        return;
    }
    CHECK_THAT(refusal(disk.path(), LockMethod::automatic), Catch::Contains("Read-only"));
}
