#include "apps/cores.h"

#include <hwloc.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/base/checked.h"

namespace tessera {
namespace {

struct TopologyDeleter {
    void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter>;

Topology load_topology() {
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0 || hwloc_topology_load(topology) != 0) {
        fail(ExitCode::internal, "hwloc does not find out what processors this machine has");
    }
    return Topology(topology);
}

/// Open MPI started this process and nobody asked for a binding or a mapping that implies one.
bool bound_by_default() {
    return std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE") != nullptr &&
           std::getenv("OMPI_MCA_hwloc_base_binding_policy") == nullptr &&
           std::getenv("OMPI_MCA_rmaps_base_mapping_policy") == nullptr;
}

/// Processors of each core that this process may run on, in the machine's order.
std::vector<cpu_set_t> allowed_cores(const cpu_set_t& allowed) {
    const Topology topology = load_topology();
    std::vector<cpu_set_t> cores;
    const int count = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE);
    for (int i = 0; i < count; ++i) {
        const hwloc_obj_t core = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_CORE, static_cast<unsigned>(i));
        cpu_set_t processors;
        CPU_ZERO(&processors);
        int bit = -1;
        while ((bit = hwloc_bitmap_next(core->cpuset, bit)) >= 0) {
            if (bit < CPU_SETSIZE && CPU_ISSET(bit, &allowed)) {
                CPU_SET(bit, &processors);
            }
        }
        if (CPU_COUNT(&processors) > 0) {
            cores.push_back(processors);
        }
    }
    return cores;
}

}  // namespace

Cores take_cores(const Communicator::Local& local) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    const bool share = bound_by_default();
    if (share) {
        // The kernel keeps what the container or the batch system allows and takes back only the launcher's binding.
        cpu_set_t all;
        CPU_ZERO(&all);
        for (int i = 0; i < CPU_SETSIZE; ++i) {
            CPU_SET(i, &all);
        }
        sched_setaffinity(0, sizeof all, &all);
    }
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        fail(ExitCode::internal, "sched_getaffinity fails: which processors may this process use?");
    }
    std::vector<cpu_set_t> cores = allowed_cores(allowed);
    const auto total = static_cast<std::int64_t>(cores.size());
    std::int64_t mine = std::max<std::int64_t>(total, 1);
    std::string how = fmt::format("{} of the cores that the launcher gives this rank", total);
    if (share && total > 0) {
        const std::int64_t first = local.rank * total / local.size;
        const std::int64_t end = std::max(first + 1, (local.rank + 1) * total / local.size);
        cpu_set_t own;
        CPU_ZERO(&own);
        for (std::int64_t i = first; i < end; ++i) {
            CPU_OR(&own, &own, &cores[static_cast<std::size_t>(i)]);
        }
        sched_setaffinity(0, sizeof own, &own);
        mine = end - first;
        how = fmt::format("{} of the node's {} cores, shared among {} ranks", mine, total, local.size);
    }
    Cores result{mine, how};
    if (const char* wanted = std::getenv("OMP_NUM_THREADS"); wanted != nullptr && std::atoi(wanted) > 0) {
        result = {std::atoi(wanted), fmt::format("OMP_NUM_THREADS = {}; {}", wanted, how)};
    }
    omp_set_num_threads(narrow<int>(result.threads));
    return result;
}

}  // namespace tessera
