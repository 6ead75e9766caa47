// job_type = "log_prob".
#pragma once

#include "core/communicator.h"
#include "core/job.h"

namespace tessera {

/// Scores a data set into a log-prob file, taking up a file that an earlier run left; collective.
[[nodiscard]] ExitCode run_log_prob(const Communicator& communicator, const JobFile& file);

}  // namespace tessera
