#include "io/checkpoint_directory.h"

#include <xxhash.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "io/file.h"
#include "test/io/crash.h"

using namespace tessera;
using namespace tessera::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string shard_text(std::int64_t step, int rank, std::int64_t version = 0) {
    std::string text =
        "step " + std::to_string(step) + " rank " + std::to_string(rank) + " version " + std::to_string(version) + "\n";
    while (text.size() < 20000) {
        text += text;
    }
    return text;
}

void save(const std::string& root, std::int64_t step, std::int64_t version = 0) {
    CheckpointWriter writer(root, step);
    writer.begin();
    std::vector<FileRecord> files;
    for (int rank = 0; rank < 3; ++rank) {
        ShardWriter shard(writer.directory(), "rank-0000" + std::to_string(rank));
        const std::string text = shard_text(step, rank, version);
        shard.write(text.data(), 100);
        shard.write(text.data() + 100, static_cast<std::int64_t>(text.size()) - 100);
        files.push_back(shard.finish());
    }
    writer.commit({{"world_size", 3}, {"version", version}, {"rate", 0.1}}, files);
}

std::vector<std::string> entries(const std::string& root) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::optional<CheckpointInfo> newest(const std::string& root, std::size_t warned = 0) {
    std::vector<std::string> warnings;
    auto info = find_newest_checkpoint(root, warnings);
    CHECK(warnings.size() == warned);
    return info;
}

/// A manifest with a checksum that fits, whatever else is wrong with it. `body` ends before the last brace.
std::string sealed(const std::string& body) {
    return body + fmt::format(",\n \"manifest_xxh3\": \"{:016x}\"\n}}\n", XXH3_64bits(body.data(), body.size()));
}

}  // namespace

TEST_CASE("a checkpoint written by another program is read") {
    const CheckpointInfo info = open_checkpoint("data/checkpoint/step-00000007");
    CHECK(info.step == 7);
    CHECK(info.files.size() == 2);
    CHECK((*info.manifest)["world_size"] == 2);
    CHECK((*info.manifest)["rate"] == 0.1);
    verify_checkpoint(info);
    std::vector<unsigned char> bytes(100);
    const ReadOnlyFile shard(info.path + "/rank-00000");
    CHECK(shard.size() == 5000);
    shard.read(4900, bytes.data(), 100);
    for (std::size_t i = 0; i < 100; ++i) {
        CHECK(bytes[i] == (4900 + i) * 7 % 251);
    }
    CHECK_THROWS_AS(shard.read(4901, bytes.data(), 100), Error);
    CHECK_THROWS_AS(shard.read(-1, bytes.data(), 1), Error);
    CHECK_THROWS_AS(shard.read(INT64_MAX, bytes.data(), INT64_MAX), Error);
}

TEST_CASE("what is written has the documented form") {
    const TemporaryDirectory directory;
    const std::string root = directory / "run/checkpoints";
    save(root, 100);
    CHECK(entries(root) == std::vector<std::string>{"latest", "step-00000100"});
    CHECK(contents(root + "/latest") == "step-00000100\n");
    CHECK(entries(root + "/step-00000100") ==
          std::vector<std::string>{"manifest.json", "rank-00000", "rank-00001", "rank-00002"});
    const std::string text = contents(root + "/step-00000100/manifest.json");
    const json manifest = json::parse(text);
    CHECK(manifest["format"] == "tessera.checkpoint");
    CHECK(manifest["format_version"] == 1);
    CHECK(manifest["step"] == 100);
    CHECK(manifest["world_size"] == 3);
    CHECK(manifest["rate"] == 0.1);
    const std::size_t comma = text.rfind(',');
    CHECK(manifest["manifest_xxh3"] == fmt::format("{:016x}", XXH3_64bits(text.data(), comma)));
    for (int rank = 0; rank < 3; ++rank) {
        const std::string expected = shard_text(100, rank);
        const std::string name = "rank-0000" + std::to_string(rank);
        CHECK(contents(root + "/step-00000100/" + name) == expected);
        const json& file = manifest["files"][static_cast<std::size_t>(rank)];
        CHECK(file["name"] == name);
        CHECK(file["bytes"] == expected.size());
        CHECK(file["xxh3"] == fmt::format("{:016x}", XXH3_64bits(expected.data(), expected.size())));
    }
}

TEST_CASE("the newest complete checkpoint is found, damaged ones are named and passed over") {
    const TemporaryDirectory directory;
    const std::string root = directory.path();
    CHECK_FALSE(newest(root + "/none"));
    CHECK_FALSE(newest(root));
    save(root, 5);
    save(root, 10);
    save(root, 123456789);
    CHECK(newest(root)->step == 123456789);
    fs::remove(root + "/step-123456789/rank-00001");
    CHECK(newest(root, 1)->step == 10);
    fs::resize_file(root + "/step-00000010/rank-00000", 5);
    CHECK(newest(root, 2)->step == 5);
    // What only looks like a checkpoint does not count, and `latest` is for people.
    fs::create_directory(root + "/step-7");
    fs::create_directory(root + "/step-00000200.tmp");
    write_file(root + "/latest", "step-00000010\n");
    CHECK(newest(root, 2)->step == 5);
    fs::copy(root + "/step-00000005", root + "/step-00000300", fs::copy_options::recursive);
    CHECK(newest(root, 3)->step == 5);
    CHECK(open_checkpoint(root + "/step-00000300").step == 5);
}

