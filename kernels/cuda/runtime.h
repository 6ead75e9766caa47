// What of the CUDA runtime the host code uses: memory, streams, events. Two implementations: runtime_nvidia.cpp, and
// the emulator of the tests, whose streams do their work only when they must, so that a missing wait shows.
// Every function throws Error(internal) with what the driver says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

struct CUstream_st;
struct CUevent_st;

namespace tessera::simt {

using Stream = CUstream_st*;

struct DeviceInfo {
    std::string name;        // "NVIDIA H200"
    std::string pci_bus_id;  // "0000:1b:00.0"
    int capability = 0;      // 90 for sm_90
    int multiprocessors = 0;
    std::int64_t total_bytes = 0;
    std::int64_t largest_shared = 0;  // bytes that a block may ask for
};

/// Devices that this process may use. Throws where there is no driver, or one too old, and says which.
[[nodiscard]] int device_count();
/// Makes a device the one of the calling thread and of all that is made afterwards.
void use_device(int index);
[[nodiscard]] DeviceInfo device_info();
[[nodiscard]] std::int64_t free_device_bytes();
/// Versions of runtime and driver in words.
[[nodiscard]] std::string runtime_versions();

/// Memory of the device; pinned: of the host, which the device reads and writes. Not initialised.
[[nodiscard]] std::byte* allocate_device(std::int64_t bytes);
void free_device(std::byte* memory) noexcept;
[[nodiscard]] std::byte* allocate_pinned(std::int64_t bytes);
void free_pinned(std::byte* memory) noexcept;

/// Does what it is given in its order.
[[nodiscard]] Stream make_stream();
void destroy_stream(Stream stream) noexcept;
/// Returns when all that was given is done, and throws what went wrong there.
void synchronize(Stream stream);

/// Bytes between any two of device, pinned and other host memory, in the stream's order. Host memory that is not pinned
/// must stay as it is until the copy is done, which may block.
void copy_async(void* to, const void* from, std::int64_t bytes, Stream stream);
/// `rows` rows of `row_bytes` bytes, `to_stride` and `from_stride` bytes apart.
void copy_rows_async(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                     std::int64_t row_bytes, std::int64_t rows, Stream stream);
void zero_async(void* memory, std::int64_t bytes, Stream stream);
void zero_rows_async(void* memory, std::int64_t stride, std::int64_t row_bytes, std::int64_t rows, Stream stream);

/// A point in a stream.
class Event {
  public:
    /// `timed`: for seconds_since().
    explicit Event(bool timed = false);
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&& other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    ~Event();

    /// The point after all that `stream` was given so far.
    void record(Stream stream);
    /// What `stream` is given from now on begins after the point.
    void make_wait(Stream stream) const;
    /// Whether the point is passed. Throws what went wrong before it.
    [[nodiscard]] bool passed() const;
    /// On the device, from a point to this one; both are passed.
    [[nodiscard]] double seconds_since(const Event& earlier) const;

  private:
    CUevent_st* event_ = nullptr;
};

}  // namespace tessera::simt
