// Processes that start together and end together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/job.h"

namespace tessera {

/// Runs `work` between MPI_Init and MPI_Finalize. Errors that the ranks agreed on are printed by rank 0, and all ranks
/// return the code together; any other error is printed with rank and host, and ends all processes. Returns the exit
/// code.
[[nodiscard]] int launch(const std::function<ExitCode(const Communicator&)>& work);

/// Prints an error that this rank alone has, and ends all processes; while what others read of its memory is still
/// there.
[[noreturn]] void end_all(const Communicator& communicator, const std::exception& error);

/// Rank 0 reads and validates the job file, resolves what can be resolved before data and model are seen, and every
/// rank gets the same job. A rank that was started with another program or command line is named: Error(disagree).
[[nodiscard]] JobFile agree_on_job(const Communicator& communicator, const std::string& path,
                                   const std::vector<std::string>& overrides);

}  // namespace tessera
