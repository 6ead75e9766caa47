// The job as TOML, and the keys as text, JSON and docs/job.md.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>

#include "core/job.h"
#include "core/job_keys.h"
#include "core/job_literal.h"
#include "test/core/job_text.h"

using namespace tessera;
using Catch::Matchers::Contains;

namespace {

/// Random values that the table accepts.
class RandomJob {
  public:
    explicit RandomJob(unsigned seed) : random_(seed) {}

    Job operator()() {
        Job job;
        for (const Key& key : job_keys()) {
            if (key.available.empty()) {
                std::visit([&](auto* to) { fill(key, *to); }, key.field(job));
            }
        }
        // What single keys do not say.
        job.log_prob.stride = std::min(job.log_prob.stride, job.log_prob.window);
        job.data.sequence_length += 1;
        job.data.train.emplace_back("x");
        job.log_prob.data.emplace_back("x");
        if (job.training.lr_scheduler.convention == "deepspeed") {
            job.training.lr_scheduler.warmup_steps += 1;
            job.training.lr_scheduler.min_lr_ratio = 0;
        }
        return job;
    }

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }

    void fill(const Key&, bool& to) { to = below(2) == 1; }

    void fill(const Key& key, double& to) {
        const double low = std::isfinite(key.range.low) ? key.range.low : -1e300;
        const double high = std::isfinite(key.range.high) ? key.range.high : 1e300;
        do {
            // Any bits, so that numbers of all sizes come up; within narrow ranges a uniform one.
            to = key.range.high == 1 ? std::generate_canonical<double, 53>(random_) : std::bit_cast<double>(random_());
        } while (!(to > low && to < high));
    }

    void fill(const Key& key, std::int64_t& to) {
        const auto low = static_cast<std::int64_t>(key.range.low);
        const auto high = static_cast<std::int64_t>(std::min(key.range.high, static_cast<double>(kLargestCount)));
        to = low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
    }

    void fill(const Key& key, std::string& to) {
        if (!key.choices.empty() && (key.text.fits == nullptr || below(2) == 0)) {
            to = key.choices[below(key.choices.size())].value;
            return;
        }
        const std::vector<std::string> pieces = {"\"", "'",    "\\", "\n", "\r\n", "\t",      "\x01",  "\x7f",
                                                 "é",  "日本", "😀",  "#",  "=",    "a",       " ",     "[",
                                                 "]",  "{",    "}",  "*",  "/x",   "\\u0041", "\"\"\""};
        do {
            to.assign(1, 'p');
            for (std::uint64_t i = below(12); i > 0; --i) {
                to += pieces[below(pieces.size())];
            }
            to += below(2) == 0 ? ".h5" : "";  // some texts must be names of HDF5 files
        } while (key.text.fits != nullptr && !key.text.fits(to));
    }

    void fill(const Key& key, std::vector<std::string>& to) {
        to.resize(below(4));
        for (std::string& item : to) {
            fill(key, item);
        }
    }

    void fill(const Key& key, std::array<double, 2>& to) {
        fill(key, to[0]);
        fill(key, to[1]);
    }

    template <typename T>
    void fill(const Key& key, Auto<T>& to) {
        to.reset();
        if (below(3) > 0) {
            fill(key, to.emplace());
        }
    }

    std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("a job that is written reads back equal, to the bit", "[job]") {
    RandomJob random(1);
    for (int i = 0; i < 200; ++i) {
        const Job job = random();
        const std::string text = job_to_toml(job);
        INFO(text);
        const JobFile read = parse_job(text, "written", {});
        check_equal(read.job, job);
        CHECK(job_to_toml(read.job) == text);
        CHECK(read.given.size() == job_keys().size());
    }
}

TEST_CASE("numbers are written so that they read back exactly and as floats", "[job]") {
    CHECK(literal(1.0) == "1.0");
    CHECK(literal(0.1) == "0.1");
    CHECK(literal(1e-5) == "1e-05");
    CHECK(literal(1e300) == "1e+300");
    CHECK(quoted("a\"b\\c\n\x01\x7f é") == "\"a\\\"b\\\\c\\n\\u0001\\u007F é\"");
}

TEST_CASE("the keys as JSON", "[job]") {
    const auto all = nlohmann::json::parse(describe_keys("", KeyFormat::json));
    REQUIRE(all.size() == job_keys().size());
    CHECK(all.at(0).at("key") == "job_type");
    const auto rate = nlohmann::json::parse(describe_keys("optimizer.lr", KeyFormat::json));
    REQUIRE(rate.size() == 1);
    CHECK(rate.at(0).at("default") == 1e-5);
    CHECK(rate.at(0).at("accepts") == "a number of at least 0");
    CHECK(rate.at(0).at("available").is_null());
    const auto device = nlohmann::json::parse(describe_keys("offload_param.device", KeyFormat::json));
    CHECK(device.at(0).at("available") == nlohmann::json::array({"none"}));
    CHECK(nlohmann::json::parse(describe_keys("no such key", KeyFormat::json)).empty());
}

TEST_CASE("the keys as text name the default and what is accepted, in lines that fit", "[job]") {
    const std::string text = describe_keys("zero_optimization.stage", KeyFormat::text);
    CHECK_THAT(text, Contains("zero_optimization.stage = 1\n"));
    CHECK_THAT(text, Contains("a whole number from 0 to 3 or \"auto\"."));
    CHECK_THAT(describe_keys("communication_data_type", KeyFormat::text),
               Contains("; in this version only \"fp32\" or \"bf16\"."));
    std::istringstream lines(describe_keys("", KeyFormat::text));
    for (std::string line; std::getline(lines, line);) {
        CHECK(line.size() <= 100);
    }
    CHECK(describe_keys("no such key", KeyFormat::text).empty());
}

TEST_CASE("docs/job.md is what the table says", "[job]") {
    std::ifstream file("../docs/job.md");
    REQUIRE(file);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::string mark = "<!-- From here on: the output of `train keys --markdown` -->\n\n";
    const std::size_t at = text.find(mark);
    REQUIRE(at != std::string::npos);
    // Not compared within CHECK: Catch takes minutes to lay out two texts of that length.
    const bool same = text.substr(at + mark.size()) == describe_keys("", KeyFormat::markdown);
    INFO("make docs/job.md anew from `train keys --markdown`");
    CHECK(same);
}
