#include "io/hf_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "io/hf_rope.h"
#include "io/json.h"
#include "io/json_object.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxLayers = 10'000;  // the deepest models have a few hundred

/// What transformers takes for keys that config.json leaves out. 0 stands for "derived".
struct Family {
    std::string_view model_type;
    std::string_view architecture;
    std::int64_t vocab_size;
    std::int64_t intermediate_size;
    std::int64_t kv_heads_when_missing;  // null always means num_attention_heads
    std::int64_t head_dim;
    std::int64_t max_position_embeddings;
    bool window_by_layer;  // use_sliding_window, max_window_layers and layer_types
};

constexpr std::array<Family, 4> kFamilies = {{
    {"llama", "LlamaForCausalLM", 32000, 11008, 0, 0, 2048, false},
    {"mistral", "MistralForCausalLM", 32000, 14336, 8, 0, 131072, false},
    {"qwen2", "Qwen2ForCausalLM", 151936, 22016, 32, 0, 32768, true},
    {"qwen3", "Qwen3ForCausalLM", 151936, 22016, 32, 128, 32768, true},
}};

// Keys that say that the model is more than, or other than, the decoder of its family. Refused unless their value is
// null, false, 0 or empty.
constexpr std::string_view kUnsupported[] = {"quantization_config",
                                             "compression_config",
                                             "text_config",
                                             "vision_config",
                                             "audio_config",
                                             "per_layer_config",
                                             "mlp_layer_types",
                                             "num_experts",
                                             "num_local_experts",
                                             "n_routed_experts",
                                             "num_experts_per_tok",
                                             "moe_intermediate_size",
                                             "shared_expert_intermediate_size",
                                             "attn_logit_softcapping",
                                             "final_logit_softcapping",
                                             "query_pre_attn_scalar",
                                             "is_encoder_decoder",
                                             "add_cross_attention",
                                             "pruned_heads",
                                             "use_bidirectional_attention",
                                             "alibi",
                                             "use_qk_norm",
                                             "qk_layernorm",
                                             "no_rope_layers",
                                             "no_rope_layer_interval",
                                             "parallel_attn",
                                             "use_parallel_residual",
                                             "clip_qkv",
                                             "attention_chunk_size",
                                             "attn_temperature_tuning",
                                             "kv_lora_rank",
                                             "q_lora_rank",
                                             "rope_interleaved",
                                             "rope_interleave",
                                             "lm_head_bias",
                                             "attention_sink"};

// Multipliers of activations or logits: 1 is neutral too.
constexpr std::string_view kMultipliers[] = {"logit_scale",         "logits_scaling",       "embedding_multiplier",
                                             "residual_multiplier", "attention_multiplier", "scale_emb",
                                             "rotary_pct",          "rotary_percentage"};

// Keys without any part in the logits of these families.
constexpr std::string_view kHarmless[] = {"architectures",
                                          "model_type",
                                          "dtype",
                                          "torch_dtype",
                                          "transformers_version",
                                          "_name_or_path",
                                          "name_or_path",
                                          "_commit_hash",
                                          "use_cache",
                                          "pretraining_tp",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "sep_token_id",
                                          "unk_token_id",
                                          "decoder_start_token_id",
                                          "id2label",
                                          "label2id",
                                          "num_labels",
                                          "problem_type",
                                          "finetuning_task",
                                          "task_specific_params",
                                          "output_hidden_states",
                                          "output_attentions",
                                          "return_dict",
                                          "return_dict_in_generate",
                                          "output_scores",
                                          "chunk_size_feed_forward",
                                          "tokenizer_class",
                                          "prefix",
                                          "is_decoder",
                                          "tie_encoder_decoder",
                                          "torchscript",
                                          "use_bfloat16",
                                          "tf_legacy_loss",
                                          "_attn_implementation",
                                          "_attn_implementation_autoset",
                                          "attn_implementation",
                                          "_experts_implementation",
                                          "is_llama_config",
                                          "transformers.js_config",
                                          "unsloth_version",
                                          "unsloth_fixed",
                                          "max_length",
                                          "min_length",
                                          "do_sample",
                                          "early_stopping",
                                          "num_beams",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "length_penalty",
                                          "no_repeat_ngram_size",
                                          "encoder_no_repeat_ngram_size",
                                          "bad_words_ids",
                                          "num_return_sequences",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "remove_invalid_values",
                                          "exponential_decay_length_penalty",
                                          "suppress_tokens",
                                          "begin_suppress_tokens",
                                          "classifier_dropout"};

