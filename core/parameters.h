// The parameters of a model, in units: embedding, each block, final norm and head. A unit is one flat buffer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model_config.h"

namespace tessera {

/// Parameters (and fused groups of them) start at multiples of so many elements within their unit.
inline constexpr std::int64_t kParameterAlignment = 16;

struct Parameter {
    std::string name;                  // Hugging Face tensor name
    std::vector<std::int64_t> shape;   // as in the file: [out, in] or [n]
    std::int64_t offset = 0;           // elements from the start of the unit
    enum class Init : std::uint8_t { normal, one, zero } init = Init::normal;

    [[nodiscard]] std::int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
    [[nodiscard]] std::int64_t cols() const { return shape.back(); }
    [[nodiscard]] std::int64_t elements() const { return rows() * cols(); }
};

/// q, k, v (and gate, up) lie one after another without a gap, so that each group is one matrix [sum of outs, in].
/// Gaps between groups, if any, hold zeros.
struct Unit {
    std::string name;
    std::vector<Parameter> parameters;
    std::int64_t elements = 0;  // of the flat buffer, gaps counted

    /// The parameter whose name ends in `suffix`; throws if there is none.
    [[nodiscard]] const Parameter& parameter(const std::string& suffix) const;
};

/// All units in the order of the forward pass: embedding, block 0 ... L-1, head. A tied head has only the final norm.
[[nodiscard]] std::vector<Unit> make_units(const ModelConfig& config);

/// Number of parameters, each storage once, gaps not counted.
[[nodiscard]] std::int64_t count_parameters(const std::vector<Unit>& units);

}  // namespace tessera
