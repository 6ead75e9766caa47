#include "zero/deepspeed_estimate.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/hf_config.h"
#include "test/io/expect_error.h"

using namespace tessera;
using namespace tessera::deepspeed;

namespace {

/// As DeepSpeed's own estimators print and return it (test/data/tables; goldens of DeepSpeed 0.19.8).
std::ifstream open_table(const std::string& name) {
    std::ifstream file("data/tables/" + name);
    REQUIRE(file);
    return file;
}

/// The number that follows `word` in a line.
std::int64_t number_after(const std::string& line, const std::string& word) {
    const auto at = line.find(word);
    REQUIRE(at != std::string::npos);
    return std::strtoll(line.c_str() + at + word.size(), nullptr, 10);
}

ModelSize size_of_config(const std::string& text) {
    std::vector<std::string> warnings;
    return model_size(make_units(read_model_config(text, "config.json", warnings)));
}

}  // namespace

TEST_CASE("every row of DeepSpeed's estimators is reproduced in bytes") {
    const auto table = nlohmann::json::parse(open_table("memory.json"));
    int checked = 0;
    for (const auto& entry : table.at("cases")) {
        INFO(entry.dump());
        const bool stage3 = entry.at("stage") == 3;
        const ModelSize size{entry.at("total_params"), entry.value("largest_layer_params", std::int64_t{1})};
        const Cluster cluster{entry.at("gpus_per_node"), entry.at("nodes")};
        const double factor = entry.at("additional_buffer_factor");
        const std::vector<Estimate> rows =
            stage3 ? estimate_zero3(size, cluster, factor) : estimate_zero2(size, cluster, factor);
        CHECK(rows.size() == (stage3 ? 6 : 2));
        const auto row = std::ranges::find_if(rows, [&](const Estimate& estimate) {
            return estimate.offload_optimizer == entry.at("offload_optimizer") &&
                   estimate.offload_parameters == entry.value("offload_param", false) &&
                   estimate.zero_init == entry.value("zero_init", false);
        });
        REQUIRE(row != rows.end());
        CHECK(row->gpu_bytes == entry.at("gpu_bytes"));
        // A double that was truncated: the order of its products may cost the last bit, and so one byte.
        CHECK(std::abs(row->cpu_bytes - entry.at("cpu_bytes").get<std::int64_t>()) <= 1);
        ++checked;
    }
    CHECK(checked == 384);
}

TEST_CASE("DeepSpeed's printed tables are reproduced to the character") {
    std::ifstream file = open_table("memory_tables.txt");
    int checked = 0;
    for (std::string title; std::getline(file, title);) {
        std::string expected;
        Cluster cluster;
        for (std::string line; std::getline(file, line) && !line.empty();) {
            expected += line + "\n";
            if (line.starts_with("HW:")) {
                cluster = {number_after(line, line.find("nodes,") != std::string::npos ? "nodes," : "node,"),
                           number_after(line, "Setup with")};
            }
        }
        INFO(title);
        const ModelSize size{number_after(title, "total_params"), number_after(title, "largest_layer_params")};
        CHECK(zero2_table(size, cluster) + zero3_table(size, cluster) == expected);
        ++checked;
    }
    CHECK(checked == 12);
}

TEST_CASE("the numbers that DeepSpeed's documentation gives for T0_3B on one GPU") {
    const ModelSize size{2'783'959'040, 65'798'144};
    const std::string zero3 = zero3_table(size, {1, 1});
    for (const char* line : {"   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n",
                             "   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n",
                             "   62.23GB |   5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n",
                             "   62.23GB |   5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n",
                             "    0.37GB |  46.91GB | offload_param=none, offload_optimizer=none, zero_init=1\n",
                             "   15.56GB |  46.91GB | offload_param=none, offload_optimizer=none, zero_init=0\n"}) {
        CHECK_THAT(zero3, Catch::Contains(line));
    }
    CHECK_THAT(zero2_table(size, {1, 1}), Catch::Contains("   62.23GB |   5.19GB | offload_optimizer=cpu \n"));
    CHECK_THAT(zero2_table(size, {1, 1}), Catch::Contains("   15.56GB |  51.86GB | offload_optimizer=none\n"));
}

TEST_CASE("sizes of models follow from config.json: each storage once, the largest module with its bias") {
    // Llama-2-13B and Qwen2.5-0.5B: as in memory.json.
    ModelSize size = size_of_config(R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 5120,
        "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40, "tie_word_embeddings": false})");
    CHECK(size.parameters == 13'015'864'320);
    CHECK(size.largest_layer == 163'840'000);
    size = size_of_config(R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "tie_word_embeddings": true})");
    CHECK(size.parameters == 494'032'768);
    CHECK(size.largest_layer == 136'134'656);
    // Mistral-7B-v0.1 and Qwen3-0.6B: the counts that their pages give; the embedding is the largest.
    size = size_of_config(R"({"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": false})");
    CHECK(size.parameters == 7'241'732'096);
    CHECK(size.largest_layer == 32'000 * 4096);
    size = size_of_config(R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": true})");
    CHECK(size.parameters == 596'049'920);
    CHECK(size.largest_layer == 151'936 * 1024);
    // A vocabulary so small that a projection of the MLP is larger, which has a bias: 33 x 8 + 33.
    size = size_of_config(R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 33,
        "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_bias": true})");
    CHECK(size.largest_layer == 33 * 8 + 33);
}

TEST_CASE("sizes that cannot be are refused") {
    constexpr auto kHuge = std::numeric_limits<std::int64_t>::max();
    const auto refused = [](const ModelSize& size, const Cluster& cluster, const std::string& word) {
        expect_error(ExitCode::usage, {word}, [&] { static_cast<void>(estimate_zero2(size, cluster)); });
        expect_error(ExitCode::usage, {word}, [&] { static_cast<void>(zero3_table(size, cluster)); });
    };
    refused({0, 0}, {1, 1}, "at least 1");
    refused({-1, 1}, {1, 1}, "at least 1");
    refused({100, 0}, {1, 1}, "at least 1");
    refused({100, 10}, {0, 1}, "at least 1");
    refused({100, 10}, {1, -1}, "at least 1");
    refused({100, 101}, {1, 1}, "cannot have 101");
    refused({kHuge, 1}, {1, 1}, "can be counted");
    refused({1'000'000'000'000, 1}, {1 << 20, 1 << 20}, "can be counted");
    refused({1, 1}, {kHuge, kHuge}, "can be counted");
    // The largest that is not refused stays within 63 bits.
    for (const Cluster& cluster : {Cluster{1, 1}, Cluster{8, 128}}) {
        const std::int64_t gpus = cluster.gpus_per_node * cluster.nodes;
        const ModelSize size{9'100'000'000'000'000'000 / std::max<std::int64_t>(27, 6 * gpus), 1};
        for (const auto& rows :
             {estimate_zero2(size, cluster), estimate_zero3({size.parameters, size.parameters}, cluster)}) {
            for (const Estimate& row : rows) {
                CHECK(row.cpu_bytes > 0);
                CHECK(row.gpu_bytes > 0);
            }
        }
    }
}
