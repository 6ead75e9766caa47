#include "io/hf_config.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/parameters.h"
#include "core/rope.h"
#include "test/io/expect_error.h"

using namespace tessera;
using nlohmann::json;

namespace {

json load(const std::string& path) {
    std::ifstream file(path);
    REQUIRE(file.good());
    return json::parse(file);
}

ModelConfig read(const json& config) {
    std::vector<std::string> warnings;
    return read_model_config(config.dump(), "config.json", warnings);
}

json tiny_llama() {
    return {{"model_type", "llama"},    {"hidden_size", 48},
            {"intermediate_size", 64},  {"num_hidden_layers", 2},
            {"num_attention_heads", 4}, {"num_key_value_heads", 2},
            {"vocab_size", 101},        {"max_position_embeddings", 512}};
}

/// tiny_llama with these members exchanged or added.
json with(const char* changes, const char* model_type = "llama") {
    json config = tiny_llama();
    config["model_type"] = model_type;
    config.update(json::parse(changes));
    return config;
}

void check_parameters(const ModelConfig& model, const json& expected) {
    const std::vector<Unit> units = make_units(model);
    CHECK(count_parameters(units) == expected["parameter_count"].get<std::int64_t>());
    json found = json::object();
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            if (parameter.name.find(".layers.") == std::string::npos ||
                parameter.name.find(".layers.0.") != std::string::npos) {
                found[parameter.name] = parameter.shape;
            }
        }
    }
    CHECK(found == expected["parameters"]);
}

struct Row {
    json config;
    std::string key;      // in the message, with what follows it
    std::string message;  // also in the message
};