template <std::size_t n>
bool contains(const std::string_view (&list)[n], std::string_view key) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

/// null, false, 0, "", [] or {}: nothing is switched on.
bool is_neutral(const json& value) {
    return value.is_null() || value == false || (value.is_number() && value.get<double>() == 0) ||
           (value.is_string() && value.get_ref<const std::string&>().empty()) ||
           (value.is_structured() && value.empty());
}

const Family& find_family(const JsonObject& config) {
    if (config.has("text_config")) {
        config.refuse("text_config", "models of several modalities are not supported; give the text model by itself");
    }
    const std::string type = config.text("model_type", "");
    const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                      [&type](const Family& candidate) { return candidate.model_type == type; });
    if (family == kFamilies.end()) {
        config.refuse("model_type", "this model type is not supported; llama, mistral, qwen2 and qwen3 are");
    }
    const json& architectures = config.value("architectures");
    if (!architectures.is_null()) {
        if (!architectures.is_array() || architectures.size() != 1 || !architectures[0].is_string() ||
            architectures[0].get_ref<const std::string&>() != family->architecture) {
            config.refuse("architectures",
                          fmt::format("not supported; {} with model_type {} is", family->architecture, type));
        }
    }
    return *family;
}

void read_sizes(const JsonObject& config, const Family& family, ModelConfig& model) {
    model.vocab_size = config.integer("vocab_size", family.vocab_size, 1, kMaxSize);
    model.hidden_size = config.integer("hidden_size", 4096, 1, kMaxSize);
    model.intermediate_size = config.integer("intermediate_size", family.intermediate_size, 1, kMaxSize);
    model.num_layers = config.integer("num_hidden_layers", 32, 1, kMaxLayers);
    model.num_heads = config.integer("num_attention_heads", 32, 1, kMaxSize);
    const bool missing = !config.present("num_key_value_heads");
    const std::int64_t derived =
        missing && family.kv_heads_when_missing > 0 ? family.kv_heads_when_missing : model.num_heads;
    model.num_kv_heads = config.integer("num_key_value_heads", derived, 1, kMaxSize);
    if (model.num_heads % model.num_kv_heads != 0) {
        config.refuse("num_attention_heads", fmt::format("not a multiple of num_key_value_heads ({}{})",
                                                         model.num_kv_heads, missing ? ", the default" : ""));
    }
    if (family.head_dim > 0 && config.present("head_dim") && !config.has("head_dim")) {
        config.refuse("head_dim", fmt::format("must be a number for {}", family.model_type));
    }
    const bool derive = !config.has("head_dim") && family.head_dim == 0;
    if (derive && model.hidden_size % model.num_heads != 0) {
        config.refuse("hidden_size", fmt::format("not a multiple of num_attention_heads {}", model.num_heads));
    }
    model.head_dim =
        config.integer("head_dim", derive ? model.hidden_size / model.num_heads : family.head_dim, 1, kMaxSize);
    if (model.head_dim % 2 != 0) {
        config.refuse("head_dim", fmt::format("rope needs an even head size, not {}", model.head_dim));
    }
    if (model.q_size() > kMaxSize) {
        config.refuse("num_attention_heads",
                      fmt::format("{} heads of {} are too large", model.num_heads, model.head_dim));
    }
    model.max_position_embeddings =
        config.integer("max_position_embeddings", family.max_position_embeddings, 1, kMaxSize);
}

void read_biases(const JsonObject& config, const Family& family, ModelConfig& model) {
    const bool attention_bias = config.boolean("attention_bias", false);
    const bool mlp_bias = config.boolean("mlp_bias", false);
    if (family.model_type == "qwen2") {
        model.qkv_bias = true;  // always, whatever the configuration says
    } else if (family.model_type == "mistral") {
        if (attention_bias) {
            config.refuse("attention_bias", "mistral has no biases");
        }
    } else {
        model.qkv_bias = attention_bias;
        model.o_bias = attention_bias;
    }
    if (mlp_bias && family.model_type != "llama") {
        config.refuse("mlp_bias", fmt::format("{} has no biases in its MLP", family.model_type));
    }
    model.mlp_bias = mlp_bias;
    model.qk_norm = family.model_type == "qwen3";
}

