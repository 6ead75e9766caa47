// Head sizes that there are kernels for, and the tiles of each: such that nothing spills from the registers and a block
// needs at most 99 KiB of shared memory, what sm_89 has. Other head sizes run in the next larger one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/base/error.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plain_sums.h"
#include "kernels/cuda/attention_tensor_cores.h"

namespace tessera::cuda {

inline constexpr int kLargestSharedBytes = 99 << 10;

template <typename S, int D>
struct AttentionSizes {
    using Forward = TensorCores<S, D, (D <= 128 ? 2 : 1), (D <= 96 ? 64 : 32)>;
    using BackwardQueries = TensorCores<S, D, (D <= 64 ? 2 : 1), (D <= 128 ? 32 : 16)>;
    using BackwardKeys = TensorCores<S, D, (D <= 64 ? 2 : 1), (D == 64 || D > 128 ? 16 : 32)>;
    /// Whether the registers hold sums of dk and dv at once.
    static constexpr bool kBothKeyGradients = D <= 128;
};
template <int D>
struct AttentionSizes<float, D> {
    using Forward = PlainSums<D, (D <= 128 ? 4 : 2), 256 / D>;
    using BackwardQueries = PlainSums<D, 256 / D, (D <= 64 ? 2 : 1)>;
    using BackwardKeys = BackwardQueries;
    static constexpr bool kBothKeyGradients = true;
};

/// Calls work(S{}, std::integral_constant<int, D>{}) for the kernels of a storage dtype and head size.
template <typename Work>
void with_attention_size(DType storage, std::int64_t head_dim, const Work& work) {
    const auto with_tensor_cores = [&]<typename S>(S type) {
        if (head_dim <= 32) {
            work(type, std::integral_constant<int, 32>{});
        } else if (head_dim <= 64) {
            work(type, std::integral_constant<int, 64>{});
        } else if (head_dim <= 96) {
            work(type, std::integral_constant<int, 96>{});
        } else if (head_dim <= 128) {
            work(type, std::integral_constant<int, 128>{});
        } else {
            work(type, std::integral_constant<int, 256>{});
        }
    };
    if (head_dim < 1 || head_dim > kLargestAttentionHead) {
        fail(ExitCode::internal, "there is no attention kernel for heads of {} elements, only for up to {}", head_dim,
             kLargestAttentionHead);
    }
    switch (storage) {
        case DType::bf16:
            return with_tensor_cores(bfloat16{});
        case DType::f16:
            return with_tensor_cores(float16{});
        case DType::f32:
            if (head_dim <= 64) {
                work(0.0F, std::integral_constant<int, 64>{});
            } else if (head_dim <= 128) {
                work(0.0F, std::integral_constant<int, 128>{});
            } else {
                work(0.0F, std::integral_constant<int, 256>{});
            }
            return;
        default:
            fail(ExitCode::internal, "there is no attention kernel for {}", name_of(storage));
    }
}

}  // namespace tessera::cuda
