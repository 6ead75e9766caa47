// cuDNN's attention, through its frontend, as the alternative to attention.h. Two implementations: attention_cudnn.cpp,
// and attention_cudnn_absent.cpp for builds without the frontend, which says so.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/base/view.h"
#include "kernels/cuda/index_cache.h"
#include "kernels/ops.h"

namespace tessera::cuda {

/// The attention of a library. Meaning, shapes and dtypes are those of Ops::attention_forward and
/// Ops::attention_backward, with S in {bf16, f16} and A = f32; matrices lie in device memory, every one may be a column
/// range of a larger matrix; rows of those in S begin at multiples of 16 bytes. The same call gives the same bits.
/// Errors of the library are Error(internal) with its words.
class LibraryAttention {
  public:
    LibraryAttention() = default;
    LibraryAttention(const LibraryAttention&) = delete;
    LibraryAttention& operator=(const LibraryAttention&) = delete;
    virtual ~LibraryAttention() = default;

    /// Bytes of workspace; needs no GPU. Throws Error(usage) for a head size that the library does not take.
    [[nodiscard]] virtual std::int64_t workspace_bytes(const OpsLimits& limits) const = 0;
    /// Lends device memory of that many bytes for good. Throws Error(usage) with the library's reason where it has no
    /// attention within `limits` for this GPU.
    virtual void bind_workspace(std::span<std::byte> memory, const OpsLimits& limits) = 0;

    virtual void forward(simt::Stream stream, Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                         const AttentionShape& shape) = 0;
    virtual void backward(simt::Stream stream, Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q,
                          ConstMatrix k, ConstMatrix v, ConstMatrix out, ConstMatrix lse,
                          const AttentionShape& shape) = 0;
};

/// `indices` takes the batches to the device, in arrays no larger than those of attention_tiles; it must outlive the
/// attention. Throws Error(usage) for storage of other than 16 bits, and where the build has none.
[[nodiscard]] std::unique_ptr<LibraryAttention> make_cudnn_attention(DType storage, IndexCache& indices);
/// cuDNN's version in words, and whether its attention is built in.
[[nodiscard]] std::string cudnn_version();

}  // namespace tessera::cuda
