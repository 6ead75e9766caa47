#include "zero/deepspeed_estimate.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"

namespace tessera::deepspeed {
namespace {

/// Afterwards nothing in the formulas exceeds 63 bits: per parameter the most are 4 + 18 bytes on a device, and on a
/// node 18, or 4 for each device, times the factor.
void check(const ModelSize& size, const Cluster& cluster, double buffer_factor) {
    if (size.parameters < 1 || size.largest_layer < 1 || cluster.gpus_per_node < 1 || cluster.nodes < 1) {
        fail(ExitCode::usage,
             "an estimate needs at least 1 parameter, 1 in the largest layer, 1 GPU and 1 node, not {}, {}, {} and {}",
             size.parameters, size.largest_layer, cluster.gpus_per_node, cluster.nodes);
    }
    if (size.largest_layer > size.parameters) {
        fail(ExitCode::usage, "the largest layer of a model of {} parameters cannot have {}", size.parameters,
             size.largest_layer);
    }
    const double gpus = static_cast<double>(cluster.gpus_per_node) * static_cast<double>(cluster.nodes);
    const double most =
        static_cast<double>(size.parameters) * std::max(22.0, std::max(18.0, 4 * gpus) * std::max(buffer_factor, 1.0));
    if (!(most < 9.2e18)) {  // a little below 2^63
        fail(ExitCode::usage, "{} parameters on {} nodes of {} GPUs take more bytes than can be counted (2^63)",
             size.parameters, cluster.nodes, cluster.gpus_per_node);
    }
}

/// Bytes of `count` elements on a node. In double and in this order, as the original computes it: its digits are the
/// aim.
std::int64_t host_bytes(std::int64_t count, double bytes_each, double buffer_factor) {
    return static_cast<std::int64_t>(static_cast<double>(count) * bytes_each * buffer_factor);
}

std::string header(const Cluster& cluster, const std::string& model) {
    const auto plural = [](std::int64_t count) { return count > 1 ? "s" : ""; };
    return fmt::format(
        "Estimated memory needed for params, optim states and gradients for a:\n"
        "HW: Setup with {} node{}, {} GPU{} per node.\n"
        "SW: Model with {}.\n"
        "  per CPU  |  per GPU |   Options\n",
        cluster.nodes, plural(cluster.nodes), cluster.gpus_per_node, plural(cluster.gpus_per_node), model);
}

std::string row(const Estimate& estimate, const std::string& choices) {
    constexpr double kGib = 1 << 30;
    return fmt::format(" {:7.2f}GB | {:6.2f}GB | {}\n", static_cast<double>(estimate.cpu_bytes) / kGib,
                       static_cast<double>(estimate.gpu_bytes) / kGib, choices);
}

std::string place(bool offloaded) {
    return offloaded ? "cpu " : "none";
}

std::int64_t millions(std::int64_t count) {
    return count / 1'000'000;
}

}  // namespace

ModelSize model_size(const std::vector<Unit>& units) {
    ModelSize size;
    std::map<std::string, std::int64_t> modules;
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            std::int64_t& module = modules[parameter.name.substr(0, parameter.name.rfind('.'))];
            module = checked_add(module, parameter.elements(), "parameters of a module");
            size.largest_layer = std::max(size.largest_layer, module);
            size.parameters = checked_add(size.parameters, parameter.elements(), "parameters of a model");
        }
    }
    return size;
}

std::vector<Estimate> estimate_zero2(const ModelSize& size, const Cluster& cluster, double buffer_factor) {
    check(size, cluster, buffer_factor);
    const std::int64_t count = size.parameters;
    const std::int64_t gpus = cluster.gpus_per_node * cluster.nodes;
    return {{.offload_optimizer = true,
             .cpu_bytes = host_bytes(count, static_cast<double>(std::max<std::int64_t>(4 * gpus, 16)), buffer_factor),
             .gpu_bytes = 2 * count},
            {.offload_optimizer = false,
             .cpu_bytes = host_bytes(count, static_cast<double>(4 * cluster.gpus_per_node), buffer_factor),
             .gpu_bytes = 2 * count + 18 * count / gpus}};
}

std::vector<Estimate> estimate_zero3(const ModelSize& size, const Cluster& cluster, double buffer_factor) {
    check(size, cluster, buffer_factor);
    const std::int64_t count = size.parameters;
    const std::int64_t gpus = cluster.gpus_per_node * cluster.nodes;
    const std::int64_t gathered = 4 * size.largest_layer;
    const double share = 1.0 / static_cast<double>(cluster.nodes);         // of the states that are spread over nodes
    const double copies = 4 * static_cast<double>(cluster.gpus_per_node);  // a whole fp32 model for each process
    std::vector<Estimate> rows;
    rows.reserve(6);
    const auto add = [&](bool parameters, bool optimizer, std::int64_t gpu_bytes, std::int64_t with_init,
                         std::int64_t without) {
        rows.push_back({parameters, optimizer, true, with_init, gpu_bytes});
        rows.push_back({parameters, optimizer, false, without, gpu_bytes});
    };
    add(true, true, gathered, host_bytes(count, 18 * share, buffer_factor),
        host_bytes(count, std::max(copies, 18 * share), buffer_factor));
    add(false, true, gathered + 2 * count / gpus, host_bytes(count, 16 * share, buffer_factor),
        host_bytes(count, std::max(copies, 16 * share), buffer_factor));
    add(false, false, gathered + 18 * count / gpus, host_bytes(size.largest_layer, copies, buffer_factor),
        host_bytes(count, copies, buffer_factor));
    return rows;
}

std::string zero2_table(const ModelSize& size, const Cluster& cluster) {
    std::string text = header(cluster, fmt::format("{}M total params", millions(size.parameters)));
    for (const Estimate& estimate : estimate_zero2(size, cluster)) {
        text += row(estimate, "offload_optimizer=" + place(estimate.offload_optimizer));
    }
    return text;
}

std::string zero3_table(const ModelSize& size, const Cluster& cluster) {
    std::string text = header(cluster, fmt::format("{}M total params, {}M largest layer params",
                                                   millions(size.parameters), millions(size.largest_layer)));
    for (const Estimate& estimate : estimate_zero3(size, cluster)) {
        text += row(estimate, fmt::format("offload_param={}, offload_optimizer={}, zero_init={:d}",
                                          place(estimate.offload_parameters), place(estimate.offload_optimizer),
                                          estimate.zero_init));
    }
    return text;
}

}  // namespace tessera::deepspeed