TEST_CASE("a torn, changed or hostile manifest is refused") {
    const TemporaryDirectory directory;
    const std::string root = directory.path();
    save(root, 1);
    const std::string path = root + "/step-00000001/manifest.json";
    const std::string whole = contents(path);
    SECTION("torn at any byte") {
        for (std::size_t size = 0; size < whole.size(); ++size) {
            write_file(path, whole.substr(0, size));
            CHECK_THROWS_AS(open_checkpoint(root + "/step-00000001"), Error);
        }
        CHECK_FALSE(newest(root, 1));
    }
    SECTION("one bit changed") {
        for (std::size_t at = 0; at < whole.size(); ++at) {
            std::string text = whole;
            text[at] = static_cast<char>(text[at] ^ (1 << at % 7));
            write_file(path, text);
            CHECK_THROWS_AS(open_checkpoint(root + "/step-00000001"), Error);
        }
    }
    SECTION("lies under a fitting checksum") {
        const std::string head = R"({"format": "tessera.checkpoint", "format_version": 1, "step": 1, )";
        const auto [body, words] = GENERATE_COPY(table<std::string, std::string>({
            {head + R"("files": [], "a": 1, "a": 2)", "the key \"a\" before byte"},
            {head + R"("files": [], "b": {"a": 1, "c": [{"a": 2}], "a": 2})", "the key \"a\" before byte"},
            {head + R"("files": [], "a": )" + std::string(100000, '[') + std::string(100000, ']'), "deeper"},
            {head + R"("files": [{"name": "../x", "bytes": 1, "xxh3": "0123456789abcdef"}])", "entry 0"},
            {head + R"("files": [{"name": "manifest.json", "bytes": 1, "xxh3": "0123456789abcdef"}])", "entry 0"},
            {head + R"("files": [{"name": "x", "bytes": -1, "xxh3": "0123456789abcdef"}])", "entry 0"},
            {head + R"("files": [{"name": "x", "bytes": 18446744073709551615, "xxh3": "0123456789abcdef"}])",
             "entry 0"},
            {head + R"("files": [{"name": "x", "bytes": 1, "xxh3": "0"}])", "entry 0"},
            {head + R"("files": [3])", "entry 0"},
            {head + R"("files": {})", "array"},
            {head + R"("file": [])", "array"},
            {head + R"("files": [{"name": "x", "bytes": 1, "xxh3": "0123456789abcdef"}])", "x is missing"},
            {R"({"format": "other", "format_version": 1, "step": 1, "files": [])", "\"format\""},
            {R"({"format": "tessera.checkpoint", "format_version": 2, "step": 1, "files": [])", "format_version 2"},
            {R"({"format": "tessera.checkpoint", "format_version": 1, "step": 1.5, "files": [])", "\"step\""},
            {R"({"format": "tessera.checkpoint", "format_version": 1, "step": -1, "files": [])", "\"step\""},
            {R"(["format")", "not valid JSON"},
        }));
        write_file(path, sealed(body));
        try {
            (void)open_checkpoint(root + "/step-00000001");
            FAIL("taken: " << body.substr(0, 200));
        } catch (const Error& error) {
            CHECK(error.code() == ExitCode::bad_data);
            CHECK_THAT(error.what(), Catch::Contains(words));
        }
    }
}

TEST_CASE("an explicit path says what is wrong with it") {
    const TemporaryDirectory directory;
    CHECK_THROWS_WITH(open_checkpoint(directory / "none"), Catch::Contains("no such directory"));
    CHECK_THROWS_WITH(open_checkpoint(directory.path()), Catch::Contains("no manifest.json"));
}

TEST_CASE("a changed byte of a shard is found by its checksum") {
    const TemporaryDirectory directory;
    save(directory.path(), 3);
    const CheckpointInfo info = *newest(directory.path());
    verify_checkpoint(info);
    const std::string path = info.path + "/rank-00001";
    std::string text = contents(path);
    text[12345] = static_cast<char>(text[12345] ^ 1);
    write_file(path, text);
    verify_checkpoint_file(info, info.files[0]);
    CHECK_THROWS_WITH(verify_checkpoint(info), Catch::Contains("rank-00001") && Catch::Contains("damaged"));
}

TEST_CASE("the same step saved again replaces the first") {
    const TemporaryDirectory directory;
    save(directory.path(), 3, 1);
    write_file(directory / "step-00000003/leftover", "x");
    save(directory.path(), 3, 2);
    const CheckpointInfo info = *newest(directory.path());
    verify_checkpoint(info);
    CHECK((*info.manifest)["version"] == 2);
    CHECK(entries(directory.path()) == std::vector<std::string>{"latest", "step-00000003"});
    CHECK_FALSE(fs::exists(directory / "step-00000003/leftover"));
}

