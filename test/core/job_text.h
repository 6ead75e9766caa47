// Job files for tests, and the comparison of jobs.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <variant>
#include <vector>

#include "core/job.h"
#include "core/job_keys.h"

namespace tessera {

// A training job in two lines, so that a test's own lines begin with the third.
inline const std::string kShort = "model_name = \"m\"\noutput_dir = \"o\"\n";
inline const std::vector<std::string> kData = {"data.train=a.h5", "data.sequence_length=16"};

inline Job parse(const std::string& lines, std::vector<std::string> overrides = {}) {
    overrides.insert(overrides.begin(), kData.begin(), kData.end());
    return parse_job(kShort + lines, "job.toml", overrides).job;
}

inline void check_equal(Job a, Job b) {
    for (const Key& key : job_keys()) {
        INFO(key.name);
        const Field left = key.field(a);
        const Field right = key.field(b);
        std::visit([&](auto* value) { CHECK(*value == *std::get<decltype(value)>(right)); }, left);
    }
}

}  // namespace tessera
