#include "apps/named_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr std::int64_t kPiece = 1 << 18;  // elements read at once

}  // namespace

NamedWeights weights_of(std::shared_ptr<const HfModel> model) {
    std::vector<Unit> units = make_units(model->config());
    model->check(units);
    return {model->directory(), std::move(units),
            [model](const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) {
                model->read(parameter, first, count, dtype, to);
            }};
}

NamedWeights weights_of(std::shared_ptr<ShardedCheckpoint> checkpoint) {
    return {checkpoint->info().path, checkpoint->units(),
            [checkpoint, read = checkpoint->parameters()](const Parameter& parameter, std::int64_t first,
                                                          std::int64_t count, DType dtype,
                                                          void* to) { read(parameter, first, count, dtype, to); }};
}

void for_each_piece(const NamedWeights& weights, const Parameter& parameter,
                    const std::function<void(std::int64_t first, const std::vector<float>& values)>& visit) {
    std::vector<float> values;
    for (std::int64_t first = 0; first < parameter.elements(); first += kPiece) {
        values.resize(static_cast<std::size_t>(std::min(kPiece, parameter.elements() - first)));
        weights.read(parameter, first, static_cast<std::int64_t>(values.size()), DType::f32, values.data());
        visit(first, values);
    }
}

std::string WeightPlace::text() const {
    return name.empty() ? "" : fmt::format("{}[{}]", name, fmt::join(index, ", "));
}

WeightPlace place_of(const Parameter& parameter, std::int64_t element) {
    if (parameter.shape.size() == 2) {
        return {parameter.name, {element / parameter.cols(), element % parameter.cols()}};
    }
    return {parameter.name, {element}};
}

WeightSummary summarize(const NamedWeights& weights) {
    WeightSummary summary;
    double squares = 0;
    for (const Unit& unit : weights.units) {
        for (const Parameter& parameter : unit.parameters) {
            summary.parameters += parameter.elements();
            if (parameter.elements() > summary.largest_count) {
                summary.largest_count = parameter.elements();
                summary.largest_parameter = parameter.name;
            }
            for_each_piece(weights, parameter, [&](std::int64_t first, const std::vector<float>& values) {
                for (std::size_t i = 0; i < values.size(); ++i) {
                    const double value = static_cast<double>(values[i]);
                    const std::int64_t element = first + static_cast<std::int64_t>(i);
                    if (!std::isfinite(value)) {
                        if (summary.non_finite++ == 0) {
                            summary.first_non_finite = place_of(parameter, element);
                        }
                        continue;
                    }
                    squares += value * value;
                    if (std::abs(value) > summary.largest_value) {
                        summary.largest_value = std::abs(value);
                        summary.largest_place = place_of(parameter, element);
                    }
                }
            });
        }
    }
    summary.norm = std::sqrt(squares);
    return summary;
}

}  // namespace tessera
