// The output directory of a run: held by one run at a time, continued or begun anew.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/console.h"
#include "core/communicator.h"
#include "core/job.h"
#include "io/output_lock.h"
#include "zero/sharded_checkpoint.h"

namespace tessera {

/// Path of the checkpoint that a training job goes on from, empty if there is none. `warnings`: what is passed over.
[[nodiscard]] std::string resume_path(const Job& job, std::vector<std::string>& warnings);

class RunDirectory {
  public:
    /// Creates and locks job.output_dir (rank 0); collective. With checkpoint.resume = "never", what an earlier run of
    /// a training job left is moved to before-<time>.
    RunDirectory(const Communicator& communicator, const Job& job, Console& console);

    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
    [[nodiscard]] std::string checkpoints() const { return checkpoints_of(path_); }
    [[nodiscard]] static std::string checkpoints_of(const std::string& output_dir) {
        return output_dir + "/checkpoints";
    }

    /// The checkpoint that the job goes on from, if there is one; its files' checksums hold. Collective.
    [[nodiscard]] std::unique_ptr<ShardedCheckpoint> find_checkpoint(const Job& job, Console& console) const;

    /// Writes job.resolved.toml; collective.
    void write_resolved_job(const Job& job) const;

  private:
    void move_earlier_run(Console& console) const;

    const Communicator& communicator_;
    std::string path_;
    std::optional<OutputLock> lock_;  // rank 0
};

}  // namespace tessera
