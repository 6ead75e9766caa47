// SIGUSR1 and SIGTERM: a job is asked to save what it has and to leave.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>

namespace tessera {

/// While it lives, SIGUSR1 and SIGTERM only leave a note, however often they come, so that whatever is being written
/// gets written. One at a time in a process.
class StopSignals {
  public:
    StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;
    /// Restores what the signals did before, unless one came: the process is then about to leave with a code that asks
    /// for another run, and a further signal must not replace it.
    ~StopSignals();

    /// From here on SIGTERM ends the process at once: for ranks that leave with an error, of which mpirun ends those
    /// that are not gone when the first is, also within MPI_Finalize.
    static void let_terminate();

    /// What this process has received, as a number to be summed over the ranks; 0: nothing.
    [[nodiscard]] std::int64_t received() const;
    /// The name of the signal behind a sum that is not 0.
    [[nodiscard]] static std::string name_of(std::int64_t sum);

  private:
    struct sigaction usr1_before_ {};
    struct sigaction term_before_ {};
};

}  // namespace tessera
