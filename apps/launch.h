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

/// Runs `work`. An error that this rank alone has (no AgreedError) is printed with rank and host and ends all processes
/// here: while the memory is still there that other ranks may be reading.
[[nodiscard]] ExitCode together(const Communicator& communicator, const std::function<ExitCode()>& work);

/// Rank 0 reads and validates the job file, resolves what can be resolved before data and model are seen, and every
/// rank gets the same job. A rank that was started with another program or command line is named: Error(disagree).
[[nodiscard]] JobFile agree_on_job(const Communicator& communicator, const std::string& path,
                                   const std::vector<std::string>& overrides);

}  // namespace tessera
