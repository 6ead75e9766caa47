#include <H5public.h>
#include <dnnl.h>
#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "core/communicator.h"

namespace tessera {

std::string version_text() {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    H5get_libversion(&major, &minor, &release);
    const dnnl_version_t* dnnl = dnnl_version();
    return fmt::format("tessera {}\noneDNN {}.{}.{}\nHDF5 {}.{}.{}\n{}\nno CUDA in this build", TESSERA_VERSION,
                       dnnl->major, dnnl->minor, dnnl->patch, major, minor, release, MpiSession::library_version());
}

}  // namespace tessera
