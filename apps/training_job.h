// job_type = "training".
#pragma once

#include "core/communicator.h"
#include "core/job.h"

namespace tessera {

/// Trains from the beginning or from the newest checkpoint until the job's last step; collective.
[[nodiscard]] ExitCode run_training(const Communicator& communicator, const JobFile& file);

}  // namespace tessera
