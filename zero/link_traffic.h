// How much of a step's exchanges goes over the links between nodes.
#pragma once

#include <cstdint>

#include "zero/traffic.h"

namespace tessera {

/// Ranks [k * ranks_per_node, (k + 1) * ranks_per_node) are those of node k.
struct Topology {
    std::int64_t nodes = 1;
    std::int64_t ranks_per_node = 1;

    [[nodiscard]] std::int64_t ranks() const { return nodes * ranks_per_node; }
};

/// Bytes that a node sends to other nodes; as many come in. Follows Communicator: gradients go from each rank to each
/// other, so that of a rank's ranks() - 1 messages those to other nodes leave; parameters and sums go around a ring, so
/// that of the ranks of a node the last one's leave. All nodes have the same.
[[nodiscard]] std::int64_t bytes_leaving_node(const PlannedExchange& exchange, const Topology& topology);
[[nodiscard]] std::int64_t bytes_leaving_node(const TrafficPlan& plan, const Topology& topology);

/// Bytes over the link that carries most for its speed: a node's to others; of one node, a rank's to the others.
[[nodiscard]] std::int64_t bytes_of_link(const TrafficPlan& plan, const Topology& topology);

}  // namespace tessera
