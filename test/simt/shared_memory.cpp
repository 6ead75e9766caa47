#include "test/simt/shared_memory.h"

#include <cstring>

#include "core/base/checked.h"
#include "test/simt/emulator.h"
#include "test/simt/poison.h"

namespace tessera::simt::emulated {

namespace {

constexpr std::int64_t kRedZone = 128;
constexpr std::int64_t kFirst = 384;  // aligned to 128 bytes, as promised of dynamic shared memory, and to no more

}  // namespace

std::int64_t SharedMemory::limit(int capability) {
    switch (capability) {
        case 80:
            return 163 << 10;
        case 89:
            return 99 << 10;
        case 90:
            return 227 << 10;
        default:
            throw EmulationError(fmt::format("no device of compute capability {} is emulated", capability));
    }
}

SharedMemory::SharedMemory() {
    pieces_.push_back({nullptr, "dynamic_shared", at(kFirst), 0});
}

void SharedMemory::begin_launch(std::int64_t dynamic_bytes, int capability) {
    pieces_.resize(1);
    pieces_.front().bytes = dynamic_bytes;
    limit_ = limit(capability);
}

void SharedMemory::begin_block() {
    pieces_.resize(1);
    static_bytes_ = 0;
    const Piece& dynamic = pieces_.front();
    poison(at(0), kBytes);
    unpoison(dynamic.begin, dynamic.bytes);
    std::memset(dynamic.begin, 0xff, static_cast<std::size_t>(dynamic.bytes));
}

std::byte* SharedMemory::array(const void* tag, const char* name, std::int64_t bytes, std::int64_t alignment) {
    for (const Piece& piece : pieces_) {
        if (piece.tag == tag) {
            return piece.begin;
        }
    }
    const Piece& last = pieces_.back();
    static_bytes_ = round_up(static_bytes_, alignment) + bytes;
    const std::int64_t dynamic_bytes = pieces_.front().bytes;
    if (static_bytes_ > kWithoutAsking) {
        error_ = fmt::format("the static shared memory comes to {} bytes with `{}`: {} at most", static_bytes_, name,
                             kWithoutAsking);
        return nullptr;
    }
    const std::int64_t all = static_bytes_ + dynamic_bytes;
    const std::int64_t most = dynamic_bytes > kWithoutAsking ? limit_ : kWithoutAsking;
    if (all > most) {
        error_ =
            fmt::format("static ({} bytes with `{}`) and dynamic ({} bytes) shared memory come to {}: {} at most{}",
                        static_bytes_, name, dynamic_bytes, all, most,
                        all <= limit_ ? ", as a launch asks for more only where the dynamic part alone needs it" : "");
        return nullptr;
    }
    // Aligned as asked and to no more, so that wider accesses show where the array does not promise them.
    std::int64_t place = round_up(offset(last.begin) + last.bytes + kRedZone, alignment);
    if (place % (2 * alignment) == 0) {
        place += alignment;
    }
    std::byte* begin = at(place);
    pieces_.push_back({tag, name, begin, bytes});
    unpoison(begin, bytes);
    std::memset(begin, 0xff, static_cast<std::size_t>(bytes));
    return begin;
}

bool SharedMemory::holds(const void* address, std::int64_t bytes) const {
    for (const Piece& piece : pieces_) {
        const std::int64_t at = static_cast<const std::byte*>(address) - piece.begin;
        if (at >= 0 && at + bytes <= piece.bytes) {
            return true;
        }
    }
    return false;
}

std::string SharedMemory::describe(const void* address) const {
    const Piece* nearest = &pieces_.front();
    for (const Piece& piece : pieces_) {
        if (piece.begin <= static_cast<const std::byte*>(address)) {
            nearest = &piece;
        }
    }
    const std::int64_t at = static_cast<const std::byte*>(address) - nearest->begin;
    const std::string what = fmt::format("the {} bytes of shared memory `{}`", nearest->bytes, nearest->name);
    if (at < 0) {
        return fmt::format("{} bytes before {}", -at, what);
    }
    if (at >= nearest->bytes) {
        return fmt::format("{} bytes past the end of {}", at - nearest->bytes, what);
    }
    return fmt::format("byte {} of {}", at, what);
}

}  // namespace tessera::simt::emulated