/// layer_types as booleans, true for a sliding layer; empty where config.json does not have the key.
std::vector<bool> read_layer_types(const JsonObject& config, std::int64_t num_layers) {
    const json& types = config.value("layer_types");
    if (types.is_null()) {
        return {};
    }
    if (!types.is_array() || std::ssize(types) != num_layers) {
        config.refuse("layer_types", fmt::format("must be a list with an entry for each of the {} layers", num_layers));
    }
    std::vector<bool> sliding;
    for (const json& type : types) {
        if (type != "full_attention" && type != "attention" && type != "sliding_attention") {
            config.refuse("layer_types", shown(type) + " is not supported; full_attention and sliding_attention are");
        }
        sliding.push_back(type == "sliding_attention");
    }
    return sliding;
}

void read_windows(const JsonObject& config, const Family& family, ModelConfig& model) {
    const std::vector<bool> sliding = read_layer_types(config, model.num_layers);
    std::int64_t window = 0;
    std::int64_t first = 0;  // layers from here on slide where layer_types does not say
    if (family.window_by_layer) {
        static_cast<void>(config.present("sliding_window"));  // legal, and without effect, where not used
        if (config.boolean("use_sliding_window", false)) {
            const std::int64_t missing = config.present("sliding_window") ? 0 : 4096;
            window = config.integer("sliding_window", missing, 1, kMaxSize);
        }
        first = config.integer("max_window_layers", 28, 0, kMaxSize);
    } else if (family.model_type == "mistral") {
        // Version 0.1 of the configuration left the key out and meant 4096; null means none.
        window = config.integer("sliding_window", config.present("sliding_window") ? 0 : 4096, 1, kMaxSize);
    }
    model.window.assign(static_cast<std::size_t>(model.num_layers), 0);
    for (std::size_t layer = 0; layer < model.window.size(); ++layer) {
        const bool by_default = window > 0 && static_cast<std::int64_t>(layer) >= first;
        const bool slides = sliding.empty() ? by_default : sliding[layer];
        if (slides && window == 0) {
            config.refuse("layer_types",
                          "names sliding_attention, but the configuration has no sliding window in force");
        }
        if (!family.window_by_layer && slides != by_default) {
            config.refuse("layer_types", fmt::format("{} has the same attention in all layers", family.model_type));
        }
        model.window[layer] = slides ? window : 0;
    }
}

void check_other_keys(const JsonObject& config, const Family& family, std::vector<std::string>& warnings) {
    const std::string activation = config.text("hidden_act", "silu");
    if (activation != "silu" && activation != "swish") {
        config.refuse("hidden_act", "this activation is not supported; silu is");
    }
    if (!config.boolean("is_causal", true)) {
        config.refuse("is_causal", "only causal attention is supported");
    }
    for (const std::string& key : config.unread()) {
        const json& value = config.value(key.c_str());
        if (is_neutral(value) || contains(kHarmless, key)) {
            continue;
        }
        if (key.find("dropout") != std::string::npos || key.ends_with("_pdrop")) {
            config.refuse(key, "dropout is not supported; set it to 0");
        }
        if (contains(kMultipliers, key)) {
            if (value != 1.0) {
                config.refuse(key, "not supported");
            }
            continue;
        }
        if (contains(kUnsupported, key) || key.starts_with("moe_")) {
            config.refuse(key, fmt::format("not supported; {} has no such thing", family.model_type));
        }
        warnings.push_back(
            fmt::format("{}: {} = {} is not a key of {} and is left out of account, as transformers does",
                        config.path(), key, shown(value), family.model_type));
    }
}

}  // namespace

ModelConfig read_model_config(const std::string& text, const std::string& path, std::vector<std::string>& warnings) {
    const json root = parse_json(text, path);
    const JsonObject config(root, path);
    const Family& family = find_family(config);
    ModelConfig model;
    model.family = family.model_type;
    read_sizes(config, family, model);
    model.rms_norm_eps = config.number("rms_norm_eps", 1e-6, 1e-30, 1.0);
    model.initializer_range = config.number("initializer_range", 0.02, 0.0, 1.0);
    model.tied = config.boolean("tie_word_embeddings", false);
    read_biases(config, family, model);
    read_windows(config, family, model);
    model.rope = read_rope(config, model.max_position_embeddings, warnings);
    check_other_keys(config, family, warnings);
    return model;
}

}  // namespace tessera
