// What an access of a kernel to memory may be.
#pragma once

#include <cstdint>
#include <string>

#include "test/simt/place.h"

namespace tessera::simt::emulated {

struct Thread;

enum class Access : std::uint8_t { read, write };

/// Where in a kernel something is done: the word, or the instruction.
class Site {
  public:
    Site() = default;
    explicit Site(const Place& word)
        : value_(kWord | std::uint64_t{word.line} << kAddressBits | reinterpret_cast<std::uint64_t>(word.file)) {}
    explicit Site(const void* instruction) : value_(reinterpret_cast<std::uint64_t>(instruction)) {}
    /// " (at FILE:LINE)" or " (at PROGRAM+OFFSET)".
    [[nodiscard]] std::string describe() const;

  private:
    // An instruction, or a file's name below a line and a bit that says so: millions of these are kept.
    static constexpr int kAddressBits = 47;  // of a program, on all systems that we know
    static constexpr std::uint64_t kWord = std::uint64_t{1} << 63;
    std::uint64_t value_ = 0;
};

/// Ends the launch where `thread` may not access [address, address + bytes), or races with another. Races are looked
/// for only in kernels that are compiled with the callbacks.
void check_access(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site);
/// The same, where a word asks for an alignment and for one kind of memory.
void check_alignment(Thread& thread, const void* address, std::int64_t alignment, Site site);
void check_shared_access(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site);
void check_device_access(Thread& thread, const void* address, std::int64_t bytes, Access access, Site site);

/// What lies there, in words.
[[nodiscard]] std::string describe_address(const void* address);

}  // namespace tessera::simt::emulated
