#include "io/hf_rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "io/json.h"
#include "io/json_object.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr double kHuge = 1e12;
constexpr double kTiny = 1e-12;
constexpr std::int64_t kMaxPositions = std::numeric_limits<std::int32_t>::max();

// Keys that some rope type reads. One that this type does not read is left out by transformers too.
constexpr std::array<std::string_view, 12> kRopeKeys = {
    "factor",           "original_max_position_embeddings",
    "low_freq_factor",  "high_freq_factor",
    "beta_fast",        "beta_slow",
    "attention_factor", "mscale",
    "mscale_all_dim",   "truncate",
    "finetuned",        "max_position_embeddings",
};

std::string read_type(const JsonObject& rope) {
    const std::string type = rope.text("rope_type", "");
    const std::string old_type = rope.text("type", "");
    if (!type.empty() && !old_type.empty() && type != old_type) {
        rope.refuse("type", "disagrees with rope_type " + in_quotes(type));
    }
    return !type.empty() ? type : !old_type.empty() ? old_type : "default";
}

double read_theta(const JsonObject& rope, const JsonObject& config) {
    const double outside = config.number("rope_theta", 10000.0, kTiny, kHuge);
    const double theta = rope.number("rope_theta", outside, kTiny, kHuge);
    if (config.has("rope_theta") && theta != outside) {
        config.refuse("rope_theta", fmt::format("disagrees with the rope_theta {} beside the rope type", theta));
    }
    return theta;
}

std::int64_t read_original_length(const JsonObject& rope, const JsonObject& config, std::int64_t max_positions) {
    const char* key = "original_max_position_embeddings";
    const std::int64_t outside = config.integer(key, max_positions, 1, kMaxPositions);
    const std::int64_t length = rope.integer(key, outside, 1, kMaxPositions);
    if (config.has(key) && length != outside) {
        config.refuse(key, fmt::format("disagrees with the {} beside the rope type", length));
    }
    return length;
}

void read_llama3(const JsonObject& rope, RopeConfig& result) {
    for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
        rope.require(key);
    }
    result.factor = rope.number("factor", 1.0, kTiny, kHuge);
    result.low_freq_factor = rope.number("low_freq_factor", 1.0, kTiny, kHuge);
    result.high_freq_factor = rope.number("high_freq_factor", 4.0, kTiny, kHuge);
    if (result.high_freq_factor <= result.low_freq_factor) {
        rope.refuse("high_freq_factor", fmt::format("must be above low_freq_factor {}", result.low_freq_factor));
    }
}

/// The factor that cos and sin are multiplied by, from the growth in length.
double yarn_attention_factor(const JsonObject& rope, double factor) {
    const auto growth = [factor](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0; };
    const double mscale = rope.number("mscale", 0.0, 0.0, kHuge);
    const double mscale_all_dim = rope.number("mscale_all_dim", 0.0, 0.0, kHuge);
    // Only both together count; one alone leaves the factor of the paper.
    const double computed = mscale > 0 && mscale_all_dim > 0 ? growth(mscale) / growth(mscale_all_dim) : growth(1.0);
    return rope.number("attention_factor", computed, kTiny, kHuge);
}

void read_yarn(const JsonObject& rope, RopeConfig& result, std::int64_t max_positions) {
    if (!rope.present("factor")) {
        rope.require("factor");
    }
    const double length = static_cast<double>(result.original_max_position_embeddings);
    result.factor = rope.number("factor", static_cast<double>(max_positions) / length, kTiny, kHuge);
    result.attention_factor = yarn_attention_factor(rope, result.factor);
    // transformers takes 0 for "not given".
    const double beta_fast = rope.number("beta_fast", 0.0, 0.0, kHuge);
    const double beta_slow = rope.number("beta_slow", 0.0, 0.0, kHuge);
    result.beta_fast = beta_fast > 0 ? beta_fast : 32.0;
    result.beta_slow = beta_slow > 0 ? beta_slow : 1.0;
    if (result.beta_fast < result.beta_slow) {
        rope.refuse("beta_fast", fmt::format("must be at least beta_slow {}", result.beta_slow));
    }
    if (result.theta <= 1) {
        rope.refuse("rope_theta", "must be above 1 for yarn");
    }
    if (rope.present("truncate") && !rope.has("truncate")) {
        rope.refuse("truncate", "must be true or false");
    }
    result.truncate = rope.boolean("truncate", true);
}

