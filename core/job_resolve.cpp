// What a job file leaves open and the launch decides: batch numbers and the directory of relative paths.
#include <filesystem>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/job.h"

namespace tessera {
namespace {

std::string shown(const Auto<std::int64_t>& number) {
    return number ? fmt::format("{}", *number) : "\"auto\"";
}

bool is_pattern(const std::string& path) {
    return path.find_first_of("*?[") != std::string::npos;
}

std::string absolute(const std::string& path, const std::string& directory) {
    return (std::filesystem::path(directory) / path).string();
}

/// As `absolute`; characters of the directory that a pattern would read as its own are escaped.
void make_absolute(std::vector<std::string>& paths, const std::string& directory) {
    std::string escaped;
    for (const char c : directory) {
        escaped += std::string_view("*?[\\").find(c) == std::string_view::npos ? "" : "\\";
        escaped += c;
    }
    for (std::string& path : paths) {
        path = absolute(path, is_pattern(path) ? escaped : directory);
    }
}

}  // namespace

void make_paths_absolute(Job& job, const std::string& directory) {
    job.output_dir = absolute(job.output_dir, directory);
    std::error_code ignored;  // a name that cannot be looked up is a hub model's
    if (std::filesystem::is_directory(absolute(job.model_name, directory), ignored)) {
        job.model_name = absolute(job.model_name, directory);
    }
    make_absolute(job.data.train, directory);
    make_absolute(job.data.eval, directory);
    make_absolute(job.log_prob.data, directory);
    if (job.checkpoint.resume != "auto" && job.checkpoint.resume != "never") {
        job.checkpoint.resume = absolute(job.checkpoint.resume, directory);
    }
    auto& zero = job.zero_optimization;
    for (std::string* path : {&zero.offload_optimizer.nvme_path, &zero.offload_param.nvme_path}) {
        if (!path->empty()) {
            *path = absolute(*path, directory);
        }
    }
}

void resolve_batch(Job& job, std::int64_t ranks) {
    auto& total = job.train_batch_size;
    auto& micro = job.train_micro_batch_size_per_gpu;
    auto& accumulation = job.gradient_accumulation_steps;
    if (ranks < 1) {
        fail(ExitCode::internal, "batch numbers for {} ranks", ranks);
    }
    if (!total && !micro) {
        fail(ExitCode::usage,
             "train_batch_size and train_micro_batch_size_per_gpu are both \"auto\": give one of them as a number");
    }
    const auto product = [&](std::int64_t a, std::int64_t b) {
        return checked_mul(checked_mul(a, b, "the batch size"), ranks, "the batch size");
    };
    const auto mismatch = [&](std::int64_t divisor) {
        fail(ExitCode::usage,
             "train_batch_size = {} is not train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks = {} x "
             "{} "
             "x {}: it must be {}{}",
             shown(total), shown(micro), shown(accumulation), ranks, micro && accumulation ? "" : "a multiple of ",
             divisor);
    };
    if (!micro || (!accumulation && !total)) {
        accumulation = accumulation.value_or(1);
    }
    if (!total) {
        total = product(*micro, *accumulation);
    }
    const std::int64_t divisor = product(micro.value_or(1), accumulation.value_or(1));
    if (micro && accumulation ? *total != divisor : *total % divisor != 0) {
        mismatch(divisor);
    }
    micro = micro.value_or(*total / divisor);
    accumulation = accumulation.value_or(*total / divisor);
}

}  // namespace tessera
