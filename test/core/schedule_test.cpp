// Rates against numbers that Python computed from the formulas, and against tables that DeepSpeed's classes made.
#include "core/schedule.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"

using namespace tessera;

namespace {

using Scheduler = Job::Training::Scheduler;

// A few roundings in double of values up to lr.
constexpr double kTolerance = 1e-15;

void check_rates(const Schedule& schedule, double lr, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO("step " << i + 1);
        CHECK(schedule.rate(static_cast<std::int64_t>(i) + 1) ==
              Approx(expected[i]).margin(4 * kTolerance * lr).epsilon(0));
    }
}

}  // namespace

TEST_CASE("constant without warm-up is lr at every step, whatever min_lr_ratio says", "[schedule]") {
    const Schedule schedule({.min_lr_ratio = 0.5}, 0.003, 8);
    check_rates(schedule, 0.003, std::vector<double>(20, 0.003));
}

TEST_CASE("constant after a linear warm-up", "[schedule]") {
    check_rates(Schedule({.warmup_steps = 4}, 0.2, 8), 0.2, {0.05, 0.1, 0.15, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2});
}

TEST_CASE("cosine with a warm-up by ratio, standard", "[schedule]") {
    // lr 0.004, W = 0.25 * 8, H = 8, m = 0.1
    check_rates(Schedule({.type = "cosine", .warmup_ratio = 0.25, .min_lr_ratio = 0.1}, 0.004, 8), 0.004,
                {0.002, 0.004, 0.0037588457268119897, 0.0031000000000000003, 0.0022, 0.0013000000000000006,
                 0.0006411542731880103, 0.0004, 0.0004, 0.0004});
}

TEST_CASE("linear after a logarithmic warm-up, standard", "[schedule]") {
    check_rates(Schedule({.type = "linear", .warmup_steps = 3, .warmup_type = "log", .min_lr_ratio = 0.1}, 0.004, 8),
                0.004,
                {0.002, 0.0031699250014423125, 0.004, 0.00328, 0.0025599999999999998, 0.0018399999999999998,
                 0.0011199999999999997, 0.0003999999999999999, 0.0004});
}

TEST_CASE("cosine, convention deepspeed, a horizon beyond the run", "[schedule]") {
    check_rates(
        Schedule({.type = "cosine", .warmup_steps = 4, .min_lr_ratio = 0.1, .convention = "deepspeed"}, 0.004, 10),
        0.004,
        {0.0, 0.0, 0.001, 0.002, 0.003, 0.0037588457268119897, 0.0031000000000000003, 0.0022, 0.0013000000000000006});
}

TEST_CASE("a horizon at or below the warm-up ends at the minimum at once", "[schedule]") {
    const std::vector<double> half = {0.25, 0.5, 0.75, 1.0, 0.5, 0.5};
    for (const std::int64_t horizon : {1, 3, 4}) {
        check_rates(Schedule({.type = "linear", .warmup_steps = 4, .min_lr_ratio = 0.5}, 1.0, horizon), 1.0, half);
        check_rates(Schedule({.type = "cosine", .warmup_steps = 4, .min_lr_ratio = 0.5}, 1.0, horizon), 1.0, half);
        check_rates(Schedule({.warmup_steps = 4, .min_lr_ratio = 0.5}, 1.0, horizon), 1.0, {0.25, 0.5, 0.75, 1, 1, 1});
    }
}

TEST_CASE("the warm-up rounds to the nearest step, and steps win over the ratio", "[schedule]") {
    // Python: round(0.05 * 50) == 2 (half to even), round(0.07 * 50) == 4, round(0.26 * 10) == 3, round(0.04 * 10) == 0
    CHECK(Schedule({.warmup_ratio = 0.05}, 1, 50).warmup() == 2);
    CHECK(Schedule({.warmup_ratio = 0.07}, 1, 50).warmup() == 4);
    CHECK(Schedule({.warmup_ratio = 0.26}, 1, 10).warmup() == 3);
    CHECK(Schedule({.warmup_ratio = 0.04}, 1, 10).warmup() == 0);
    CHECK(Schedule({.warmup_ratio = 1.0}, 1, 10).warmup() == 10);
    CHECK(Schedule({.warmup_ratio = 0.5, .warmup_steps = 3}, 1, 10).warmup() == 3);
}

TEST_CASE("long schedules do not overflow", "[schedule]") {
    const std::int64_t horizon = 1'000'000'000'000'000;
    const Schedule schedule({.type = "cosine", .warmup_ratio = 0.5}, 1.0, horizon);
    CHECK(schedule.rate(horizon / 4) == Approx(0.5));
    CHECK(schedule.rate(horizon) == Approx(0.0).margin(1e-15));
    CHECK(schedule.rate(INT64_MAX) == Approx(0.0).margin(1e-15));
}

TEST_CASE("convention deepspeed refuses cosine without a warm-up", "[schedule]") {
    const Scheduler scheduler = {.type = "cosine", .warmup_ratio = 0.01, .convention = "deepspeed"};
    CHECK_NOTHROW(Schedule(scheduler, 1.0, 100));
    CHECK_THROWS_AS(Schedule(scheduler, 1.0, 10), Error);
    // DeepSpeed's classes that took a warm-up of 0 made it 2, as they do with 1.
    check_rates(Schedule({.convention = "deepspeed"}, 1.0, 10), 1.0, {0, 0, 0.5, 1, 1});
}

TEST_CASE("convention deepspeed gives the rates of DeepSpeed's classes", "[schedule]") {
    std::ifstream file("data/tables/lr_schedules.json");
    REQUIRE(file);
    const auto table = nlohmann::json::parse(file);
    int checked = 0;
    for (const auto& entry : table.at("cases")) {
        if (!entry.contains("job")) {
            continue;  // a minimum rate in the warm-up, which a job file cannot say
        }
        const auto& job = entry.at("job");
        const Scheduler scheduler = {.type = job.at("type"),
                                     .warmup_steps = job.at("warmup_steps"),
                                     .warmup_type = job.at("warmup_type"),
                                     .min_lr_ratio = job.value("min_lr_ratio", 0.0),
                                     .convention = job.at("convention")};
        const double lr = entry.at("optimizer_lr");
        const Schedule schedule(scheduler, lr, entry.value("training_horizon", std::int64_t{1}));
        const auto skipped = entry.value("skipped_steps", std::vector<std::int64_t>());
        std::int64_t taken = 0;  // steps that advanced the schedule
        std::int64_t attempted = 0;
        for (const double expected : entry.at("lr")) {
            ++attempted;
            INFO(entry.at("class") << " " << job.dump() << " step " << attempted);
            CHECK(schedule.rate(taken + 1) == Approx(expected).margin(1e-12 * lr).epsilon(0));
            taken += std::find(skipped.begin(), skipped.end(), attempted) == skipped.end() ? 1 : 0;
        }
        ++checked;
    }
    CHECK(checked == 22);
}
