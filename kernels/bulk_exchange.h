// Bulk exchanges between ranks: point-to-point messages, so that what goes over which link is known.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

/// Collective over the ranks of whoever implements it; `ranks` below is their number.
class BulkExchange {
  public:
    BulkExchange() = default;
    BulkExchange(const BulkExchange&) = delete;
    BulkExchange& operator=(const BulkExchange&) = delete;
    virtual ~BulkExchange() = default;

    /// Piece r of `send` goes to rank r; piece r of `receive` comes from rank r. [ranks, piece_bytes] each; a message
    /// to each other rank.
    virtual void all_to_all(const std::byte* send, std::byte* receive, std::int64_t piece_bytes) const = 0;
    /// `all` is `buckets` rows of as many pieces of `piece_bytes` as there are ranks: piece r of row b is the b-th of
    /// the pieces that rank r has at `own`, one after another. Around a ring: a rank sends to the next one only, so
    /// that of all ranks of a node one sends over its link.
    virtual void all_gather(const std::byte* own, std::byte* all, std::int64_t buckets,
                            std::int64_t piece_bytes) const = 0;
    /// The same with this rank's pieces in their places in `all`.
    virtual void all_gather_in_place(std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const = 0;
};

}  // namespace tessera
