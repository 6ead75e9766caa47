#include "zero/link_traffic.h"

#include "core/base/checked.h"

namespace tessera {

std::int64_t bytes_leaving_node(const PlannedExchange& exchange, const Topology& topology) {
    if (topology.nodes == 1) {
        return 0;
    }
    if (exchange.purpose != Exchange::reduce_gradients) {
        return exchange.bytes;
    }
    const std::int64_t a_message = exchange.bytes / (topology.ranks() - 1);  // to each rank as many
    const std::int64_t pairs = topology.ranks_per_node * (topology.ranks() - topology.ranks_per_node);
    return checked_mul(a_message, pairs, "bytes of a link");
}

std::int64_t bytes_leaving_node(const TrafficPlan& plan, const Topology& topology) {
    std::int64_t bytes = 0;
    for (const PlannedExchange& exchange : plan) {
        bytes = checked_add(bytes, bytes_leaving_node(exchange, topology), "bytes of a link");
    }
    return bytes;
}

std::int64_t bytes_of_link(const TrafficPlan& plan, const Topology& topology) {
    return topology.nodes > 1 ? bytes_leaving_node(plan, topology) : total_bytes(plan);
}

}  // namespace tessera
