// The CUDA backend of Ops.
#pragma once

#include <memory>

#include "kernels/cuda/streams.h"
#include "kernels/device.h"

namespace tessera::cuda {

/// Operations on the current one of `streams`, which must outlive them. Throws Error(usage) for options that the
/// backend does not have.
[[nodiscard]] std::unique_ptr<Ops> make_cuda_ops(const OpsOptions& options, Streams& streams);

}  // namespace tessera::cuda