std::vector<Row> refused() {
    const char* both = R"({"rope_theta": 300, "rope_parameters": {"rope_type": "default", "rope_theta": 301}})";
    return {
        // What kind of model it is.
        {with("{}", "gpt2"), "model_type = \"gpt2\"", "llama, mistral, qwen2 and qwen3"},
        {with("{}", "qwen3_moe"), "model_type = \"qwen3_moe\"", "not supported"},
        {with("{}", "LLAMA"), "model_type = \"LLAMA\"", "not supported"},
        {with(R"({"model_type": null})"), "model_type = null", "not supported"},
        {with(R"({"model_type": 7})"), "model_type = 7", "must be a string"},
        {with(R"({"architectures": ["LlamaForSequenceClassification"]})"), "LlamaForSequenceClassification",
         "LlamaForCausalLM"},
        {with(R"({"architectures": ["MistralForCausalLM"]})"), "architectures", "with model_type llama"},
        {with(R"({"architectures": []})"), "architectures = []", "LlamaForCausalLM"},
        {with(R"({"architectures": "LlamaForCausalLM"})"), "architectures", "LlamaForCausalLM"},
        {with(R"({"text_config": {"model_type": "llama"}})"), "text_config", "modalities"},
        {with(R"({"vision_config": {"a": 1}})"), "vision_config", "not supported"},
        {with(R"({"quantization_config": {"quant_method": "gptq"}})"), "quantization_config", "gptq"},
        {with(R"({"num_local_experts": 8})"), "num_local_experts = 8", "not supported"},
        {with(R"({"num_experts": 8})"), "num_experts = 8", "not supported"},
        {with(R"({"moe_layer_freq": 2})"), "moe_layer_freq = 2", "not supported"},
        {with(R"({"is_encoder_decoder": true})"), "is_encoder_decoder = true", "not supported"},
        {with(R"({"per_layer_config": {"0": {"hidden_size": 3}}})"), "per_layer_config", "not supported"},
        {with(R"({"final_logit_softcapping": 30.0})"), "final_logit_softcapping = 30.0", "not supported"},
        {with(R"({"logits_scaling": 8})"), "logits_scaling = 8", "not supported"},
        {with(R"({"is_causal": false})"), "is_causal = false", "causal"},
        {with(R"({"rope_interleaved": true})"), "rope_interleaved = true", "not supported"},
        {with(R"({"hidden_act": "gelu"})"), "hidden_act = \"gelu\"", "silu"},
        {with(R"({"attention_dropout": 0.1})"), "attention_dropout = 0.1", "dropout"},
        {with(R"({"hidden_dropout": 0.5})"), "hidden_dropout = 0.5", "dropout"},
        {with(R"({"resid_pdrop": 0.1})"), "resid_pdrop = 0.1", "dropout"},
        // Sizes.
        {with(R"({"hidden_size": "48"})"), "hidden_size = \"48\"", "whole number from 1"},
        {with(R"({"hidden_size": 48.5})"), "hidden_size = 48.5", "whole number"},
        {with(R"({"hidden_size": 0})"), "hidden_size = 0", "whole number from 1"},
        {with(R"({"hidden_size": [48]})"), "hidden_size = [48]", "whole number"},
        {with(R"({"vocab_size": -1})"), "vocab_size = -1", "whole number from 1"},
        {with(R"({"vocab_size": 4294967296})"), "vocab_size = 4294967296", "to 2147483647"},
        {with(R"({"intermediate_size": 18446744073709551615})"), "intermediate_size = 18446744073709551615", "whole"},
        {with(R"({"num_hidden_layers": 2147483647})"), "num_hidden_layers = 2147483647", "to 10000"},
        {with(R"({"num_hidden_layers": true})"), "num_hidden_layers = true", "whole number"},
        {with(R"({"num_attention_heads": 5})"), "num_attention_heads = 5", "num_key_value_heads"},
        {with(R"({"num_key_value_heads": 3})"), "num_attention_heads = 4", "num_key_value_heads (3)"},
        {with(R"({"hidden_size": 50})"), "hidden_size = 50", "num_attention_heads 4"},
        {with(R"({"head_dim": 11})"), "head_dim = 11", "even"},
        {with(R"({"hidden_size": 36})"), "head_dim", "not 9"},
        {with(R"({"head_dim": null})", "qwen3"), "head_dim = null", "qwen3"},
        {with(R"({"head_dim": 2147483646})"), "num_attention_heads = 4", "too large"},
        {with(R"({"max_position_embeddings": 0})"), "max_position_embeddings = 0", "whole number from 1"},
        {with(R"({"rms_norm_eps": 0})"), "rms_norm_eps = 0", "must be a number"},
        {with(R"({"rms_norm_eps": "1e-5"})"), "rms_norm_eps = \"1e-5\"", "must be a number"},
        {with(R"({"initializer_range": -0.1})"), "initializer_range = -0.1", "must be a number"},
        {with(R"({"tie_word_embeddings": 1})"), "tie_word_embeddings = 1", "true or false"},
        {with(R"({"attention_bias": "no"})"), "attention_bias = \"no\"", "true or false"},
        {with(R"({"attention_bias": true})", "mistral"), "attention_bias = true", "no biases"},
        {with(R"({"mlp_bias": true})", "qwen2"), "mlp_bias = true", "no biases"},
        // kv heads of mistral are 8 where they are not said.
        {json{{"model_type", "mistral"}, {"num_attention_heads", 4}, {"hidden_size", 64}}, "num_attention_heads = 4",
         "(8, the default)"},
        // Windows.
        {with(R"({"sliding_window": 0})", "mistral"), "sliding_window = 0", "whole number from 1"},
        {with(R"({"sliding_window": "7"})", "mistral"), "sliding_window = \"7\"", "whole number"},
        {with(R"({"use_sliding_window": 1})", "qwen2"), "use_sliding_window = 1", "true or false"},
        {with(R"({"layer_types": ["full_attention"]})", "qwen2"), "layer_types", "each of the 2 layers"},
        {with(R"({"layer_types": "full_attention"})", "qwen2"), "layer_types", "each of the 2 layers"},
        {with(R"({"layer_types": ["full_attention", "linear_attention"]})", "qwen2"), "\"linear_attention\"",
         "not supported"},
        {with(R"({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9})", "qwen2"),
         "layer_types", "no sliding window in force"},
        {with(R"({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9})", "mistral"),
         "layer_types", "same attention in all layers"},
        {with(R"({"layer_types": ["full_attention", "sliding_attention"]})"), "layer_types", "no sliding window"},
        // Rope.
        {with(R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})"), "rope_scaling.type = \"dynamic\"",
         "not supported"},
        {with(R"({"rope_scaling": {"rope_type": "longrope"}})"), "rope_scaling.rope_type = \"longrope\"", "yarn are"},
        {with(R"({"rope_parameters": {"rope_type": "new"}})"), "rope_parameters.rope_type = \"new\"", "not supported"},
        {with(R"({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}})"), "rope_scaling.type",
         "disagrees"},
        {with(R"({"rope_scaling": {"rope_type": "linear"}})"), "rope_scaling.factor", "missing"},
        {with(R"({"rope_scaling": {"rope_type": "linear", "factor": "2"}})"), "rope_scaling.factor = \"2\"", "number"},
        {with(R"({"rope_scaling": {"rope_type": "linear", "factor": 0}})"), "rope_scaling.factor = 0", "number"},
        {with(R"({"rope_scaling": {"rope_type": "linear", "factor": -1}})"), "rope_scaling.factor = -1", "number"},
        {with(R"({"rope_scaling": 2})"), "rope_scaling = 2", "object"},
        {with(R"({"rope_theta": 0})"), "rope_theta = 0", "number"},
        {with(R"({"rope_theta": "1e4"})"), "rope_theta = \"1e4\"", "number"},
        {with(both), "rope_theta = 300", "disagrees with the rope_theta 301"},
        {with(R"({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}})"),
         "rope_scaling", "disagrees with rope_parameters"},
        {with(R"({"rope_scaling": {"type": "linear", "factor": 2},
                  "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 50}})"),
         "rope_scaling", "disagrees with rope_parameters"},
        {with(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1}})"),
         "rope_scaling.high_freq_factor", "missing"},
        {with(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})"),
         "high_freq_factor = 4", "above low_freq_factor"},
        {with(R"({"rope_scaling": {"rope_type": "yarn"}})"), "rope_scaling.factor", "missing"},
        {with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "truncate": 1}})"), "truncate = 1",
         "true or false"},
        {with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "truncate": null}})"), "truncate = null",
         "true or false"},
        {with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2}})"),
         "beta_fast = 1", "beta_slow 2"},
        {with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "attention_factor": 0}})"), "attention_factor = 0",
         "number"},
        {with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0}})"),
         "original_max_position_embeddings = 0", "whole number"},
        {with(R"({"original_max_position_embeddings": 64,
                  "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 65}})"),
         "original_max_position_embeddings = 64", "disagrees"},
        {with(R"({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}})"), "mrope_section = [1,2]",
         "not known"},
        {with(R"({"partial_rotary_factor": 0.5})"), "partial_rotary_factor = 0.5", "whole heads"},
        {with(R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})"),
         "rope_parameters.partial_rotary_factor = 0.5", "whole heads"},
        {with(R"({"rope_parameters": {"full_attention": {"rope_type": "default"},
                                      "sliding_attention": {"rope_type": "linear", "factor": 2}}})"),
         "rope_parameters", "differs between types of layers"},
        {with(R"({"rope_parameters": {"full_attention": {"rope_type": "default"}, "rope_theta": 4}})"),
         "rope_parameters", "differs between types of layers"},
    };
}

}  // namespace

