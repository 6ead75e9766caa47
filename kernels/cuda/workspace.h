// Memory of the device that a caller lends to an operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/error.h"

namespace tessera::cuda {

/// The workspace as elements of T; throws where it is too small for `count` of them. Its alignment must be 16 bytes.
template <typename T>
[[nodiscard]] T* workspace_as(std::span<std::byte> workspace, std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    if (bytes > static_cast<std::int64_t>(workspace.size())) {
        fail(ExitCode::internal, "a CUDA kernel needs {} bytes of workspace, it has {}", bytes, workspace.size());
    }
    return reinterpret_cast<T*>(workspace.data());
}

}  // namespace tessera::cuda
