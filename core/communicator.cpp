#include "core/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "core/base/checked.h"

namespace tessera {
namespace {

void check(int code, const char* what) {
    if (code == MPI_SUCCESS) {
        return;
    }
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    fail(ExitCode::internal, "{}: {}", what, std::string(text.data(), static_cast<std::size_t>(length)));
}

constexpr int kTextTag = 0;
constexpr int kBulkTag = 1;

/// Counts of MPI-3 are int: larger transfers are described as elements of a larger datatype.
class Datatype {
  public:
    /// So many consecutive bytes. Pieces are multiples of 16 elements: in words of 8 bytes they may have 16 GiB.
    static Datatype contiguous(std::mutex& calls, std::int64_t bytes) {
        const bool words = bytes % 8 == 0;
        return {calls, "MPI_Type_contiguous", [&](MPI_Datatype* type) {
                    return MPI_Type_contiguous(narrow<int>(words ? bytes / 8 : bytes), words ? MPI_INT64_T : MPI_BYTE,
                                               type);
                }};
    }
    /// `count` blocks of `element`, `stride` elements apart.
    static Datatype strided(std::mutex& calls, std::int64_t count, std::int64_t stride, MPI_Datatype element) {
        return {calls, "MPI_Type_vector", [&](MPI_Datatype* type) {
                    return MPI_Type_vector(narrow<int>(count), 1, narrow<int>(stride), element, type);
                }};
    }
    Datatype(const Datatype&) = delete;
    Datatype& operator=(const Datatype&) = delete;
    ~Datatype() {
        const std::lock_guard lock(calls_);
        MPI_Type_free(&handle_);
    }
    [[nodiscard]] MPI_Datatype get() const { return handle_; }

  private:
    template <typename Make>
    Datatype(std::mutex& calls, const char* what, const Make& make) : calls_(calls) {
        const std::lock_guard lock(calls_);
        check(make(&handle_), what);
        check(MPI_Type_commit(&handle_), "MPI_Type_commit");
    }
    std::mutex& calls_;
    MPI_Datatype handle_ = MPI_DATATYPE_NULL;
};

/// Operations under way.
class Requests {
  public:
    Requests(std::mutex& calls, const Communicator::Waiting& waiting) : calls_(calls), waiting_(waiting) {}

    /// start(MPI_Request*) begins one and returns MPI's code.
    template <typename Start>
    void start(const char* what, const Start& start) {
        const std::lock_guard lock(calls_);
        check(start(&requests_.emplace_back(MPI_REQUEST_NULL)), what);
    }
    /// Returns when all are done.
    void finish() {
        using std::chrono::nanoseconds;
        constexpr nanoseconds kAwake = std::chrono::microseconds(50);
        constexpr nanoseconds kLongest = std::chrono::microseconds(500);
        const auto start = std::chrono::steady_clock::now();
        while (!done()) {
            if (waiting_.cancelled) {
                fail(ExitCode::internal, "an exchange was cancelled");
            }
            const nanoseconds passed = std::chrono::steady_clock::now() - start;
            if (waiting_.patient && passed > kAwake) {
                // An eighth of the time passed: a quick exchange is not held up, a slow one by little.
                std::this_thread::sleep_for(std::min(passed / 8, kLongest));
            } else {
                std::this_thread::yield();
            }
        }
        requests_.clear();
    }

  private:
    [[nodiscard]] bool done() {
        const std::lock_guard lock(calls_);
        int all = 0;
        check(MPI_Testall(narrow<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
        return all != 0;
    }

    std::mutex& calls_;
    const Communicator::Waiting& waiting_;
    std::vector<MPI_Request> requests_;
};

/// One operation from beginning to end.
template <typename Start>
void complete(std::mutex& calls, const Communicator::Waiting& waiting, const char* what, const Start& start) {
    Requests requests(calls, waiting);
    requests.start(what, start);
    requests.finish();
}

}  // namespace

MpiSession::MpiSession() {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
        fail(ExitCode::internal, "MPI does not start");
    }
    if (provided < MPI_THREAD_SERIALIZED) {
        fail(ExitCode::internal, "this MPI library gives thread level {}, MPI_THREAD_SERIALIZED is needed", provided);
    }
    // A singleton where a launcher started several tasks: srun without PMIx. Each would write the same files.
    const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1 && tasks != nullptr && std::atoll(tasks) > 1) {
        fail(ExitCode::usage, "srun started {} tasks, but MPI sees one process: use srun --mpi=pmix, or mpirun", tasks);
    }
}

MpiSession::~MpiSession() {
    MPI_Finalize();
}

std::string MpiSession::library_version() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string version(text.data(), static_cast<std::size_t>(length));
    return version.substr(0, version.find_first_of(",\n"));
}