TEST_CASE("configurations mean what transformers takes them for") {
    for (const json& test : load("data/hf_config/cases.json")) {
        INFO(test["name"]);
        const json& expected = test["expected"];
        std::vector<std::string> warnings;
        const ModelConfig model = read_model_config(test["config"].dump(), "config.json", warnings);
        CHECK(warnings.empty());
        CHECK(model.family == test["config"]["model_type"].get<std::string>());
        CHECK(model.window == expected["window"].get<std::vector<std::int64_t>>());
        CHECK(model.rms_norm_eps == expected["rms_norm_eps"].get<double>());
        CHECK(model.initializer_range == expected["initializer_range"].get<double>());
        CHECK(model.max_position_embeddings == expected["max_position_embeddings"].get<std::int64_t>());
        CHECK(model.rope.attention_factor == Approx(expected["attention_factor"].get<double>()).epsilon(1e-14));
        const auto frequencies = expected["inverse_frequencies"].get<std::vector<double>>();
        CHECK(static_cast<std::int64_t>(2 * frequencies.size()) == model.head_dim);
        const std::vector<double> found = inverse_frequencies(model.rope, model.head_dim);
        REQUIRE(found.size() == frequencies.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
            // Both in double; pow and log may differ by a few roundings.
            CHECK(found[i] == Approx(frequencies[i]).epsilon(1e-12).margin(0));
        }
        check_parameters(model, expected);
    }
}

