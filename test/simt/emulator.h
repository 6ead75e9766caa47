// The emulator for tests: how it runs kernels, what it counted, and arrays of device memory. The tests of kernels are
// linked a second time for a GPU, where real_gpu.cpp stands in for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/runtime.h"

namespace tessera::simt {

/// What a kernel, or the host code around it, does wrong.
class EmulationError : public Error {
  public:
    explicit EmulationError(const std::string& message) : Error(ExitCode::internal, message) {}
};

/// In which order runnable threads and blocks run, and streams do their work. forward: streams do only what they must;
/// reverse: all other streams go first.
enum class Order { forward, reverse, random };

/// Whether kernels run in the emulator. Not on a GPU: there set_emulation() does nothing, as the hardware chooses the
/// order of threads, and statistics() throws, as nothing is counted.
[[nodiscard]] bool is_emulated();

struct Emulation {
    Order order = Order::forward;
    std::uint64_t seed = 1;     // of Order::random
    int capability = 80;        // whose limits hold: 80, 89, 90
    bool truncate_mma = false;  // sums in mma as the hardware of `capability` does them, else plain fp32
};
/// For what is launched from now on. The first emulation is read from the environment variable TESSERA_EMULATION,
/// for example "order=random,seed=3,capability=90,truncate_mma=1".
void set_emulation(const Emulation& emulation);
[[nodiscard]] const Emulation& emulation();

/// Of all launches since reset_statistics().
struct LaunchStatistics {
    std::int64_t launches = 0;
    std::int64_t blocks = 0;
    std::int64_t meetings = 0;          // barriers and warp operations
    std::int64_t matrix_products = 0;   // mma_16x8x16, once a warp
    std::int64_t shared_conflicts = 0;  // further passes of load_matrix_x4 that bank conflicts cost
};
[[nodiscard]] const LaunchStatistics& statistics();
void reset_statistics();

/// Does all that the streams were given; throws the first thing that went wrong.
void synchronize_all();

/// Device memory that is full of NaNs, to be freed by free_device().
[[nodiscard]] std::byte* allocate_nans(std::int64_t bytes);

/// `count` elements of device memory, of exactly that size (in the emulator between red zones); NaNs at first.
template <typename T>
class DeviceArray {
  public:
    explicit DeviceArray(std::int64_t count)
        : memory_(allocate_nans(count * static_cast<std::int64_t>(sizeof(T)))), count_(count) {}
    explicit DeviceArray(const std::vector<T>& values) : DeviceArray(static_cast<std::int64_t>(values.size())) {
        write(values);
    }
    DeviceArray(DeviceArray&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    DeviceArray& operator=(DeviceArray&& other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~DeviceArray() { free_device(memory_); }

    [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_); }
    [[nodiscard]] std::byte* bytes() const { return memory_; }
    [[nodiscard]] std::int64_t size() const { return count_; }

    /// Copies of the host. Both wait for all streams first.
    void write(std::span<const T> values);
    [[nodiscard]] std::vector<T> read() const;

  private:
    std::byte* memory_;
    std::int64_t count_;
};

/// A stream that is destroyed with its scope.
class OwnStream {
  public:
    OwnStream() : stream_(make_stream()) {}
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    ~OwnStream() { destroy_stream(stream_); }
    // NOLINTNEXTLINE(google-explicit-constructor): it is one
    operator Stream() const { return stream_; }

  private:
    Stream stream_;
};

/// Copies at once, after all streams are done.
void copy_now(void* to, const void* from, std::int64_t bytes);

template <typename T>
void DeviceArray<T>::write(std::span<const T> values) {
    if (static_cast<std::int64_t>(values.size()) != count_) {
        throw EmulationError("a device array is written with another number of elements than it has");
    }
    copy_now(memory_, values.data(), static_cast<std::int64_t>(values.size_bytes()));
}
template <typename T>
std::vector<T> DeviceArray<T>::read() const {
    std::vector<T> values(static_cast<std::size_t>(count_));
    copy_now(values.data(), memory_, count_ * static_cast<std::int64_t>(sizeof(T)));
    return values;
}

}  // namespace tessera::simt
