// The shared memory of the block that runs: dynamic shared memory and the static arrays that its kernel declares, of
// exact size, between red zones, and full of NaNs when a block begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "test/simt/address_range.h"

namespace tessera::simt::emulated {

class SharedMemory : public AddressRange<std::size_t{512} << 10> {
  public:
    /// Bytes that a block may have at most on devices of a compute capability; throws where that is not known.
    [[nodiscard]] static std::int64_t limit(int capability);
    /// What a block has of static arrays at most, and of all where the launch does not ask for more.
    static constexpr std::int64_t kWithoutAsking = 48 << 10;

    SharedMemory();
    void begin_launch(std::int64_t dynamic_bytes, int capability);
    void begin_block();

    [[nodiscard]] std::byte* dynamic() const { return pieces_.front().begin; }
    /// The array of that tag, which is made when a block first asks for it. Null, and error() says why, where there is
    /// no room.
    [[nodiscard]] std::byte* array(const void* tag, const char* name, std::int64_t bytes, std::int64_t alignment);
    [[nodiscard]] const std::string& error() const { return error_; }

    /// Whether [address, address + bytes) lies in one array.
    [[nodiscard]] bool holds(const void* address, std::int64_t bytes) const;
    /// In words: "byte 40 of the 64 bytes of shared memory `sums`".
    [[nodiscard]] std::string describe(const void* address) const;
    [[nodiscard]] std::string describe_offset(std::int64_t offset) const { return describe(at(offset)); }

  private:
    struct Piece {
        const void* tag;
        const char* name;
        std::byte* begin;
        std::int64_t bytes;
    };

    std::vector<Piece> pieces_;  // dynamic shared memory first
    std::int64_t limit_ = 0;
    std::int64_t static_bytes_ = 0;
    std::string error_;
};

}  // namespace tessera::simt::emulated
