// A tiny model directory put together by hand: files whose every byte a test can spoil.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "test/io/raw_safetensors.h"
#include "test/io/temporary_directory.h"

struct TinyModel {
    struct Tensor {
        std::vector<std::int64_t> shape;
        std::vector<float> values;
        std::string dtype = "F32";
    };

    nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                             {"model_type", "llama"},
                             {"hidden_size", 8},
                             {"intermediate_size", 6},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", 2},
                             {"num_key_value_heads", 1},
                             {"vocab_size", 11},
                             {"torch_dtype", "float32"}};
    std::map<std::string, Tensor> tensors;

    /// Every parameter of the configuration, with values that float16 and bfloat16 hold exactly.
    explicit TinyModel(bool tied = false) {
        config["tie_word_embeddings"] = tied;
        const std::int64_t h = 8;
        add("model.embed_tokens.weight", {11, h});
        for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
            add(layer + "self_attn.q_proj.weight", {8, h});
            add(layer + "self_attn.k_proj.weight", {4, h});
            add(layer + "self_attn.v_proj.weight", {4, h});
            add(layer + "self_attn.o_proj.weight", {h, 8});
            add(layer + "mlp.gate_proj.weight", {6, h});
            add(layer + "mlp.up_proj.weight", {6, h});
            add(layer + "mlp.down_proj.weight", {h, 6});
            add(layer + "input_layernorm.weight", {h});
            add(layer + "post_attention_layernorm.weight", {h});
        }
        add("model.norm.weight", {h});
        if (!tied) {
            add("lm_head.weight", {11, h});
        }
    }

    void add(const std::string& name, const std::vector<std::int64_t>& shape) {
        std::int64_t count = 1;
        for (const std::int64_t size : shape) {
            count *= size;
        }
        Tensor tensor{shape, {}};
        for (std::int64_t i = 0; i < count; ++i) {
            seed_ = seed_ * 1103515245u + 12345u;
            tensor.values.push_back(static_cast<float>((seed_ >> 16) % 255) / 64.0F - 2.0F);
        }
        tensors[name] = tensor;
    }

    /// A safetensors file of these tensors.
    [[nodiscard]] std::string file(const std::vector<std::string>& names) const {
        nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
        std::string data;
        for (const std::string& name : names) {
            const Tensor& tensor = tensors.at(name);
            const std::size_t begin = data.size();
            for (const float value : tensor.values) {
                if (tensor.dtype == "F32") {
                    data += bytes_of<float>({value});
                } else if (tensor.dtype == "BF16") {
                    data += bytes_of<std::uint16_t>({tessera::bfloat16(value).bits});
                } else if (tensor.dtype == "F64") {
                    data += bytes_of<double>({static_cast<double>(value)});
                } else {
                    data += bytes_of<std::int8_t>({1});  // I8
                }
            }
            header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
        }
        return raw_safetensors(header.dump(), data);
    }

    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> list;
        for (const auto& [name, tensor] : tensors) {
            list.push_back(name);
        }
        return list;
    }

    /// Writes config.json and model.safetensors.
    void save(const TemporaryDirectory& directory, const std::string& folder) const {
        directory.write(folder + "/config.json", config.dump());
        directory.write(folder + "/model.safetensors", file(names()));
    }

    /// Writes config.json, and the tensors in turn into files 1.safetensors, 2.safetensors ... with an index.
    nlohmann::json save_shards(const TemporaryDirectory& directory, const std::string& folder, int shards) const {
        directory.write(folder + "/config.json", config.dump());
        nlohmann::json map = nlohmann::json::object();
        for (int shard = 0; shard < shards; ++shard) {
            std::vector<std::string> list;
            const std::vector<std::string> all = names();
            for (std::size_t i = static_cast<std::size_t>(shard); i < all.size();
                 i += static_cast<std::size_t>(shards)) {
                list.push_back(all[i]);
            }
            const std::string name = std::to_string(shard + 1) + ".safetensors";
            for (const std::string& tensor : list) {
                map[tensor] = name;
            }
            directory.write(folder + "/" + name, file(list));
        }
        const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
        directory.write(folder + "/model.safetensors.index.json", index.dump());
        return index;
    }

  private:
    std::uint32_t seed_ = 1;
};
