// Processes that work together. Every collective is on a communicator that was passed in, never on the world.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "kernels/bulk_exchange.h"

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

/// A duplicate of an MPI communicator, with MPI's errors as exceptions. All members that exchange something are
/// collective over its ranks.
///
/// No exchange blocks in a call of MPI: it is begun and then looked after until it is done. So threads of a process may
/// use communicators that were duplicated from each other at the same time, each its own, with MPI_THREAD_SERIALIZED.
/// Making one does block: only while nothing is under way on the others.
class Communicator : public BulkExchange {
  public:
    explicit Communicator(MPI_Comm parent);
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator() override;

    /// The same ranks, for another thread.
    [[nodiscard]] Communicator duplicate() const { return {comm_, calls_}; }
    /// A duplicate of `other`, which may be of other ranks, to be used by the same threads as this one.
    [[nodiscard]] Communicator beside(MPI_Comm other) const { return {other, calls_}; }

    [[nodiscard]] std::int64_t rank() const { return rank_; }
    [[nodiscard]] std::int64_t size() const { return size_; }

    /// (rank, size) among the ranks that share memory with this one.
    struct Local {
        std::int64_t rank = 0;
        std::int64_t size = 1;
    };
    [[nodiscard]] Local local() const { return local_; }

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

    void all_to_all(const std::byte* send, std::byte* receive, std::int64_t piece_bytes) const override;
    void all_gather(const std::byte* own, std::byte* all, std::int64_t buckets,
                    std::int64_t piece_bytes) const override;
    void all_gather_in_place(std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const override;

    /// Runs `work` on every rank. If it throws on any, every rank throws an AgreedError with the message and code of
    /// the lowest such rank.
    void agree(const std::function<void()>& work) const;
    /// The second half of agree(), for an error caught earlier (null: none).
    void agree(const std::exception_ptr& error) const;

    /// Patient, an operation that takes long sleeps between two looks at it, longer the longer it takes: the core
    /// belongs to whoever computes meanwhile. May be changed while one is under way. At first: not patient.
    void set_patient(bool patient) noexcept { waiting_.patient = patient; }
    /// What is under way in another thread on this communicator, or begins later, throws: for a process that ends.
    void cancel() noexcept { waiting_.cancelled = true; }

    /// Ends all processes.
    [[noreturn]] void abort(ExitCode code) const;

    /// What other threads say to one that waits.
    struct Waiting {
        std::atomic<bool> patient = false;
        std::atomic<bool> cancelled = false;
    };

  private:
    Communicator(MPI_Comm parent, std::shared_ptr<std::mutex> calls);

    std::shared_ptr<std::mutex> calls_;  // held in each call of MPI, so that there is one at a time
    MPI_Comm comm_ = MPI_COMM_NULL;
    std::int64_t rank_ = 0;
    std::int64_t size_ = 1;
    Local local_;
    Waiting waiting_;
};

/// Name of this machine.
[[nodiscard]] std::string host_name();

}  // namespace tessera