TEST_CASE("a replacement that stopped between its two renames still has the old checkpoint") {
    const TemporaryDirectory directory;
    save(directory.path(), 2);
    save(directory.path(), 3);
    fs::rename(directory / "step-00000003", directory / "step-00000003.old");
    CHECK(newest(directory.path())->path == directory / "step-00000003.old");
    prune_checkpoints(directory.path(), 1, 0, std::nullopt);
    CHECK(newest(directory.path())->step == 3);
    save(directory.path(), 3);
    prune_checkpoints(directory.path(), 1, 0, std::nullopt);
    CHECK(entries(directory.path()) == std::vector<std::string>{"latest", "step-00000003"});
}

TEST_CASE("old checkpoints are pruned, what must stay stays") {
    const TemporaryDirectory directory;
    const std::string root = directory.path();
    for (std::int64_t step = 1; step <= 8; ++step) {
        save(root, step);
    }
    fs::create_directory(root + "/step-00000009.tmp");
    fs::create_directory(root + "/step-00000001.trash");
    fs::create_directory(root + "/notes");
    write_file(root + "/step-00000007/manifest.json", "torn");
    prune_checkpoints(root, 0, 0, std::nullopt);
    CHECK(entries(root).size() == 10);  // eight checkpoints, notes, latest
    prune_checkpoints(root, 2, 3, 2);
    // 8 and 6 are the last two complete ones, 3 (and 6) multiples of 3, 2 protected; 7 is damaged and left alone.
    CHECK(entries(root) == std::vector<std::string>{"latest", "notes", "step-00000002", "step-00000003",
                                                    "step-00000006", "step-00000007", "step-00000008"});
    prune_checkpoints(root, 1, 0, std::nullopt);
    CHECK(newest(root)->step == 8);
}

TEST_CASE("checkpoints later than where a run goes on are set aside") {
    const TemporaryDirectory directory;
    for (const std::int64_t step : {1, 2, 3}) {
        save(directory.path(), step);
    }
    CHECK(supersede_checkpoints_after(directory.path(), 1).size() == 2);
    CHECK(newest(directory.path())->step == 1);
    save(directory.path(), 2);
    CHECK(supersede_checkpoints_after(directory.path(), 1).size() == 1);
    CHECK(entries(directory.path()) ==
          std::vector<std::string>{"latest", "step-00000001", "step-00000002.superseded", "step-00000003.superseded"});
}

TEST_CASE("a commit of files that are not there is refused") {
    const TemporaryDirectory directory;
    CheckpointWriter writer(directory.path(), 1);
    writer.begin();
    CHECK_THROWS_AS(writer.commit(json::object(), {{"x", 3, "0123456789abcdef"}}), Error);
    CHECK_THROWS_AS(writer.commit({{"step", 3}}, {}), Error);
    CHECK_THROWS_AS(ShardWriter(writer.directory(), "a/b"), Error);
    CHECK_FALSE(newest(directory.path()));
}

TEST_CASE("a run that is killed at any moment has its last reported checkpoint, whole") {
    const TemporaryDirectory directory;
    const std::string root = directory / "checkpoints";
    std::int64_t reported = 0;
    // Longer where a busy machine or a sanitizer leaves the writer no time to get anywhere.
    for (int round = 0; round < 60 || reported <= 5; ++round) {
        REQUIRE(round < 1000);
        const auto delay = std::chrono::microseconds((200 + round * 1237 % 30000) * (1 + round / 60));
        const Killed killed = run_and_kill(delay, [&](const auto& report) {
            std::vector<std::string> warnings;
            const auto from = find_newest_checkpoint(root, warnings);
            std::int64_t step = from ? from->step : 0;
            // The newest once more, as a run that was resumed and stopped at once does, then the next ones.
            for (step = std::max<std::int64_t>(step, 1);; ++step) {
                save(root, step, round);
                report(step);
                prune_checkpoints(root, 2, 0, std::nullopt);
            }
        });
        REQUIRE_FALSE(killed.finished);
        reported = std::max(reported, killed.last_reported);
        std::vector<std::string> warnings;
        const auto info = find_newest_checkpoint(root, warnings);
        CHECK(warnings.empty());
        CHECK((info ? info->step : 0) >= reported);
        if (info) {
            verify_checkpoint(*info);
            const auto version = (*info->manifest)["version"].get<std::int64_t>();
            CHECK(contents(info->path + "/rank-00002") == shard_text(info->step, 2, version));
        }
    }
}

TEST_CASE("a full disk stops the new checkpoint and leaves the old one") {
    const SmallDisk disk(128 << 10);
    if (!disk.mounted()) {
        WARN("skipped: this process may not mount a file system");
        return;
    }
    save(disk.path(), 1);
    try {
        save(disk.path(), 2);
        FAIL("two checkpoints fit a disk for one");
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::cannot_write);
        CHECK_THAT(error.what(), Catch::Contains("No space left"));
    }
    const auto info = newest(disk.path());
    REQUIRE(info);
    CHECK(info->step == 1);
    verify_checkpoint(*info);
    REQUIRE(disk.make_read_only());
    CHECK_THROWS_WITH(save(disk.path(), 3), Catch::Contains("Read-only"));
}
