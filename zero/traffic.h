// What a rank has exchanged with the others, by purpose.
#pragma once

#include <array>
#include <cstdint>

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
