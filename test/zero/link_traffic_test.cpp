// Against a count of every message of every rank.
#include "zero/link_traffic.h"

#include <catch2/catch.hpp>

using namespace tessera;

TEST_CASE("bytes between nodes are those of the messages from one node's ranks to another's") {
    for (const std::int64_t nodes : {1, 2, 3, 5}) {
        for (const std::int64_t each : {1, 2, 4}) {
            const Topology topology{nodes, each};
            const std::int64_t ranks = topology.ranks();
            CAPTURE(nodes, each);
            constexpr std::int64_t kMessage = 48;
            std::int64_t direct = 0;  // that leave node 0: from each rank to each other
            std::int64_t ring = 0;    // from each rank to the next one, as often as there are others
            for (std::int64_t from = 0; from < each; ++from) {
                for (std::int64_t to = 0; to < ranks; ++to) {
                    direct += to / each != 0 ? kMessage : 0;
                }
                ring += (from + 1) % ranks / each != 0 ? kMessage * (ranks - 1) : 0;
            }
            const std::int64_t bytes = kMessage * (ranks - 1);  // that a rank sends
            CHECK(bytes_leaving_node({Exchange::reduce_gradients, 0, 1, bytes}, topology) == direct);
            for (const Exchange purpose :
                 {Exchange::gather_gradients, Exchange::gather_parameters, Exchange::publish_parameters}) {
                CHECK(bytes_leaving_node({purpose, 0, 1, bytes}, topology) == ring);
            }
        }
    }
}
