#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "core/base/error.h"
#include "kernels/cuda/check_cuda.h"
#include "kernels/cuda/runtime.h"

namespace tessera::simt {
namespace {

std::string version_in_words(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int runtime_version() {
    int version = 0;
    check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
    return version;
}

/// 0 where there is no driver.
int driver_version() {
    int version = 0;
    check_cuda(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return version;
}

int current_device() {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    return device;
}

std::size_t as_size(std::int64_t bytes) {
    return static_cast<std::size_t>(bytes);
}

}  // namespace

int device_count() {
    const int driver = driver_version();
    if (driver == 0) {
        fail(ExitCode::usage, "there is no NVIDIA driver on this machine");
    }
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result == cudaErrorNoDevice) {
        return 0;
    }
    if (result == cudaErrorInsufficientDriver) {
        fail(ExitCode::usage, "the NVIDIA driver is too old: it serves CUDA {}, this build needs {}",
             version_in_words(driver), version_in_words(runtime_version()));
    }
    check_cuda(result, "cudaGetDeviceCount");
    return count;
}

void use_device(int index) {
    check_cuda(cudaSetDevice(index), "cudaSetDevice");
}

DeviceInfo device_info() {
    const int device = current_device();
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    std::array<char, 32> bus{};
    check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "cudaDeviceGetPCIBusId");
    return {.name = properties.name,
            .pci_bus_id = bus.data(),
            .capability = properties.major * 10 + properties.minor,
            .multiprocessors = properties.multiProcessorCount,
            .total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
            .largest_shared = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin)};
}

std::int64_t free_device_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<std::int64_t>(free);
}

std::string runtime_versions() {
    const int driver = driver_version();
    return fmt::format("CUDA {}, driver {}", version_in_words(runtime_version()),
                       driver == 0 ? "none" : "for CUDA " + version_in_words(driver));
}

std::byte* allocate_device(std::int64_t bytes) {
    void* memory = nullptr;
    const cudaError_t result = cudaMalloc(&memory, as_size(bytes));
    if (result == cudaErrorMemoryAllocation) {
        fail(ExitCode::internal, "{} bytes of the GPU's memory are not to be had; {} are free", bytes,
             free_device_bytes());
    }
    check_cuda(result, "cudaMalloc");
    return static_cast<std::byte*>(memory);
}

void free_device(std::byte* memory) noexcept {
    static_cast<void>(cudaFree(memory));
}

std::byte* allocate_pinned(std::int64_t bytes) {
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, as_size(bytes)), "cudaMallocHost");
    return static_cast<std::byte*>(memory);
}

void free_pinned(std::byte* memory) noexcept {
    static_cast<void>(cudaFreeHost(memory));
}

Stream make_stream() {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
}

void destroy_stream(Stream stream) noexcept {
    static_cast<void>(cudaStreamDestroy(stream));
}

void synchronize(Stream stream) {
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void copy_async(void* to, const void* from, std::int64_t bytes, Stream stream) {
    if (bytes == 0) {
        return;
    }
    check_cuda(cudaMemcpyAsync(to, from, as_size(bytes), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

void copy_rows_async(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                     std::int64_t row_bytes, std::int64_t rows, Stream stream) {
    if (to_stride == row_bytes && from_stride == row_bytes) {
        return copy_async(to, from, rows * row_bytes, stream);  // rows may be longer than a stride can be
    }
    check_cuda(cudaMemcpy2DAsync(to, as_size(to_stride), from, as_size(from_stride), as_size(row_bytes), as_size(rows),
                                 cudaMemcpyDefault, stream),
               "cudaMemcpy2DAsync");
}

void zero_async(void* memory, std::int64_t bytes, Stream stream) {
    if (bytes == 0) {
        return;
    }
    check_cuda(cudaMemsetAsync(memory, 0, as_size(bytes), stream), "cudaMemsetAsync");
}

void zero_rows_async(void* memory, std::int64_t stride, std::int64_t row_bytes, std::int64_t rows, Stream stream) {
    check_cuda(cudaMemset2DAsync(memory, as_size(stride), 0, as_size(row_bytes), as_size(rows), stream),
               "cudaMemset2DAsync");
}

Event::Event(bool timed) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    event_ = event;
}

Event::~Event() {
    if (event_ != nullptr) {
        static_cast<void>(cudaEventDestroy(event_));
    }
}

void Event::record(Stream stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
}

void Event::make_wait(Stream stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}

bool Event::passed() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) {
        static_cast<void>(cudaGetLastError());  // no error, and not to be found by whoever looks for one next
        return false;
    }
    check_cuda(result, "cudaEventQuery");
    return true;
}

double Event::seconds_since(const Event& earlier) const {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1000;
}

}  // namespace tessera::simt
