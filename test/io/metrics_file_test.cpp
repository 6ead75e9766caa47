#include "io/metrics_file.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/io/crash.h"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Three records; their ends (behind the brace) are at `ends`.
struct Sample {
    std::string text;
    std::vector<std::size_t> ends;
};

Sample sample() {
    Sample made;
    for (const char* line : {R"({"step": 1, "loss": 5.25, "note": "a\nb"})", R"({"step": 2, "loss": 1e-05})",
                             R"({"step": 10,"loss":4.0})"}) {
        made.text += line;
        made.ends.push_back(made.text.size());
        made.text += "\n";
    }
    return made;
}

}  // namespace

TEST_CASE("a record keeps its order and its numbers") {
    MetricsRecord record(3);
    record.add("tokens", std::int64_t{1} << 60);
    record.add("loss", 0.1);
    record.add("whole", 2.0);
    record.add("small", 1e-5);
    record.add("large", 1e300);
    record.add("nan", std::nan(""));
    record.add("inf", -std::numeric_limits<double>::infinity());
    record.add("skipped", true);
    record.add("text", "a\"b\n\xff");
    CHECK(record.line() ==
          "{\"step\": 3, \"tokens\": 1152921504606846976, \"loss\": 0.1, \"whole\": 2.0, \"small\": 1e-05, "
          "\"large\": 1e+300, \"nan\": null, \"inf\": null, \"skipped\": true, \"text\": \"a\\\"b\\n\xef\xbf\xbd\"}");
}

TEST_CASE("every double reads back as itself") {
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; ++i) {
        const auto value = std::bit_cast<double>(random());
        if (!std::isfinite(value)) {
            continue;
        }
        MetricsRecord record(1);
        record.add("x", value);
        const double back = nlohmann::json::parse(record.line())["x"].get<double>();
        REQUIRE(std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(value));
    }
}

TEST_CASE("lines are appended and survive the end of the writer") {
    const TemporaryDirectory directory;
    const std::string path = directory / "metrics.jsonl";
    Killed killed{};
    for (int delay = 20; killed.last_reported <= 0; delay *= 2) {  // longer where the machine is busy
        REQUIRE(delay < 20000);
        killed = run_and_kill(std::chrono::milliseconds(delay), [&](const auto& report) {
            MetricsFile file(path, 0);
            for (std::int64_t step = 1;; ++step) {
                file.append(MetricsRecord(step));
                report(step);
            }
        });
    }
    std::int64_t last = 0;
    bool in_order = true;
    read_metrics(path, [&](std::int64_t step, std::string_view line) {
        in_order &= step == last + 1 && line == "{\"step\": " + std::to_string(step) + "}";
        last = step;
    });
    CHECK(in_order);
    CHECK(last >= killed.last_reported);
    MetricsFile(path, killed.last_reported).sync();
    last = 0;
    read_metrics(path, [&](std::int64_t step, std::string_view) { last = step; });
    CHECK(last == killed.last_reported);
}

TEST_CASE("later records go, the others stay byte for byte") {
    const TemporaryDirectory directory;
    const std::string path = directory / "metrics.jsonl";
    const Sample all = sample();
    const auto [keep, lines] = GENERATE(table<std::int64_t, std::size_t>({{0, 0}, {1, 1}, {2, 2}, {9, 2}, {10, 3}}));
    write_file(path, all.text);
    const auto before = std::filesystem::last_write_time(path);
    MetricsFile file(path, keep);
    CHECK(file.warnings().empty());
    const std::string kept = lines == 0 ? "" : all.text.substr(0, all.ends[lines - 1] + 1);
    CHECK(contents(path) == kept);
    CHECK((lines < 3 || std::filesystem::last_write_time(path) == before));
    MetricsRecord record(11);
    record.add("loss", 3.5);
    file.append(record);
    CHECK(contents(path) == kept + "{\"step\": 11, \"loss\": 3.5}\n");
    CHECK_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_CASE("a file torn at any byte loses only the record that was torn") {
    const TemporaryDirectory directory;
    const std::string path = directory / "metrics.jsonl";
    const Sample all = sample();
    for (std::size_t size = 0; size <= all.text.size(); ++size) {
        write_file(path, all.text.substr(0, size));
        const auto whole =
            std::count_if(all.ends.begin(), all.ends.end(), [&](std::size_t end) { return end <= size; });
        const std::string expected =
            whole == 0 ? "" : all.text.substr(0, all.ends[static_cast<std::size_t>(whole) - 1] + 1);
        const MetricsFile file(path, 1000);
        CHECK(file.warnings().empty());
        CHECK(contents(path) == expected);
    }
}

TEST_CASE("lines that are no records are removed and named") {
    const TemporaryDirectory directory;
    const std::string path = directory / "metrics.jsonl";
    write_file(path, "{\"step\": 1}\nnonsense\n[1]\n{\"step\": \"2\"}\n" + std::string(3 << 20, 'x') +
                         "\n{\"step\": 3}\n" + std::string(100, '\0'));
    const MetricsFile file(path, 1000);
    CHECK(contents(path) == "{\"step\": 1}\n{\"step\": 3}\n");
    REQUIRE(file.warnings().size() == 4);
    CHECK_THAT(file.warnings()[0], Catch::Contains("line 2"));
    CHECK_THROWS_AS(read_metrics(directory / "none", [](std::int64_t, std::string_view) {}), Error);
}

TEST_CASE("a full disk is reported, and the old records stay") {
    const SmallDisk disk(64 << 10);
    if (!disk.mounted()) {
        WARN("skipped: this process may not mount a file system");
        return;
    }
    const std::string path = disk.path() + "/metrics.jsonl";
    MetricsFile file(path, 0);
    std::int64_t written = 0;
    try {
        for (std::int64_t step = 1; step < 100000; ++step) {
            file.append(MetricsRecord(step));
            written = step;
        }
        FAIL("more was written than fits");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::cannot_write);
        CHECK_THAT(error.what(), Catch::Contains("No space left") && Catch::Contains(path));
    }
    std::int64_t last = 0;
    read_metrics(path, [&](std::int64_t step, std::string_view) { last = step; });
    CHECK(last == written);
}
