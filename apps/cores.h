// Which cores a rank computes on.
#pragma once

#include <string>

#include "core/communicator.h"

namespace tessera {

struct Cores {
    std::int64_t threads = 1;
    std::string description;  // for the start-up table
};

/// Decides how many threads this rank computes with, and sets OpenMP so. OMP_NUM_THREADS wins. Where Open MPI bound the
/// rank by its own default (one core each for one or two ranks), the node's cores are shared out among its ranks.
[[nodiscard]] Cores take_cores(const Communicator::Local& local);

}  // namespace tessera
