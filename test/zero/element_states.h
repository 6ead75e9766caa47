// For tests: masters and moments by parameter and element, whatever buckets and ranks they are spread over.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "test/core/mpi_world.h"
#include "zero/model_states.h"

namespace tessera::testing {

/// Of one model, whole on every rank of the world: also on ranks that took no part in its training.
class ElementStates {
  public:
    /// How a rank's states differ from these.
    struct Difference {
        std::int64_t bits = 0;  // number of elements whose bits are others
        double largest = 0;
    };
    using Differences = std::array<Difference, 3>;  // masters, first moments, second moments

    /// All zeros.
    explicit ElementStates(const ModelConfig& config) {
        for (const Unit& unit : make_units(config)) {
            for (const Parameter& parameter : unit.parameters) {
                places_[parameter.name] = elements_;
                elements_ += parameter.elements();
            }
        }
        values_.resize(static_cast<std::size_t>(3 * elements_));
    }

    /// What this rank owns of `states`.
    void set(const ModelStates& states) {
        visit(states, states.partition().owned(states.options().rank),
              [&](std::size_t /*state*/, std::size_t place, float value) { values_[place] = value; });
    }

    /// Brings the ranks' parts together, where every element was set by one rank. Collective over the world.
    void exchange() {
        std::vector<std::int64_t> bits(values_.size());
        std::ranges::transform(values_, bits.begin(), [](float value) { return std::bit_cast<std::uint32_t>(value); });
        world().all_reduce_sum(bits);
        std::ranges::transform(bits, values_.begin(),
                               [](std::int64_t sum) { return std::bit_cast<float>(static_cast<std::uint32_t>(sum)); });
    }

    /// Of everything this rank's optimizer updates.
    [[nodiscard]] Differences differences(const ModelStates& states) const {
        Differences result;
        visit(states, states.ranges(), [&](std::size_t state, std::size_t place, float value) {
            const float expected = values_[place];
            result[state].bits += std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected) ? 0 : 1;
            result[state].largest =
                std::max(result[state].largest, std::abs(static_cast<double>(value) - static_cast<double>(expected)));
        });
        return result;
    }

    /// A parameter's masters in another dtype.
    [[nodiscard]] std::vector<std::byte> masters(const Parameter& parameter, DType dtype) const {
        std::vector<std::byte> result(static_cast<std::size_t>(parameter.elements() * size_of(dtype)));
        convert(dtype, result.data(), DType::f32, &values_[static_cast<std::size_t>(places_.at(parameter.name))],
                parameter.elements());
        return result;
    }

    /// Of the elements of one state.
    [[nodiscard]] double root_mean_square(std::size_t state) const {
        double squares = 0;
        for (std::int64_t i = 0; i < elements_; ++i) {
            const float value = values_[state * static_cast<std::size_t>(elements_) + static_cast<std::size_t>(i)];
            squares += static_cast<double>(value) * static_cast<double>(value);
        }
        return std::sqrt(squares / static_cast<double>(elements_));
    }

  private:
    /// visit(state, place in values_, value)
    template <typename Visit>
    void visit(const ModelStates& states, const std::vector<UnitRange>& ranges, const Visit& visit) const {
        const std::array<const ShardableVector*, 3> vectors{&states.masters(), &states.first_moments(),
                                                            &states.second_moments()};
        for (std::size_t state = 0; state < vectors.size(); ++state) {
            for (const UnitRange& range : ranges) {
                for_each_part(
                    states.units()[static_cast<std::size_t>(range.unit)], range,
                    [&](const Parameter& parameter, std::int64_t first, std::int64_t count, std::int64_t skip) {
                        const auto* values = vectors[state]->at(range, skip, count).as<float>();
                        const std::int64_t place =
                            static_cast<std::int64_t>(state) * elements_ + places_.at(parameter.name) + first;
                        for (std::int64_t i = 0; i < count; ++i) {
                            visit(state, static_cast<std::size_t>(place + i), values[i]);
                        }
                    });
            }
        }
    }

    std::map<std::string, std::int64_t> places_;
    std::int64_t elements_ = 0;
    std::vector<float> values_;  // three times `elements_`
};

}  // namespace tessera::testing
