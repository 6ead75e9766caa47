// For tests: work of the first ranks of the world, so that one launch tries every number of ranks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "test/core/mpi_world.h"

namespace tessera::testing {

/// Made and used by all ranks of the world together.
class FirstRanks {
  public:
    FirstRanks() {
        for (std::int64_t count = 1; count <= world().size(); ++count) {
            MPI_Comm part = MPI_COMM_NULL;
            MPI_Comm_split(MPI_COMM_WORLD, world().rank() < count ? 0 : MPI_UNDEFINED, 0, &part);
            communicators_.emplace_back(part == MPI_COMM_NULL ? nullptr : new Communicator(world().beside(part)));
            if (part != MPI_COMM_NULL) {
                MPI_Comm_free(&part);
            }
        }
    }

    /// Does `work` on the first `count` ranks while the others wait. What one throws between exchanges
    /// all throw.
    void run(std::int64_t count, const std::function<void(const Communicator&)>& work) const {
        const auto& communicator = communicators_[static_cast<std::size_t>(count - 1)];
        world().agree([&] {
            if (communicator) {
                work(*communicator);
            }
        });
    }

  private:
    std::vector<std::unique_ptr<Communicator>> communicators_;  // by count - 1; null on ranks outside
};

}  // namespace tessera::testing