Communicator::Communicator(MPI_Comm parent) : Communicator(parent, std::make_shared<std::mutex>()) {}

Communicator::Communicator(MPI_Comm parent, std::shared_ptr<std::mutex> calls) : calls_(std::move(calls)) {
    const std::lock_guard lock(*calls_);
    check(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    const auto place_in = [](MPI_Comm comm, std::int64_t& rank, std::int64_t& size) {
        int number = 0;
        check(MPI_Comm_rank(comm, &number), "MPI_Comm_rank");
        rank = number;
        check(MPI_Comm_size(comm, &number), "MPI_Comm_size");
        size = number;
    };
    place_in(comm_, rank_, size_);
    MPI_Comm node = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    place_in(node, local_.rank, local_.size);
    check(MPI_Comm_free(&node), "MPI_Comm_free");
}

Communicator::~Communicator() {
    const std::lock_guard lock(*calls_);
    MPI_Comm_free(&comm_);
}

void Communicator::barrier() const {
    complete(*calls_, waiting_, "MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
}

std::string Communicator::broadcast(const std::string& text) const {
    const auto from_rank_0 = [&](void* data, std::int64_t count, MPI_Datatype type) {
        complete(*calls_, waiting_, "MPI_Ibcast",
                 [&](MPI_Request* request) { return MPI_Ibcast(data, narrow<int>(count), type, 0, comm_, request); });
    };
    std::int64_t length = narrow<std::int64_t>(text.size());
    from_rank_0(&length, 1, MPI_INT64_T);
    std::string result = rank_ == 0 ? text : std::string(static_cast<std::size_t>(length), '\0');
    from_rank_0(result.data(), length, MPI_CHAR);
    return result;
}

std::vector<std::string> Communicator::all_gather(const std::string& text) const {
    const int own = narrow<int>(text.size());
    const auto ranks = static_cast<std::size_t>(size_);
    std::vector<int> lengths(ranks);
    complete(*calls_, waiting_, "MPI_Iallgather", [&](MPI_Request* request) {
        return MPI_Iallgather(&own, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_, request);
    });
    std::vector<int> offsets(ranks);
    std::int64_t total = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
        offsets[r] = narrow<int>(total);
        total += lengths[r];
    }
    std::string all(static_cast<std::size_t>(total), '\0');
    complete(*calls_, waiting_, "MPI_Iallgatherv", [&](MPI_Request* request) {
        return MPI_Iallgatherv(text.data(), own, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, comm_,
                               request);
    });
    std::vector<std::string> result;
    for (std::size_t r = 0; r < ranks; ++r) {
        result.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
    }
    return result;
}

std::vector<std::string> Communicator::gather(std::span<const std::byte> bytes) const {
    const int own = narrow<int>(bytes.size());
    const auto ranks = static_cast<std::size_t>(size_);
    std::vector<int> lengths(ranks);
    complete(*calls_, waiting_, "MPI_Igather", [&](MPI_Request* request) {
        return MPI_Igather(&own, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, comm_, request);
    });
    Requests requests(*calls_, waiting_);
    std::vector<std::string> result;
    if (rank_ != 0) {
        requests.start("MPI_Isend", [&](MPI_Request* request) {
            return MPI_Isend(bytes.data(), own, MPI_BYTE, 0, kTextTag, comm_, request);
        });
        requests.finish();
        return result;
    }
    result.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (std::size_t r = 1; r < ranks; ++r) {
        result.emplace_back(static_cast<std::size_t>(lengths[r]), '\0');
    }
    for (std::size_t r = 1; r < ranks; ++r) {
        requests.start("MPI_Irecv", [&](MPI_Request* request) {
            return MPI_Irecv(result[r].data(), lengths[r], MPI_BYTE, static_cast<int>(r), kTextTag, comm_, request);
        });
    }
    requests.finish();
    return result;
}

void Communicator::all_reduce_sum(std::span<std::int64_t> values) const {
    complete(*calls_, waiting_, "MPI_Iallreduce", [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, values.data(), narrow<int>(values.size()), MPI_INT64_T, MPI_SUM, comm_,
                              request);
    });
}

double Communicator::ordered_sum(double value) const {
    std::vector<double> values(static_cast<std::size_t>(size_));
    complete(*calls_, waiting_, "MPI_Iallgather", [&](MPI_Request* request) {
        return MPI_Iallgather(&value, 1, MPI_DOUBLE, values.data(), 1, MPI_DOUBLE, comm_, request);
    });
    double sum = 0;
    for (const double one : values) {
        sum += one;
    }
    return sum;
}

