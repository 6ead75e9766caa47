// For tests of kernels: what the emulator reports of one.
#pragma once

#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "kernels/cuda/simt.h"
#include "test/simt/emulator.h"

namespace tessera::simt {

/// What a kernel for tests says of its blocks.
template <int threads>
struct OfThreads {
    static constexpr int kThreads = threads;
    static constexpr int kMinBlocks = 0;
};

/// Whether kernels of this file are compiled with the callbacks, so that their own accesses to memory are seen. Words
/// are checked in any case, except for races.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kChecked = true;
#else
inline constexpr bool kChecked = false;
#endif

/// Orders in which a kernel must do the same, and be reported alike.
inline std::array<Emulation, 5> all_orders() {
    return {Emulation{.order = Order::forward}, Emulation{.order = Order::reverse},
            Emulation{.order = Order::random, .seed = 1}, Emulation{.order = Order::random, .seed = 2},
            Emulation{.order = Order::random, .seed = 3}};
}

/// Runs the kernel; "" or what is reported of it.
template <typename Kernel>
std::string report_of(const Kernel& kernel, Grid grid = {}, std::int64_t dynamic_shared_bytes = 0) {
    try {
        launch(nullptr, grid, kernel, dynamic_shared_bytes);
        synchronize(nullptr);
    } catch (const EmulationError& error) {
        return error.what();
    }
    return "";
}

/// The report of a kernel has both texts, in any order of threads and blocks.
template <typename Kernel>
void expect_report(const Kernel& kernel, const std::string& first, const std::string& second = "", Grid grid = {},
                   std::int64_t dynamic_shared_bytes = 0) {
    using Catch::Matchers::Contains;
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK_THAT(report_of(kernel, grid, dynamic_shared_bytes), Contains(first) && Contains(second));
    }
    set_emulation({});
}

}  // namespace tessera::simt
