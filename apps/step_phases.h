// Where the time of a step goes.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

/// Seconds. `gather` and `reduce` are parts of the passes: how long they waited for other ranks.
struct StepPhases {
    double data = 0;       // rows read and put together
    double forward = 0;    // up to the final norm
    double backward = 0;   // head with its loss, and everything back to the embedding
    double gather = 0;     // waiting for parameters: gathered (stage 3), or new ones that are still on their way
    double reduce = 0;     // waiting for the exchange of gradients
    double optimizer = 0;  // update; without overlap_comm also the new parameters to all

    [[nodiscard]] std::array<std::pair<std::string_view, double>, 6> named() const {
        return {{{"data", data},
                 {"forward", forward},
                 {"backward", backward},
                 {"gather", gather},
                 {"reduce", reduce},
                 {"optimizer", optimizer}}};
    }
    [[nodiscard]] std::string in_words() const {
        std::string text;
        for (const auto& [name, seconds] : named()) {
            text += fmt::format("{}{} {:.3f} s", text.empty() ? "" : "  ", name, seconds);
        }
        return text;
    }
};

}  // namespace tessera