TEST_CASE("what is not supported or not right is refused by key and value") {
    const std::vector<Row> rows = refused();
    CHECK(rows.size() > 70);
    for (const Row& row : rows) {
        INFO(row.config.dump());
        expect_error(ExitCode::bad_data, {"config.json: ", row.key, row.message}, [&row] { read(row.config); });
    }
}

TEST_CASE("what is no configuration at all is refused") {
    std::vector<std::string> warnings;
    const auto parse = [&warnings](const std::string& text) {
        return [&warnings, text] { static_cast<void>(read_model_config(text, "config.json", warnings)); };
    };
    expect_error(ExitCode::bad_data, {"config.json", "not valid JSON"}, parse(""));
    expect_error(ExitCode::bad_data, {"config.json", "not an object"}, parse("[]"));
    expect_error(ExitCode::bad_data, {"config.json", "\"hidden_size\"", "twice"},
                 parse(R"({"hidden_size": 1, "hidden_size": 1})"));
    expect_error(ExitCode::bad_data, {"config.json", "deeper"}, parse(std::string(70, '[')));
    expect_error(ExitCode::bad_data, {"config.json", "model_type = null"}, parse("{}"));
}

TEST_CASE("keys without a part in the logits are accepted, strange ones are mentioned") {
    std::vector<std::string> warnings;
    const auto read_with = [&warnings](const char* changes) {
        warnings.clear();
        return read_model_config(with(changes).dump(), "config.json", warnings);
    };
    static_cast<void>(read_with(R"({"use_cache": true, "torch_dtype": "float16", "dtype": "float16",
        "pretraining_tp": 2, "bos_token_id": 1, "eos_token_id": [1, 2], "transformers_version": "4.1",
        "_name_or_path": "x", "attention_dropout": 0.0, "classifier_dropout": 0.1, "quantization_config": null,
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_experts": 0, "logits_scaling": 1.0,
        "rope_interleaved": false, "rope_scaling": null, "use_sliding_window": false, "text_config": null,
        "layer_types": ["full_attention", "full_attention"]})"));
    CHECK(warnings.empty());
    static_cast<void>(read_with(R"({"spinning": 3, "sliding_window": 9})"));
    REQUIRE(warnings.size() == 2);
    CHECK_THAT(warnings[0], Catch::Contains("sliding_window = 9"));
    CHECK_THAT(warnings[1], Catch::Contains("spinning = 3") && Catch::Contains("llama"));
    static_cast<void>(read_with(R"({"rope_scaling": {"rope_type": "default", "factor": 2.0}})"));
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], Catch::Contains("factor = 2.0") && Catch::Contains("default"));
    CHECK(read_with(R"({"hidden_act": "swish"})").num_layers == 2);
}

TEST_CASE("rope that is nested by type of layer is accepted where all types agree") {
    const ModelConfig model = read(with(R"({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2, "rope_theta": 70},
        "sliding_attention": {"rope_type": "linear", "factor": 2, "rope_theta": 70}}})"));
    CHECK(model.rope.type == RopeType::linear);
    CHECK(model.rope.theta == 70);
    CHECK(model.rope.factor == 2);
}
