// Sums and maxima over the threads of a warp and of a block, in an order that is always the same.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace tessera::cuda {

struct Sum {
    template <typename T>
    SIMT_DEVICE T operator()(T a, T b) const {
        return a + b;
    }
};
struct Maximum {
    template <typename T>
    SIMT_DEVICE T operator()(T a, T b) const {
        return simt::max(a, b);
    }
};

/// What `lanes` neighbouring lanes (a power of two up to 32, the same in the whole warp) make of their values; every
/// lane of the warp must take part and gets the result of its neighbours.
template <typename Operation, typename T>
SIMT_DEVICE T reduce_lanes(T value, int lanes) {
    for (int bits = lanes / 2; bits > 0; bits /= 2) {
        value = Operation{}(value, simt::shuffle_xor(value, bits));
    }
    return value;
}

/// The same over the kThreads threads of a block; every thread must take part and gets the result. `shared` holds
/// kThreads / 32 values; it may be used again after another barrier.
template <typename Operation, int kThreads, typename T>
SIMT_DEVICE T reduce_block(T value, T* shared) {
    constexpr int kWarps = kThreads / simt::kWarp;
    value = reduce_lanes<Operation>(value, simt::kWarp);
    if (simt::lane() == 0) {
        shared[simt::warp()] = value;
    }
    simt::sync_block();
    T result = shared[0];
    for (int i = 1; i < kWarps; ++i) {
        result = Operation{}(result, shared[i]);
    }
    return result;
}

}  // namespace tessera::cuda
