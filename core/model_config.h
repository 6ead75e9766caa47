// What a decoder model is made of: the part of a Hugging Face config.json that changes the result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class RopeType : std::uint8_t { standard, linear, llama3, yarn };

/// Rotary position embedding as transformers describes it (rope_parameters / rope_theta + rope_scaling).
struct RopeConfig {
    RopeType type = RopeType::standard;
    double theta = 10000.0;
    double factor = 1.0;            // linear, llama3, yarn
    double low_freq_factor = 1.0;   // llama3
    double high_freq_factor = 4.0;  // llama3
    double beta_fast = 32.0;        // yarn
    double beta_slow = 1.0;         // yarn
    double attention_factor = 1.0;  // yarn: cos and sin are multiplied by it (resolved, see hf_config)
    bool truncate = true;           // yarn
    std::int64_t original_max_position_embeddings = 0;  // llama3, yarn

    bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
    std::string family;  // "llama", "mistral", "qwen2", "qwen3": config.json's model_type
    std::int64_t vocab_size = 0;
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t num_layers = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t max_position_embeddings = 0;
    double rms_norm_eps = 1e-6;
    double initializer_range = 0.02;
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;  // RMSNorm over each head of q and k before rope
    bool tied = false;     // the head's weight is the embedding's
    std::vector<std::int64_t>
        window;  // one a layer: 0 = full attention, else the sliding window (counts the current token)
    RopeConfig rope;

    [[nodiscard]] std::int64_t q_size() const { return num_heads * head_dim; }
    [[nodiscard]] std::int64_t kv_size() const { return num_kv_heads * head_dim; }
    [[nodiscard]] std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

}  // namespace tessera
