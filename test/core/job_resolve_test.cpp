// Batch arithmetic and absolute paths.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "core/job.h"
#include "test/core/job_text.h"

using namespace tessera;
using Catch::Matchers::Contains;

TEST_CASE("the batch numbers are DeepSpeed's", "[job][batch]") {
    std::ifstream table("data/tables/batch.json");
    REQUIRE(table);
    int checked = 0;
    const auto cases = nlohmann::json::parse(table).at("cases");
    for (const auto& entry : cases) {
        INFO(entry.dump());
        std::string lines;  // "a number that is absent is "auto" in a job file"
        for (const char* name : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
            const auto& given = entry.at("given");
            lines += fmt::format("{} = {}\n", name, given.contains(name) ? given.at(name).dump() : "\"auto\"");
        }
        const std::int64_t ranks = entry.at("world");
        if (entry.contains("error")) {
            CHECK_THROWS_AS(
                [&] {
                    Job job = parse(lines);
                    resolve_batch(job, ranks);
                }(),
                Error);
        } else {
            Job job = parse(lines);
            resolve_batch(job, ranks);
            CHECK(job.train_batch_size == entry.at("result").at("train_batch_size").get<std::int64_t>());
            CHECK(job.train_micro_batch_size_per_gpu ==
                  entry.at("result").at("train_micro_batch_size_per_gpu").get<std::int64_t>());
            CHECK(job.gradient_accumulation_steps ==
                  entry.at("result").at("gradient_accumulation_steps").get<std::int64_t>());
        }
        ++checked;
    }
    CHECK(checked == 28);
}

TEST_CASE("batch numbers that are not given follow from train_batch_size", "[job][batch]") {
    const auto numbers = [](const std::string& lines, std::int64_t ranks) {
        Job job = parse(lines);
        resolve_batch(job, ranks);
        return std::array{*job.train_batch_size, *job.train_micro_batch_size_per_gpu, *job.gradient_accumulation_steps};
    };
    using Numbers = std::array<std::int64_t, 3>;
    CHECK(numbers("", 4) == Numbers{4, 1, 1});
    CHECK(numbers("train_batch_size = 4\ntrain_micro_batch_size_per_gpu = 2", 1) == Numbers{4, 2, 2});
    CHECK(numbers("train_batch_size = 8\ngradient_accumulation_steps = 2", 2) == Numbers{8, 2, 2});
    CHECK(numbers("train_batch_size = 8", 2) == Numbers{8, 4, 1});
    CHECK(numbers("train_micro_batch_size_per_gpu = 3", 2) == Numbers{6, 3, 1});
    CHECK(numbers("gradient_accumulation_steps = 5", 2) == Numbers{10, 1, 5});
}

TEST_CASE("batch numbers that do not divide say all three and the ranks", "[job][batch]") {
    const auto error = [](const std::string& lines, std::int64_t ranks) -> std::string {
        Job job = parse(lines);
        try {
            resolve_batch(job, ranks);
        } catch (const Error& failure) {
            return failure.what();
        }
        return "no error";
    };
    CHECK(error("train_batch_size = 30\ntrain_micro_batch_size_per_gpu = 4", 2) ==
          "train_batch_size = 30 is not train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks = 4 x "
          "\"auto\" x 2: it must be a multiple of 8");
    CHECK_THAT(error("train_batch_size = 32\ntrain_micro_batch_size_per_gpu = 2\ngradient_accumulation_steps = 4", 2),
               Contains("= 2 x 4 x 2: it must be 16"));
    CHECK_THAT(error("train_micro_batch_size_per_gpu = \"auto\"", 2), Contains("are both \"auto\""));
    CHECK_THAT(error("train_micro_batch_size_per_gpu = 1e15\ngradient_accumulation_steps = 1e15", 2),
               Contains("too large"));
}

TEST_CASE("paths become absolute, patterns and hub names included", "[job]") {
    const auto directory = std::filesystem::temp_directory_path() / fmt::format("tessera_job_[1]_{}", ::getpid());
    std::filesystem::create_directories(directory / "models/tiny");
    Job job;
    job.model_name = "models/tiny";
    job.output_dir = "runs/x";
    job.data.train = {"a.h5", "*.h5", "/data/*.h5"};
    job.checkpoint.resume = "runs/x/checkpoints/latest";
    make_paths_absolute(job, directory.string());
    CHECK(job.model_name == (directory / "models/tiny").string());
    CHECK(job.output_dir == (directory / "runs/x").string());
    CHECK(job.data.train[0] == (directory / "a.h5").string());
    CHECK_THAT(job.data.train[1], Contains("tessera_job_\\[1]_"));  // the directory's own bracket is no pattern
    CHECK(job.data.train[2] == "/data/*.h5");
    CHECK(job.checkpoint.resume == (directory / "runs/x/checkpoints/latest").string());
    CHECK(job.zero_optimization.offload_optimizer.nvme_path.empty());
    const std::string once = job_to_toml(job);
    make_paths_absolute(job, "/elsewhere");
    CHECK(job_to_toml(job) == once);
    Job hub;
    hub.model_name = "org/name@main";
    make_paths_absolute(hub, directory.string());
    CHECK(hub.model_name == "org/name@main");
    CHECK(hub.checkpoint.resume == "auto");
    std::filesystem::remove_all(directory);
}
