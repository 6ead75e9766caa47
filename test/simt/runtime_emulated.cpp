// kernels/cuda/runtime.h and launch() on the emulated device.
#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "core/base/checked.h"
#include "test/simt/device_memory.h"
#include "test/simt/settings.h"
#include "test/simt/streams.h"

namespace tessera::simt {

namespace {

using emulated::device_memory;
using Lock = std::lock_guard<std::recursive_mutex>;

Lock lock() {
    return Lock(emulated::emulator_mutex());
}

std::int64_t host_kilobytes(const std::string& name) {
    std::ifstream file("/proc/meminfo");
    std::string word;
    std::int64_t value = 0;
    while (file >> word) {
        if (word == name + ":" && file >> value) {
            return value;
        }
    }
    throw EmulationError("/proc/meminfo does not say " + name);
}

std::string demangle(const char* name) {
    int status = 0;
    char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string result = status == 0 ? text : name;
    std::free(text);
    return result;
}

/// Rows of bytes in memory of the device or of the host.
struct Rows {
    std::byte* begin;
    std::int64_t stride;
    std::int64_t bytes;
    std::int64_t count;

    [[nodiscard]] std::byte* row(std::int64_t index) const { return begin + index * stride; }
    [[nodiscard]] bool empty() const { return bytes == 0 || count == 0; }
};

/// Device and pinned memory must hold what is copied, when it is asked for and when it is done.
void check(const Rows& rows, const char* what) {
    if (rows.bytes < 0 || rows.count < 0 || (rows.count > 1 && rows.stride < rows.bytes)) {
        throw EmulationError(
            fmt::format("{}: {} rows of {} bytes, {} bytes apart", what, rows.count, rows.bytes, rows.stride));
    }
    if (rows.empty() || !device_memory().contains(rows.begin)) {
        return;
    }
    const std::int64_t all = (rows.count - 1) * rows.stride + rows.bytes;
    if (!device_memory().holds(rows.begin, all)) {
        throw EmulationError(
            fmt::format("{}: {} bytes at {}: out of bounds", what, all, device_memory().describe(rows.begin)));
    }
}

void copy_rows(const Rows& to, const Rows& from) {
    for (std::int64_t row = 0; row < to.count; ++row) {
        std::memmove(to.row(row), from.row(row), static_cast<std::size_t>(to.bytes));
    }
}

/// One for each process of a node; they are all alike.
constexpr int kDevices = 8;
int device_in_use = 0;

}  // namespace

int device_count() {
    return kDevices;
}

void use_device(int index) {
    if (index < 0 || index >= kDevices) {
        throw EmulationError(fmt::format("there are {} emulated devices, and no device {}", kDevices, index));
    }
    device_in_use = index;
}

DeviceInfo device_info() {
    const int capability = emulation().capability;
    return {.name = "emulated device",
            .pci_bus_id = fmt::format("0000:{:02x}:00.0", device_in_use),
            .capability = capability,
            .multiprocessors = 4,
            .total_bytes = host_kilobytes("MemTotal") * 1024,
            .largest_shared = emulated::SharedMemory::limit(capability)};
}

std::int64_t free_device_bytes() {
    return host_kilobytes("MemAvailable") * 1024;
}

std::string runtime_versions() {
    return "emulator of the tests";
}

std::byte* allocate_device(std::int64_t bytes) {
    const Lock guard = lock();
    return device_memory().allocate(bytes, false);
}

std::byte* allocate_nans(std::int64_t bytes) {
    return allocate_device(bytes);  // all memory is
}

std::byte* allocate_pinned(std::int64_t bytes) {
    const Lock guard = lock();
    return device_memory().allocate(bytes, true);
}

void free_device(std::byte* memory) noexcept {
    if (memory != nullptr) {
        const Lock guard = lock();
        device_memory().free(memory, false);
    }
}

void free_pinned(std::byte* memory) noexcept {
    if (memory != nullptr) {
        const Lock guard = lock();
        device_memory().free(memory, true);
    }
}

Stream make_stream() {
    const Lock guard = lock();
    return emulated::new_stream();
}

void destroy_stream(Stream stream) noexcept {
    if (stream != nullptr) {
        const Lock guard = lock();
        emulated::end_stream(stream);
    }
}

void synchronize(Stream stream) {
    const Lock guard = lock();
    emulated::finish(stream);
}

void copy_async(void* to, const void* from, std::int64_t bytes, Stream stream) {
    copy_rows_async(to, bytes, from, bytes, bytes, 1, stream);
}

void copy_rows_async(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                     std::int64_t row_bytes, std::int64_t rows, Stream stream) {
    const Lock guard = lock();
    const Rows target{static_cast<std::byte*>(to), to_stride, row_bytes, rows};
    const Rows source{static_cast<std::byte*>(const_cast<void*>(from)), from_stride, row_bytes, rows};
    check(target, "what a copy writes");
    check(source, "what a copy reads");
    if (target.empty()) {
        return;
    }
    emulated::enqueue(stream, {[=] {
                          check(target, "what a copy writes");
                          check(source, "what a copy reads");
                          copy_rows(target, source);
                      }});
}

void zero_async(void* memory, std::int64_t bytes, Stream stream) {
    zero_rows_async(memory, bytes, bytes, 1, stream);
}

void zero_rows_async(void* memory, std::int64_t stride, std::int64_t row_bytes, std::int64_t rows, Stream stream) {
    const Lock guard = lock();
    const Rows target{static_cast<std::byte*>(memory), stride, row_bytes, rows};
    check(target, "what is set to zero");
    if (target.empty()) {
        return;
    }
    if (!device_memory().contains(memory)) {
        throw EmulationError("what is set to zero is no memory of the device");
    }
    emulated::enqueue(stream, {[=] {
                          check(target, "what is set to zero");
                          for (std::int64_t row = 0; row < rows; ++row) {
                              std::memset(target.row(row), 0, static_cast<std::size_t>(row_bytes));
                          }
                      }});
}

void copy_now(void* to, const void* from, std::int64_t bytes) {
    const Lock guard = lock();
    synchronize_all();
    const Rows target{static_cast<std::byte*>(to), bytes, bytes, 1};
    const Rows source{static_cast<std::byte*>(const_cast<void*>(from)), bytes, bytes, 1};
    check(target, "what a copy writes");
    check(source, "what a copy reads");
    if (bytes > 0) {
        copy_rows(target, source);
    }
}

Event::Event(bool timed) : event_(new CUevent_st{.timed = timed}) {}

Event::~Event() {
    delete event_;
}

void Event::record(Stream stream) {
    const Lock guard = lock();
    event_->point = std::make_shared<emulated::Point>();
    emulated::enqueue(stream, {nullptr, event_->point, nullptr});
}

void Event::make_wait(Stream stream) const {
    const Lock guard = lock();
    if (event_->point != nullptr) {
        emulated::enqueue(stream, {nullptr, nullptr, event_->point});
    }
}

bool Event::passed() const {
    const Lock guard = lock();
    return event_->point == nullptr || emulated::poll(*event_->point);
}

double Event::seconds_since(const Event& earlier) const {
    const Lock guard = lock();
    for (const CUevent_st* event : {earlier.event_, event_}) {
        if (!event->timed || event->point == nullptr || !event->point->passed) {
            throw EmulationError("the time of an event that is not timed, or not passed");
        }
    }
    return std::chrono::duration<double>(event_->point->time - earlier.event_->point->time).count();
}

namespace emulated {

namespace {

void check_limits(const Launch& launch) {
    const KernelCall& call = launch.call;
    const Grid& grid = call.grid;
    const auto refuse = [&](const std::string& what) {
        throw EmulationError(fmt::format("kernel {}: {}", launch.kernel, what));
    };
    constexpr std::int64_t kMostThreads = 1024;
    constexpr std::int64_t kMostBlocksX = std::numeric_limits<std::int32_t>::max();
    constexpr std::int64_t kMostBlocks = 65535;
    if (call.threads <= 0 || call.threads > kMostThreads || call.threads % kWarp != 0) {
        refuse(fmt::format("blocks of {} threads: multiples of {} up to {} can be launched", call.threads, kWarp,
                           kMostThreads));
    }
    if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0 || grid.x > kMostBlocksX || grid.y > kMostBlocks ||
        grid.z > kMostBlocks) {
        refuse(fmt::format("a grid of {} x {} x {} blocks: at least 1 and at most {} x {} x {} can be launched", grid.x,
                           grid.y, grid.z, kMostBlocksX, kMostBlocks, kMostBlocks));
    }
    const std::int64_t most = SharedMemory::limit(launch.emulation.capability);
    if (call.dynamic_shared_bytes < 0 || call.dynamic_shared_bytes > most) {
        refuse(fmt::format("{} bytes of dynamic shared memory: at most {} on sm_{}", call.dynamic_shared_bytes, most,
                           launch.emulation.capability));
    }
}

}  // namespace

void enqueue(Stream stream, const KernelCall& call) {
    const Lock guard = lock();
    auto launch = std::make_shared<Launch>();
    launch->kernel = demangle(call.type->name());
    launch->call = call;
    launch->emulation = emulation();
    check_limits(*launch);
    launch->parameters = std::make_shared<std::byte[]>(static_cast<std::size_t>(call.parameter_bytes));
    std::memcpy(launch->parameters.get(), call.parameters, static_cast<std::size_t>(call.parameter_bytes));
    enqueue(stream, Task{[launch] { make_block().run(*launch); }});
}

}  // namespace emulated

}  // namespace tessera::simt
