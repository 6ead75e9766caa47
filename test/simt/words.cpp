// The words of simt.h that one thread does, and the way to those that threads do together.
#include <cstring>

#include "test/simt/block.h"
#include "test/simt/memory_checks.h"

namespace tessera::simt {

using emulated::block;
using emulated::current_thread;

int thread() noexcept {
    return current_thread->index;
}
int lane() noexcept {
    return current_thread->lane();
}
int warp() noexcept {
    return current_thread->warp();
}
std::int64_t block_x() noexcept {
    return block().x();
}
std::int64_t block_y() noexcept {
    return block().y();
}
std::int64_t block_z() noexcept {
    return block().z();
}
std::int64_t grid_x() noexcept {
    return block().grid().x;
}
std::int64_t grid_y() noexcept {
    return block().grid().y;
}
std::int64_t grid_z() noexcept {
    return block().grid().z;
}

void sync_block(const Place& place) {
    const emulated::InEmulator inside;
    block().meet_block(*current_thread, place);
}
std::byte* dynamic_shared() {
    return block().shared().dynamic();
}

namespace emulated {

void meet_warp(Word word, unsigned mask, void* operands, const Place& place) {
    const InEmulator inside;
    block().meet_warp(*current_thread, word, mask, operands, place);
}
void meet_named(int id, int threads, const Place& place) {
    const InEmulator inside;
    block().meet_named(*current_thread, id, threads, place);
}

void* shared_array(const void* tag, const char* name, std::size_t bytes, std::size_t alignment) {
    const InEmulator inside;
    SharedMemory& shared = block().shared();
    std::byte* array = shared.array(tag, name, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(alignment));
    if (array == nullptr) {
        block().fail(*current_thread, shared.error());
    }
    return array;
}

void load(void* result, const void* from, int bytes, const Place& place) {
    const InEmulator inside;
    const Site site(place);
    check_alignment(*current_thread, from, bytes, site);
    check_access(*current_thread, from, bytes, Access::read, site);
    std::memcpy(result, from, static_cast<std::size_t>(bytes));
}

void store(void* to, const void* value, int bytes, const Place& place) {
    const InEmulator inside;
    const Site site(place);
    check_alignment(*current_thread, to, bytes, site);
    check_access(*current_thread, to, bytes, Access::write, site);
    std::memcpy(to, value, static_cast<std::size_t>(bytes));
}

}  // namespace emulated

}  // namespace tessera::simt
