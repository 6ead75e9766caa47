// job_type = "log_prob".
#pragma once

#include "apps/stop_signals.h"
#include "core/communicator.h"
#include "core/job.h"

namespace tessera {

/// Scores a data set into a log-prob file, taking up a file that an earlier run left; collective. A signal to any rank
/// ends it before the next round of micro-batches, with what is scored on disk and stopped_early.
[[nodiscard]] ExitCode run_log_prob(const Communicator& communicator, const JobFile& file, const StopSignals& signals);

}  // namespace tessera
