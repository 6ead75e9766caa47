#include "apps/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace tessera {
namespace {

/// Empty: that beside the program.
std::filesystem::path named_library() {
    const char* named = std::getenv("TESSERA_CUDA_LIBRARY");
    return named == nullptr || *named == '\0' ? "" : std::filesystem::absolute(named);
}

std::filesystem::path library_path() {
    const std::filesystem::path named = named_library();
    const std::filesystem::path path =
        named.empty() ? std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libtessera_cuda.so" : named;
    if (!std::filesystem::exists(path)) {
        fail(ExitCode::usage, "{}: there is no {}",
             named.empty() ? "this build has no CUDA" : "TESSERA_CUDA_LIBRARY names no library", path.string());
    }
    return path;
}

/// Whether the library that every NVIDIA driver brings is there.
bool has_driver() {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver != nullptr) {
        dlclose(driver);
    }
    return driver != nullptr;
}

}  // namespace

const CudaBackend& load_cuda_backend() {
    const std::filesystem::path path = library_path();
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

std::unique_ptr<Device> open_cuda(std::int64_t local_rank) {
    static_cast<void>(library_path());
    if (named_library().empty() && !has_driver()) {
        fail(ExitCode::usage, "there is no NVIDIA driver on this machine");
    }
    return load_cuda_backend().open(local_rank);
}

}  // namespace tessera
