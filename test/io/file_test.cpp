#include "io/file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "test/io/expect_error.h"
#include "test/io/temporary_directory.h"

using namespace tessera;

TEST_CASE("bytes are read from anywhere") {
    const TemporaryDirectory directory;
    const ReadOnlyFile file(directory.write("digits", "0123456789"));
    CHECK(file.size() == 10);
    std::string text(4, ' ');
    file.read(3, text.data(), 4);
    CHECK(text == "3456");
    file.read(6, text.data(), 4);
    CHECK(text == "6789");
    file.read(10, text.data(), 0);
}

TEST_CASE("a read beyond the end says where the file ends") {
    const TemporaryDirectory directory;
    const ReadOnlyFile file(directory.write("short", "0123456789"));
    std::string text(20, ' ');
    expect_error(ExitCode::bad_data, {"short", "ends at byte 10", "truncated"}, [&] { file.read(8, text.data(), 5); });
    expect_error(ExitCode::bad_data, {"short", "truncated"}, [&] { file.read(1000, text.data(), 1); });
}

TEST_CASE("what is no file is refused without waiting") {
    const TemporaryDirectory directory;
    expect_error(ExitCode::missing_input, {"absent", "No such file"}, [&] { ReadOnlyFile(directory.path("absent")); });
    expect_error(ExitCode::bad_data, {"a directory, not a file"}, [&] { ReadOnlyFile(directory.path()); });
    REQUIRE(::mkfifo(directory.path("pipe").c_str(), 0600) == 0);
    expect_error(ExitCode::bad_data, {"pipe", "device or pipe"}, [&] { ReadOnlyFile(directory.path("pipe")); });
    directory.write("file", "");
    expect_error(ExitCode::missing_input, {"file/below"}, [&] { ReadOnlyFile(directory.path("file/below")); });
}
