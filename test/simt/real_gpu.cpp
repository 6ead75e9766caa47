// What the tests of kernels use of the emulator, on a GPU: its memory, full of NaNs, and copies. Where no GPU can be
// used a test program says why and ends with 77, which CTest takes for "skipped".
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "kernels/cuda/check_cuda.h"
#include "test/simt/emulator.h"

namespace tessera::simt {
namespace {

constexpr int kSkipped = 77;

/// Empty where there is a GPU. One that does not run the kernels is no reason: the tests are to fail.
std::string reason_to_skip() {
    try {
        return device_count() == 0 ? "this process sees no GPU" : "";
    } catch (const Error& error) {
        return error.what();
    }
}

struct SkipWithoutGpu : Catch::TestEventListenerBase {
    using TestEventListenerBase::TestEventListenerBase;

    void testRunStarting(const Catch::TestRunInfo&) override {
        if (const std::string reason = reason_to_skip(); !reason.empty()) {
            fmt::print("skipped: {}\n", reason);
            std::exit(kSkipped);
        }
        fmt::print("on {}\n", device_info().name);
    }
};
CATCH_REGISTER_LISTENER(SkipWithoutGpu)

}  // namespace

bool is_emulated() {
    return false;
}

void set_emulation(const Emulation& /*emulation*/) {}

void reset_statistics() {}

const LaunchStatistics& statistics() {
    throw EmulationError("launches on a GPU are not counted: ask is_emulated() first");
}

void synchronize_all() {
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

std::byte* allocate_nans(std::int64_t bytes) {
    std::byte* memory = allocate_device(bytes);
    // initcheck of compute-sanitizer sees what nobody wrote only where this did not either.
    if (std::getenv("TESSERA_LEAVE_UNINITIALISED") == nullptr && bytes > 0) {
        check_cuda(cudaMemset(memory, 0xff, static_cast<std::size_t>(bytes)), "cudaMemset");
        synchronize_all();
    }
    return memory;
}

void copy_now(void* to, const void* from, std::int64_t bytes) {
    synchronize_all();
    if (bytes > 0) {
        check_cuda(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy");
        synchronize_all();  // memory of the host that is not pinned is read at once, but may be on its way
    }
}

}  // namespace tessera::simt
