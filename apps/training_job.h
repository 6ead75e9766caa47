// job_type = "training".
#pragma once

#include "apps/stop_signals.h"
#include "core/communicator.h"
#include "core/job.h"

namespace tessera {

/// Trains from the beginning or from the newest checkpoint until the job's last step; collective. A signal to any rank
/// ends it before the next step, with a checkpoint and stopped_early.
[[nodiscard]] ExitCode run_training(const Communicator& communicator, const JobFile& file, const StopSignals& signals);

}  // namespace tessera
