#include <nccl.h>

#include <cstring>
#include <thread>

#include "kernels/cuda/stream_exchange.h"

namespace tessera::cuda {
namespace {

/// Exchanges through NCCL. Its calls do not block, so that a rank whose peer is gone learns of it and throws.
class NcclExchange final : public StreamExchange {
  public:
    NcclExchange(Streams& streams, const ExchangeGroup& group) : StreamExchange(streams), group_(group) {
        if (group.size == 1) {
            return;
        }
        ncclUniqueId id{};
        std::string text;
        if (group.rank == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            text.assign(id.internal, sizeof(id.internal));
        }
        text = group.broadcast(text);
        std::memcpy(id.internal, text.data(), sizeof(id.internal));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        check(ncclCommInitRankConfig(&comm_, static_cast<int>(group.size), id, static_cast<int>(group.rank), &config),
              "ncclCommInitRankConfig");
        streams.set_watch([this] { look(); });
    }
    ~NcclExchange() override {
        if (comm_ != nullptr) {
            streams().set_watch({});
            // Whoever is still exchanging may wait for a peer that will not come.
            static_cast<void>(finished_ ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
        }
    }

    void begin() override {
        finished_ = false;
        StreamExchange::begin();
    }
    void finish() override {
        StreamExchange::finish();
        finished_ = true;
    }

    void all_to_all(const std::byte* send, std::byte* receive, std::int64_t piece_bytes) const override {
        const simt::Stream stream = streams().exchange();
        const auto bytes = static_cast<std::size_t>(piece_bytes);
        simt::copy_async(receive + group_.rank * piece_bytes, send + group_.rank * piece_bytes, piece_bytes, stream);
        together([&] {
            for (std::int64_t distance = 1; distance < group_.size; ++distance) {
                const std::int64_t from = (group_.rank + group_.size - distance) % group_.size;
                const std::int64_t to = (group_.rank + distance) % group_.size;
                submit(ncclRecv(receive + from * piece_bytes, bytes, ncclInt8, static_cast<int>(from), comm_, stream),
                       "ncclRecv");
                submit(ncclSend(send + to * piece_bytes, bytes, ncclInt8, static_cast<int>(to), comm_, stream),
                       "ncclSend");
            }
        });
    }
    void all_gather(const std::byte* own, std::byte* all, std::int64_t buckets,
                    std::int64_t piece_bytes) const override {
        gather(own, piece_bytes, all, buckets, piece_bytes);
    }
    void all_gather_in_place(std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const override {
        gather(all + group_.rank * piece_bytes, group_.size * piece_bytes, all, buckets, piece_bytes);
    }

  private:
    /// Own pieces lie `own_stride` bytes apart.
    void gather(const std::byte* own, std::int64_t own_stride, std::byte* all, std::int64_t buckets,
                std::int64_t piece_bytes) const {
        const std::int64_t row = group_.size * piece_bytes;
        const simt::Stream stream = streams().exchange();
        if (group_.size == 1) {
            if (own != all) {
                simt::copy_rows_async(all, row, own, own_stride, piece_bytes, buckets, stream);
            }
            return;
        }
        together([&] {
            for (std::int64_t bucket = 0; bucket < buckets; ++bucket) {
                submit(ncclAllGather(own + bucket * own_stride, all + bucket * row,
                                     static_cast<std::size_t>(piece_bytes), ncclInt8, comm_, stream),
                       "ncclAllGather");
            }
        });
    }

    template <typename Calls>
    void together(const Calls& calls) const {
        if (group_.size == 1) {
            return;
        }
        check(ncclGroupStart(), "ncclGroupStart");
        try {
            calls();
        } catch (...) {
            static_cast<void>(ncclGroupEnd());
            throw;
        }
        check(ncclGroupEnd(), "ncclGroupEnd");
    }

    /// Within a group a call is only noted; whether it could be done the end of the group says.
    void submit(ncclResult_t result, const char* call) const {
        if (result != ncclInProgress) {
            check(result, call);
        }
    }
    /// Waits until NCCL has taken what was asked for.
    void check(ncclResult_t result, const char* call) const {
        while (result == ncclInProgress && comm_ != nullptr) {
            std::this_thread::yield();
            if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) {
                break;
            }
        }
        if (result != ncclSuccess) {
            fail(ExitCode::internal, "{}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(comm_));
        }
    }
    /// Throws what went wrong meanwhile: with a peer, or on the network.
    void look() const {
        ncclResult_t result = ncclSuccess;
        check(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
        if (result != ncclInProgress) {
            check(result, "an exchange between GPUs");
        }
    }

    ExchangeGroup group_;
    ncclComm_t comm_ = nullptr;
    bool finished_ = true;
};

}  // namespace

std::unique_ptr<DeviceExchange> make_exchange(Streams& streams, const ExchangeGroup& group) {
    return std::make_unique<NcclExchange>(streams, group);
}

std::string exchange_version() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) {
        return "NCCL of unknown version";
    }
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace tessera::cuda
