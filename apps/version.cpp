#include <H5public.h>
#include <dnnl.h>
#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/cuda_library.h"
#include "core/communicator.h"

namespace tessera {
namespace {

std::string cuda_versions() {
    try {
        return load_cuda_backend().versions();
    } catch (const Error& error) {
        return error.what();
    }
}

}  // namespace

std::string version_text() {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    H5get_libversion(&major, &minor, &release);
    const dnnl_version_t* dnnl = dnnl_version();
    return fmt::format("tessera {}\noneDNN {}.{}.{}\nHDF5 {}.{}.{}\n{}\n{}", TESSERA_VERSION, dnnl->major, dnnl->minor,
                       dnnl->patch, major, minor, release, MpiSession::library_version(), cuda_versions());
}

}  // namespace tessera
