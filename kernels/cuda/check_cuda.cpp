#include "kernels/cuda/check_cuda.h"

#include <string_view>

#include "core/base/error.h"

namespace tessera::simt {

void check_cuda(cudaError_t result, const char* call, std::source_location where) {
    if (result == cudaSuccess) {
        return;
    }
    const std::string_view file = where.file_name();
    fail(ExitCode::internal, "{} ({}:{}): {} ({})", call, file.substr(file.find_last_of('/') + 1), where.line(),
         cudaGetErrorString(result), cudaGetErrorName(result));
}

}  // namespace tessera::simt
