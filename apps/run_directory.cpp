#include "apps/run_directory.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// What belongs to a run; other files in the directory are none of ours.
bool belongs_to_run(const std::string& name) {
    return name == "metrics.jsonl" || name == "job.resolved.toml" || name == "checkpoints" || name == "hf" ||
           name.starts_with("hf-step-");
}

std::string time_stamp() {
    const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    std::tm parts{};
    gmtime_r(&now, &parts);
    return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                       parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace

std::string resume_path(const Job& job, std::vector<std::string>& warnings) {
    const std::string& resume = job.checkpoint.resume;
    if (resume == "never") {
        return {};
    }
    if (resume != "auto") {
        return resume;
    }
    const auto newest = find_newest_checkpoint(RunDirectory::checkpoints_of(job.output_dir), warnings);
    return newest ? newest->path : std::string();
}

RunDirectory::RunDirectory(const Communicator& communicator, const Job& job, Console& console)
    : communicator_(communicator), path_(job.output_dir) {
    communicator.agree([&] {
        if (communicator.rank() == 0) {
            make_directories(path_);
            lock_.emplace(path_, job.job_type + " job of " + job.model_name);
            if (job.job_type == "training" && job.checkpoint.resume == "never") {
                move_earlier_run(console);
            }
        }
    });
}

void RunDirectory::move_earlier_run(Console& console) const {
    std::vector<fs::path> earlier;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
        if (belongs_to_run(entry.path().filename().string())) {
            earlier.push_back(entry.path());
        }
    }
    if (earlier.empty()) {
        return;
    }
    std::string target = file("before-" + time_stamp());
    for (int n = 2; fs::exists(target); ++n) {
        target = file(fmt::format("before-{}-{}", time_stamp(), n));
    }
    make_directories(target);
    for (const fs::path& path : earlier) {
        fs::rename(path, fs::path(target) / path.filename());
    }
    sync_directory(path_);
    console.line(fmt::format("checkpoint.resume = \"never\": what an earlier run left was moved to {}", target));
}

std::unique_ptr<ShardedCheckpoint> RunDirectory::find_checkpoint(const Job& job, Console& console) const {
    const std::string& resume = job.checkpoint.resume;
    std::string path;
    communicator_.agree([&] {
        if (communicator_.rank() == 0) {
            std::vector<std::string> warnings;
            path = resume_path(job, warnings);
            std::ranges::for_each(warnings, [&](const std::string& warning) { console.warn(warning); });
        }
    });
    path = communicator_.broadcast(path);
    if (path.empty()) {
        return nullptr;
    }
    std::unique_ptr<ShardedCheckpoint> checkpoint;
    communicator_.agree([&] {
        checkpoint = std::make_unique<ShardedCheckpoint>(open_checkpoint(path));
        // Each file is read once by one rank.
        const std::vector<FileRecord>& files = checkpoint->info().files;
        for (std::size_t i = 0; i < files.size(); ++i) {
            if (static_cast<std::int64_t>(i) % communicator_.size() == communicator_.rank()) {
                verify_checkpoint_file(checkpoint->info(), files[i]);
            }
        }
    });
    communicator_.agree([&] {
        if (communicator_.rank() == 0 && resume != "auto") {
            for (const std::string& name : supersede_checkpoints_after(checkpoints(), checkpoint->progress().step)) {
                console.line(fmt::format("a later checkpoint of this directory was renamed to {}", name));
            }
        }
    });
    return checkpoint;
}

void RunDirectory::write_resolved_job(const Job& job) const {
    communicator_.agree([&] {
        if (communicator_.rank() == 0) {
            write_file_atomically(file("job.resolved.toml"), job_to_toml(job));
        }
    });
}

}  // namespace tessera
