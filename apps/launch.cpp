#include "apps/launch.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>

#include "apps/job_file.h"
#include "apps/stop_signals.h"
#include "core/base/checked.h"
#include "io/durable_file.h"

namespace tessera {
namespace {

/// Digest of the running program's file: ranks on different nodes may have been given different builds.
std::string program_digest() {
    constexpr std::int64_t kLargestProgram = std::int64_t{1} << 32;
    return xxh3_hex(read_text_file("/proc/self/exe", kLargestProgram));
}

void compare_command_lines(const Communicator& communicator, const std::string& path,
                           const std::vector<std::string>& overrides) {
    const auto compare = [&](const std::string& own, const char* what) {
        const std::vector<std::string> all = communicator.all_gather(own);
        for (std::size_t r = 1; r < all.size(); ++r) {
            if (all[r] != all[0]) {
                throw AgreedError(ExitCode::disagree,
                                  fmt::format("rank {} was started with another {} than rank 0: '{}', not '{}'; start "
                                              "all ranks alike",
                                              r, what, all[r], all[0]));
            }
        }
    };
    compare(program_digest(), "program");
    compare(std::filesystem::absolute(path).lexically_normal().string(), "job file");
    compare(fmt::format("{}", fmt::join(overrides, " ")), "set of --set options");
}

}  // namespace

int launch(const std::function<ExitCode(const Communicator&)>& work) {
    MpiSession session;
    ExitCode code = ExitCode::internal;
    {
        const Communicator world(MPI_COMM_WORLD);
        try {
            code = together(world, [&] { return work(world); });
        } catch (const AgreedError& error) {
            if (world.rank() == 0) {
                fmt::print(stderr, "train: error: {}\n", error.what());
            }
            code = error.code();
        }
        std::fflush(stdout);
        if (code != ExitCode::ok && code != ExitCode::stopped_early) {
            StopSignals::let_terminate();
        }
        // mpirun kills the others at the first exit that is not 0.
        world.barrier();
    }
    return static_cast<int>(code);
}

ExitCode together(const Communicator& communicator, const std::function<ExitCode()>& work) {
    try {
        return work();
    } catch (const AgreedError&) {
        throw;
    } catch (const std::exception& error) {
        fmt::print(stderr, "train: error: rank {} on {}: {}\n", communicator.rank(), host_name(), error.what());
        const auto* own = dynamic_cast<const Error*>(&error);
        communicator.abort(own != nullptr ? own->code() : ExitCode::internal);
    }
}

JobFile agree_on_job(const Communicator& communicator, const std::string& path,
                     const std::vector<std::string>& overrides) {
    compare_command_lines(communicator, path, overrides);
    JobFile file;
    communicator.agree([&] {
        if (communicator.rank() == 0) {
            file = read_job(path, overrides);
            if (file.job.job_type == "training") {
                resolve_batch(file.job, communicator.size());
            }
        }
    });
    const std::string text = communicator.broadcast(communicator.rank() == 0 ? job_to_toml(file.job) : "");
    if (communicator.rank() != 0) {
        file = parse_job(text, "the job of rank 0", {});
    }
    return file;
}

}  // namespace tessera