void Communicator::all_to_all(const std::byte* send, std::byte* receive, std::int64_t piece_bytes) const {
    const Datatype piece = Datatype::contiguous(*calls_, piece_bytes);
    Requests requests(*calls_, waiting_);
    // Each rank begins with its next one: not all with the same.
    for (std::int64_t distance = 1; distance < size_; ++distance) {
        const std::int64_t from = (rank_ + size_ - distance) % size_;
        const std::int64_t to = (rank_ + distance) % size_;
        requests.start("MPI_Irecv", [&](MPI_Request* request) {
            return MPI_Irecv(receive + from * piece_bytes, 1, piece.get(), static_cast<int>(from), kBulkTag, comm_,
                             request);
        });
        requests.start("MPI_Isend", [&](MPI_Request* request) {
            return MPI_Isend(send + to * piece_bytes, 1, piece.get(), static_cast<int>(to), kBulkTag, comm_, request);
        });
    }
    std::memcpy(receive + rank_ * piece_bytes, send + rank_ * piece_bytes, static_cast<std::size_t>(piece_bytes));
    requests.finish();
}

void Communicator::all_gather(const std::byte* own, std::byte* all, std::int64_t buckets,
                              std::int64_t piece_bytes) const {
    for (std::int64_t bucket = 0; bucket < buckets; ++bucket) {
        std::memcpy(all + (bucket * size_ + rank_) * piece_bytes, own + bucket * piece_bytes,
                    static_cast<std::size_t>(piece_bytes));
    }
    all_gather_in_place(all, buckets, piece_bytes);
}

void Communicator::all_gather_in_place(std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const {
    const Datatype piece = Datatype::contiguous(*calls_, piece_bytes);
    const Datatype column = Datatype::strided(*calls_, buckets, size_, piece.get());
    const int next = static_cast<int>((rank_ + 1) % size_);
    const int previous = static_cast<int>((rank_ + size_ - 1) % size_);
    Requests requests(*calls_, waiting_);
    for (std::int64_t round = 0; round + 1 < size_; ++round) {
        const std::int64_t coming = (previous + size_ - round) % size_;
        const std::int64_t passed_on = (rank_ + size_ - round) % size_;
        requests.start("MPI_Irecv", [&](MPI_Request* request) {
            return MPI_Irecv(all + coming * piece_bytes, 1, column.get(), previous, kBulkTag, comm_, request);
        });
        requests.start("MPI_Isend", [&](MPI_Request* request) {
            return MPI_Isend(all + passed_on * piece_bytes, 1, column.get(), next, kBulkTag, comm_, request);
        });
        requests.finish();
    }
}

void Communicator::agree(const std::function<void()>& work) const {
    std::exception_ptr error;
    try {
        work();
    } catch (...) {
        error = std::current_exception();
    }
    agree(error);
}

void Communicator::agree(const std::exception_ptr& error) const {
    // What every rank has to say: its exit code in the first byte, then its message; nothing where all is well.
    std::string report;
    if (error) {
        try {
            std::rethrow_exception(error);
        } catch (const Error& caught) {
            report = static_cast<char>(caught.code()) + std::string(caught.what());
        } catch (const std::bad_alloc&) {
            report = static_cast<char>(ExitCode::internal) + std::string("out of memory");
        } catch (const std::exception& caught) {
            report = static_cast<char>(ExitCode::internal) + std::string(caught.what());
        }
    }
    std::int64_t failed = report.empty() ? 0 : 1;
    all_reduce_sum({&failed, 1});
    if (failed == 0) {
        return;
    }
    const std::vector<std::string> reports = all_gather(report);
    for (std::size_t r = 0; r < reports.size(); ++r) {
        if (!reports[r].empty()) {
            const std::string where = r == 0 ? "" : fmt::format("rank {}: ", r);
            throw AgreedError(static_cast<ExitCode>(static_cast<unsigned char>(reports[r][0])),
                              where + reports[r].substr(1));
        }
    }
    fail(ExitCode::internal, "an error was announced and not described");
}

void Communicator::abort(ExitCode code) const {
    // Whoever holds the lock will let it go in a moment, or is stuck within MPI: then it does not matter any more.
    for (int attempt = 0; attempt < 100 && !calls_->try_lock(); ++attempt) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    MPI_Abort(comm_, static_cast<int>(code));
    std::abort();  // not reached: MPI_Abort does not return
}

std::string host_name() {
    std::array<char, 256> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace tessera
