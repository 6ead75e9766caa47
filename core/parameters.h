// The parameters of a model, in units: embedding, each block, final norm and head. A unit is one flat buffer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/checked.h"
#include "core/model_config.h"

namespace tessera {

/// Parameters (and fused groups of them) start at multiples of so many elements within their unit.
inline constexpr std::int64_t kParameterAlignment = 16;

struct Parameter {
    std::string name;                 // Hugging Face tensor name
    std::vector<std::int64_t> shape;  // as in the file: [out, in] or [n]
    std::int64_t offset = 0;          // elements from the start of the unit
    enum class Init : std::uint8_t { normal, one, zero } init = Init::normal;

    [[nodiscard]] std::int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
    [[nodiscard]] std::int64_t cols() const { return shape.back(); }
    /// Throws bad_data where they are too many to be counted.
    [[nodiscard]] std::int64_t elements() const { return checked_mul(rows(), cols(), "elements of a parameter"); }
};

/// q, k, v (and gate, up) lie one after another without a gap, so that each group is one matrix [sum of outs, in].
/// Gaps between groups, if any, hold zeros.
struct Unit {
    std::string name;
    std::vector<Parameter> parameters;
    std::int64_t elements = 0;  // of the flat buffer, gaps counted
    /// Where the parameters begin that every rank keeps although parameters are shared out: from here to the end.
    std::int64_t resident_from = 0;

    /// The parameter whose name ends in `suffix`; throws if there is none.
    [[nodiscard]] const Parameter& parameter(const std::string& suffix) const;
};

/// Which parameters every rank keeps where parameters are shared out (ZeRO stage 3).
struct Residency {
    std::int64_t largest = -1;   // groups whose parameters have at most so many elements each; -1: none
    std::int64_t multiple = 16;  // the part that is shared out is padded to a multiple of so many elements
};

/// All units in the order of the forward pass: embedding, block 0 ... L-1, head. A tied head has only the final norm.
/// Within a unit the groups that stay resident come last.
[[nodiscard]] std::vector<Unit> make_units(const ModelConfig& config, const Residency& residency = {});

/// Number of parameters, each storage once, gaps not counted.
[[nodiscard]] std::int64_t count_parameters(const std::vector<Unit>& units);

}  // namespace tessera
