#include "apps/plan_report.h"

#include <nlohmann/json.hpp>

#include "apps/console.h"

namespace tessera {

std::string in_words(const TrafficPlan& plan) {
    std::string words;
    for (const Exchange purpose : kExchanges) {
        const ExchangeTotals sum = total(plan, purpose);
        if (sum.calls > 0) {
            words += fmt::format("{}{} {} bytes in {} calls", words.empty() ? "" : ", ", name_of(purpose),
                                 with_separators(sum.bytes), with_separators(sum.calls));
        }
    }
    return words.empty() ? "nothing" : words;
}

nlohmann::ordered_json to_json(const MemoryPlan& plan) {
    auto uses = nlohmann::ordered_json::object();
    for (const MemoryUse& use : plan) {
        uses[use.purpose] = use.bytes;
    }
    return uses;
}

nlohmann::ordered_json to_json(const TrafficPlan& plan, const std::vector<Unit>& units) {
    auto list = nlohmann::ordered_json::array();
    for (const PlannedExchange& one : plan) {
        list.push_back(
            {{"purpose", name_of(one.purpose)}, {"unit", nullptr}, {"calls", one.calls}, {"bytes", one.bytes}});
        if (one.unit >= 0) {
            list.back()["unit"] = units[static_cast<std::size_t>(one.unit)].name;
        }
    }
    return list;
}

}  // namespace tessera
