#include "apps/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace tessera {
namespace {

std::filesystem::path library_path() {
    if (const char* named = std::getenv("TESSERA_CUDA_LIBRARY"); named != nullptr && *named != '\0') {
        return named;
    }
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libtessera_cuda.so";
}

}  // namespace

const CudaBackend& load_cuda_backend() {
    const std::filesystem::path path = library_path();
    if (!std::filesystem::exists(path)) {
        fail(ExitCode::usage, "this build has no CUDA: there is no {}", path.string());
    }
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        fail(ExitCode::usage, "the CUDA backend cannot be loaded: {}", dlerror());
    }
    const auto entry = reinterpret_cast<CudaBackendEntry>(dlsym(library, kCudaBackendEntry));
    if (entry == nullptr || entry()->interface != kCudaBackendInterface) {
        fail(ExitCode::usage, "{} is not of this build", path.string());
    }
    return *entry();
}

}  // namespace tessera
