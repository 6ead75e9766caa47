// From the storage type of a matrix, known when the program runs, to a type of C++.
#pragma once

#include <utility>

#include "core/base/dtype.h"
#include "core/base/error.h"

namespace tessera::cuda {

/// Calls body(S{}) with S the type of `storage`: float, bfloat16 or float16.
template <typename Body>
void with_storage(DType storage, Body&& body) {
    switch (storage) {
        case DType::f32:
            return std::forward<Body>(body)(float{});
        case DType::bf16:
            return std::forward<Body>(body)(bfloat16{});
        case DType::f16:
            return std::forward<Body>(body)(float16{});
        case DType::f64:
            break;
    }
    fail(ExitCode::internal, "the CUDA kernels store f32, bf16 or f16, not {}", name_of(storage));
}

}  // namespace tessera::cuda
