#include "apps/open_device.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>

#include "apps/cuda_library.h"
#include "kernels/cpu/cpu_device.h"

namespace tessera {
namespace {

/// What a scheduler or a user sets where a process was given GPUs; empty where none was.
std::string granted_by() {
    for (const char* name :
         std::array{"SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "TESSERA_CUDA_LIBRARY"}) {
        const char* value = std::getenv(name);
        const std::string text = value == nullptr ? "" : value;
        if (!text.empty() && text != "-1" && text != "NoDevFiles") {
            return fmt::format("{}={}", name, text);
        }
    }
    return {};
}

/// NCCL does not start where the file that NCCL_TOPO_FILE names cannot be read; one below /proc/self/fd is of another
/// process. Drops the variable then and says so.
void drop_bad_topology(Console& console) {
    const char* value = std::getenv("NCCL_TOPO_FILE");
    const std::string path = value == nullptr ? "" : value;
    const bool foreign = path.starts_with("/proc/self/fd");
    if (path.empty() || (!foreign && access(path.c_str(), R_OK) == 0)) {
        return;
    }
    unsetenv("NCCL_TOPO_FILE");
    console.warn(fmt::format("NCCL_TOPO_FILE={} is left out: {}", path,
                             foreign ? "it is open in another process" : "the file cannot be read"));
}

}  // namespace

OpenedDevice open_device(const std::string& wanted, std::int64_t local_rank) {
    if (wanted == "cpu") {
        return {make_cpu_device(), ""};
    }
    try {
        return {open_cuda(local_rank), ""};
    } catch (const Error& error) {
        if (wanted == "cuda") {
            throw Error(error.code(), fmt::format("device = \"cuda\": {}", error.what()));
        }
        if (const std::string grant = granted_by(); !grant.empty()) {
            fail(ExitCode::usage,
                 "GPUs were granted to this process ({}), but none can be used: {}; say device = \"cpu\" to compute on "
                 "the CPU all the same",
                 grant, error.what());
        }
        return {make_cpu_device(), error.what()};
    }
}

OpenedDevice open_devices(const std::string& wanted, const Communicator& communicator, Console& console) {
    OpenedDevice opened;
    communicator.agree([&] { opened = open_device(wanted, communicator.local().rank); });
    const std::vector<std::string> kinds = communicator.all_gather(opened.device->kind());
    const std::vector<std::string> places =
        communicator.all_gather(fmt::format("{} on {}", opened.device->description(), host_name()));
    std::map<std::string, std::size_t> users;
    for (std::size_t rank = 0; rank < kinds.size(); ++rank) {
        if (kinds[rank] != kinds[0]) {
            throw AgreedError(ExitCode::disagree,
                              fmt::format("rank {} would compute on {}, rank 0 on {}: say device = \"cpu\" or \"cuda\"",
                                          rank, places[rank], places[0]));
        }
        const auto [other, first] = users.emplace(places[rank], rank);
        if (!first && kinds[rank] != "cpu") {
            throw AgreedError(ExitCode::disagree,
                              fmt::format("ranks {} and {} would both compute on {}: start as many ranks on a node as "
                                          "it has GPUs, and let each see its own",
                                          other->second, rank, places[rank]));
        }
    }
    if (opened.device->kind() == "cuda") {
        drop_bad_topology(console);
    }
    return opened;
}

FreeMemory free_memory_of(const Device& device, std::int64_t ranks) {
    const std::optional<std::int64_t> own = device.free_bytes();
    return own ? FreeMemory{*own, fmt::format("free on {}", device.description())} : free_memory(ranks);
}

FreeMemory least_free_memory(const Device& device, const Communicator& communicator) {
    return least_of_all(free_memory_of(device, communicator.local().size), communicator);
}

}  // namespace tessera