RopeConfig read_dictionary(const JsonObject& rope, const JsonObject& config, std::int64_t max_positions,
                           std::vector<std::string>& warnings) {
    RopeConfig result;
    const std::string type = read_type(rope);
    result.theta = read_theta(rope, config);
    if (rope.number("partial_rotary_factor", 1.0, 0.0, kHuge) != 1.0) {
        rope.refuse("partial_rotary_factor", "only rotation of whole heads (1) is supported");
    }
    if (type == "linear") {
        result.type = RopeType::linear;
        rope.require("factor");
        result.factor = rope.number("factor", 1.0, kTiny, kHuge);
    } else if (type == "llama3") {
        result.type = RopeType::llama3;
        result.original_max_position_embeddings = read_original_length(rope, config, max_positions);
        read_llama3(rope, result);
    } else if (type == "yarn") {
        result.type = RopeType::yarn;
        result.original_max_position_embeddings = read_original_length(rope, config, max_positions);
        read_yarn(rope, result, max_positions);
    } else if (type != "default") {
        rope.refuse(rope.has("rope_type") ? "rope_type" : "type",
                    "this rope type is not supported; default, linear, llama3 and yarn are");
    }
    for (const std::string& key : rope.unread()) {
        if (rope.value(key.c_str()).is_null() || key == "finetuned") {
            continue;
        }
        if (std::find(kRopeKeys.begin(), kRopeKeys.end(), key) == kRopeKeys.end()) {
            rope.refuse(key, "this rope key is not known, so what it changes is not supported");
        }
        warnings.push_back(fmt::format("{}: {} = {} is not used by rope type {}", config.path(), key,
                                       shown(rope.value(key.c_str())), in_quotes(type)));
    }
    return result;
}

/// One dictionary for each type of layer is accepted where all are the same.
const json& without_layer_types(const json& rope, const JsonObject& config, const char* key) {
    const json* first = nullptr;
    for (const auto& [name, value] : rope.items()) {
        if (!value.is_object()) {
            continue;
        }
        if (first != nullptr && *first != value) {
            config.refuse(key, "rope that differs between types of layers is not supported");
        }
        first = &value;
    }
    if (first != nullptr &&
        std::any_of(rope.begin(), rope.end(), [](const json& value) { return !value.is_object(); })) {
        config.refuse(key, "rope that differs between types of layers is not supported");
    }
    return first != nullptr ? *first : rope;
}

}  // namespace

RopeConfig read_rope(const JsonObject& config, std::int64_t max_position_embeddings,
                     std::vector<std::string>& warnings) {
    if (config.number("partial_rotary_factor", 1.0, 0.0, kHuge) != 1.0) {
        config.refuse("partial_rotary_factor", "only rotation of whole heads (1) is supported");
    }
    static_cast<void>(config.present("original_max_position_embeddings"));  // read by two of the types only
    std::vector<RopeConfig> found;
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
        const json& value = config.value(key);
        if (value.is_null() || (value.is_object() && value.empty())) {
            continue;
        }
        if (!value.is_object()) {
            config.refuse(key, "must be an object");
        }
        const JsonObject rope(without_layer_types(value, config, key), config.path(), std::string(key) + ".");
        found.push_back(read_dictionary(rope, config, max_position_embeddings, warnings));
    }
    if (found.empty()) {
        RopeConfig plain;
        plain.theta = config.number("rope_theta", plain.theta, kTiny, kHuge);
        return plain;
    }
    if (found.size() == 2 && !(found[0] == found[1])) {
        config.refuse("rope_scaling", "disagrees with rope_parameters; keep the one that is right");
    }
    return found[0];
}

}  // namespace tessera
