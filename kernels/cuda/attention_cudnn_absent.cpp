#include "core/base/error.h"
#include "kernels/cuda/attention_cudnn.h"

#if __has_include(<cudnn_version.h>)
#include <cudnn_version.h>
#endif

namespace tessera::cuda {

std::unique_ptr<LibraryAttention> make_cudnn_attention(DType /*storage*/, IndexCache& /*indices*/) {
    fail(ExitCode::usage,
         "model.attn_implementation = \"cudnn\": cuDNN's attention is not built in, for CMake did not find both cuDNN "
         "and the headers of cudnn-frontend (-DCUDNN_FRONTEND_INCLUDE=DIRECTORY says where cudnn_frontend.h is); say "
         "\"flash\"");
}

std::string cudnn_version() {
    std::string version;
#ifdef CUDNN_MAJOR
    version = fmt::format(" {}.{}.{}", CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
#endif
    return fmt::format("cuDNN{} (not used: its attention is not built in)", version);
}

}  // namespace tessera::cuda
