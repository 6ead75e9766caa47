// For tests that run as they are and under mpirun: MPI started once, ended with the process.
#pragma once

#include "core/communicator.h"

namespace tessera::testing {

inline const Communicator& world() {
    static const MpiSession session;
    static const Communicator communicator(MPI_COMM_WORLD);
    return communicator;
}

}  // namespace tessera::testing
