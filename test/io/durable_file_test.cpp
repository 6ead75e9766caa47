#include "io/durable_file.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/io/crash.h"
#include "test/io/expect_error.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("the checksum is xxh3-64") {
    // Values that the Python binding of the reference implementation gives for the same bytes.
    CHECK(xxh3_hex("") == "2d06800538d394c2");
    CHECK(xxh3_hex("The tile is the mosaic's letter.\n") == "c62a5fb5e9cadaf8");
    std::string bytes(100000, '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<char>(i * 7 % 251);
    }
    CHECK(xxh3_hex(bytes) == "17a701075a95b432");
    Xxh3 pieces;
    for (std::size_t at = 0, size = 1; at < bytes.size(); at += size, size = size * 2 + 1) {
        size = std::min(size, bytes.size() - at);
        pieces.update(bytes.data() + at, static_cast<std::int64_t>(size));
    }
    CHECK(pieces.hex() == xxh3_hex(bytes));
}

TEST_CASE("a durable file holds what was written, counts and digests it") {
    const TemporaryDirectory directory;
    DurableFile file(directory / "a", Checksum::xxh3);
    file.write("one ");
    file.write("two", 3);
    file.write("", 0);
    file.close();
    CHECK(file.bytes() == 7);
    CHECK(contents(directory / "a") == "one two");
    CHECK(file.checksum() == xxh3_hex("one two"));
    CHECK_THROWS_AS(file.write("more"), Error);
}

TEST_CASE("a file that is not closed is removed") {
    const TemporaryDirectory directory;
    {
        DurableFile file(directory / "a");
        file.write("half");
    }
    CHECK_FALSE(std::filesystem::exists(directory / "a"));
}

TEST_CASE("an atomic write leaves the old text or the new one, whenever the writer dies") {
    const TemporaryDirectory directory;
    const std::string path = directory / "state";
    const auto text_of = [](std::int64_t number) {
        std::string text;
        for (int i = 0; i < 2000; ++i) {
            text += std::to_string(number) + "\n";
        }
        return text;
    };
    write_file_atomically(path, text_of(0));
    for (int round = 0; round < 40; ++round) {
        const Killed killed =
            run_and_kill(std::chrono::microseconds(500 + 731 * round % 9000), [&](const auto& report) {
                for (std::int64_t number = 1;; ++number) {
                    write_file_atomically(path, text_of(number));
                    report(number);
                }
            });
        REQUIRE_FALSE(killed.finished);
        const std::string text = contents(path);
        const std::int64_t number = std::stoll(text);
        CHECK(text == text_of(number));
        // What was reported in this round must be there; one more may be.
        if (killed.last_reported >= 0) {
            CHECK((number == killed.last_reported || number == killed.last_reported + 1));
        }
    }
}

TEST_CASE("errors name the path, the reason and what to do") {
    const TemporaryDirectory directory;
    Caught error = caught([&] { DurableFile file(directory / "no/such/a"); });
    CHECK(error.code == ExitCode::cannot_write);
    CHECK_THAT(error.message, Catch::Contains(directory / "no/such/a") && Catch::Contains("No such file"));
    write_file(directory / "file", "");
    error = caught([&] { make_directories(directory / "file/below"); });
    CHECK(error.code == ExitCode::cannot_write);
    error = caught([&] { (void)read_text_file(directory / "none", 10); });
    CHECK(error.code == ExitCode::missing_input);
    write_file(directory / "long", "0123456789a");
    error = caught([&] { (void)read_text_file(directory / "long", 10); });
    CHECK(error.code == ExitCode::bad_data);
    CHECK(read_text_file(directory / "long", 11) == "0123456789a");
    error = caught([&] { (void)read_text_file(directory.path(), 10); });
    CHECK(error.code == ExitCode::bad_data);
}

TEST_CASE("a full disk is reported and leaves no half-written file") {
    const SmallDisk disk(256 << 10);
    if (!disk.mounted()) {
        WARN("skipped: this process may not mount a file system");
        return;
    }
    const std::string path = disk.path() + "/a";
    write_file(path, "old");
    const std::string much(1 << 20, 'x');
    const Caught error = caught([&] { write_file_atomically(path, much); });
    CHECK(error.code == ExitCode::cannot_write);
    CHECK_THAT(error.message,
               Catch::Contains(path) && Catch::Contains("No space left") && Catch::Contains("free some"));
    CHECK(contents(path) == "old");
    CHECK_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_CASE("a read-only file system is reported") {
    const SmallDisk disk(256 << 10);
    if (!disk.mounted() || !disk.make_read_only()) {
        WARN("skipped: this process may not mount a file system");
        return;
    }
    const Caught error = caught([&] { write_file_atomically(disk.path() + "/a", "x"); });
    CHECK(error.code == ExitCode::cannot_write);
    CHECK_THAT(error.message, Catch::Contains("Read-only") && Catch::Contains("another place"));
    CHECK(caught([&] { make_directories(disk.path() + "/d"); }).code == ExitCode::cannot_write);
}
