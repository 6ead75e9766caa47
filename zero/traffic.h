// What a rank exchanges with the others in a step, as planned, and what it has exchanged, by purpose.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/checked.h"

namespace tessera {

enum class Exchange : std::uint8_t {
    reduce_gradients,    // pieces to their owners
    gather_gradients,    // stage 0: the sums to all
    gather_parameters,   // stage 3: before use
    publish_parameters,  // after the update
};
inline constexpr std::array kExchanges = {Exchange::reduce_gradients, Exchange::gather_gradients,
                                          Exchange::gather_parameters, Exchange::publish_parameters};

[[nodiscard]] constexpr const char* name_of(Exchange exchange) {
    switch (exchange) {
        case Exchange::reduce_gradients:
            return "reduce gradients";
        case Exchange::gather_gradients:
            return "gather gradients";
        case Exchange::gather_parameters:
            return "gather parameters";
        default:
            return "publish parameters";
    }
}

/// Exchanges of one purpose for one unit in a step of one rank; every rank has as many.
struct PlannedExchange {
    Exchange purpose = Exchange::reduce_gradients;
    std::int64_t unit = -1;  // -1: calls for several units
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  // that a rank sends to the others; as many are received

    bool operator==(const PlannedExchange&) const = default;
};
using TrafficPlan = std::vector<PlannedExchange>;

/// Adds to the exchange of the same purpose and unit where there is one.
inline void add(TrafficPlan& plan, const PlannedExchange& more) {
    for (PlannedExchange& one : plan) {
        if (one.purpose == more.purpose && one.unit == more.unit) {
            one.calls += more.calls;
            one.bytes += more.bytes;
            return;
        }
    }
    plan.push_back(more);
}

struct ExchangeTotals {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  // sent to the other ranks; as many are received
    double seconds = 0;      // of the calls themselves
    double waited = 0;       // seconds in which the computing thread waited for them

    ExchangeTotals& operator+=(const ExchangeTotals& other) {
        calls += other.calls;
        bytes += other.bytes;
        seconds += other.seconds;
        waited += other.waited;
        return *this;
    }
};

[[nodiscard]] inline ExchangeTotals operator-(const ExchangeTotals& a, const ExchangeTotals& b) {
    return {a.calls - b.calls, a.bytes - b.bytes, a.seconds - b.seconds, a.waited - b.waited};
}

/// The plan done so many times.
[[nodiscard]] inline TrafficPlan repeated(TrafficPlan plan, std::int64_t times) {
    for (PlannedExchange& one : plan) {
        one.calls = checked_mul(one.calls, times, "calls of a step");
        one.bytes = checked_mul(one.bytes, times, "bytes of a step");
    }
    return plan;
}

[[nodiscard]] inline std::int64_t total_bytes(const TrafficPlan& plan) {
    std::int64_t bytes = 0;
    for (const PlannedExchange& one : plan) {
        bytes = checked_add(bytes, one.bytes, "bytes of a step");
    }
    return bytes;
}

[[nodiscard]] inline ExchangeTotals total(const TrafficPlan& plan, Exchange purpose) {
    ExchangeTotals sum;
    for (const PlannedExchange& one : plan) {
        if (one.purpose == purpose) {
            sum += {one.calls, one.bytes, 0, 0};
        }
    }
    return sum;
}

/// Totals since the start of the run.
class Traffic {
  public:
    [[nodiscard]] ExchangeTotals& operator[](Exchange exchange) { return totals_[static_cast<std::size_t>(exchange)]; }
    [[nodiscard]] const ExchangeTotals& operator[](Exchange exchange) const {
        return totals_[static_cast<std::size_t>(exchange)];
    }
    [[nodiscard]] ExchangeTotals all() const {
        ExchangeTotals sum;
        for (const ExchangeTotals& one : totals_) {
            sum += one;
        }
        return sum;
    }

  private:
    std::array<ExchangeTotals, kExchanges.size()> totals_;
};

}  // namespace tessera
