// Processes that work together. Every collective is on a communicator that was passed in, never on the world.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace tessera {

/// MPI_Init_thread and MPI_Finalize.
class MpiSession {
  public:
    MpiSession();
    MpiSession(const MpiSession&) = delete;
    MpiSession& operator=(const MpiSession&) = delete;
    ~MpiSession();

    /// Version of the MPI library in one line.
    [[nodiscard]] static std::string library_version();
};

/// An error that all ranks hold: one of them speaks, all leave by the same door.
class AgreedError : public Error {
  public:
    using Error::Error;
};

/// A duplicate of an MPI communicator, with MPI's errors as exceptions. All members are collective over its ranks
/// except rank(), size() and abort().
class Communicator {
  public:
    explicit Communicator(MPI_Comm parent);
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator();

    [[nodiscard]] std::int64_t rank() const { return rank_; }
    [[nodiscard]] std::int64_t size() const { return size_; }

    /// (rank, size) among the ranks that share memory with this one.
    struct Local {
        std::int64_t rank;
        std::int64_t size;
    };
    [[nodiscard]] Local local() const;

    void barrier() const;
    /// Rank 0's text.
    [[nodiscard]] std::string broadcast(const std::string& text) const;
    /// The text of every rank, in rank order, on every rank.
    [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) const;
    /// The bytes of every rank, in rank order, on rank 0; empty elsewhere.
    [[nodiscard]] std::vector<std::string> gather(std::span<const std::byte> bytes) const;
    /// Element-wise sums, on every rank.
    void all_reduce_sum(std::span<std::int64_t> values) const;
    /// Sum over the ranks, added in rank order: the same bits on every rank and from run to run.
    [[nodiscard]] double ordered_sum(double value) const;

    // Bulk exchanges: point-to-point messages, so that what goes over which link is known, and between two looks at
    // their progress the thread sleeps: the core belongs to whoever computes.

    /// Piece r of `send` goes to rank r; piece r of `receive` comes from rank r. [size, piece_bytes] each; a message to
    /// each other rank.
    void all_to_all(const std::byte* send, std::byte* receive, std::int64_t piece_bytes) const;
    /// `all` is `buckets` rows of size() pieces of `piece_bytes`: piece r of row b is the b-th of the pieces that rank
    /// r has at `own`, one after another. Around a ring: a rank sends to the next one only, so that of all ranks of a
    /// node one sends over its link.
    void all_gather(const std::byte* own, std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const;
    /// The same with this rank's pieces in their places in `all`.
    void all_gather_in_place(std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const;

    /// Runs `work` on every rank. If it throws on any, every rank throws an AgreedError with the message and code of
    /// the lowest such rank.
    void agree(const std::function<void()>& work) const;
    /// The second half of agree(), for an error caught earlier (null: none).
    void agree(const std::exception_ptr& error) const;

    /// Ends all processes.
    [[noreturn]] void abort(ExitCode code) const;

  private:
    MPI_Comm comm_ = MPI_COMM_NULL;
    std::int64_t rank_ = 0;
    std::int64_t size_ = 1;
};

/// Name of this machine.
[[nodiscard]] std::string host_name();

}  // namespace tessera
