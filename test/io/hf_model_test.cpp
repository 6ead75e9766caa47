#include "io/hf_model.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/hub_cache.h"
#include "test/io/expect_error.h"
#include "test/io/tiny_model.h"

using namespace tessera;
using nlohmann::json;

namespace {

void open_and_check(const std::string& directory) {
    const HfModel model = HfModel::open(directory);
    model.check(make_units(model.config()));
}

void refuse(std::initializer_list<std::string> parts, const std::string& directory,
            ExitCode code = ExitCode::bad_data) {
    expect_error(code, parts, [&directory] { open_and_check(directory); });
}

/// Every parameter of the model has the values of `expected`, as float.
void check_values(const HfModel& model, const TinyModel& expected) {
    for (const Unit& unit : make_units(model.config())) {
        for (const Parameter& parameter : unit.parameters) {
            INFO(parameter.name);
            std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
            model.read(parameter, 0, parameter.elements(), DType::f32, values.data());
            CHECK(values == expected.tensors.at(parameter.name).values);
        }
    }
}

std::string hash_of(const std::string& directory) {
    return HfModel::open(directory).model_hash();
}

/// Sets an environment variable for one test.
class Environment {
  public:
    Environment(const char* name, const std::string& value) : name_(name) {
        const char* old = std::getenv(name);
        old_ = old == nullptr ? "" : old;
        ::setenv(name, value.c_str(), 1);
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;
    ~Environment() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }

  private:
    const char* name_;
    std::string old_;
};

}  // namespace

TEST_CASE("a directory that transformers saved in shards is read value for value") {
    const HfModel model = HfModel::open("data/hf_model/tiny");
    std::ifstream file("data/hf_model/expected.json");
    const json expected = json::parse(file);
    CHECK(model.has_weights());
    CHECK(model.weights_dtype() == DType::bf16);
    CHECK(model.config().family == "qwen2");
    CHECK(model.directory() == "data/hf_model/tiny");
    CHECK(model.warnings().empty());
    const std::vector<Unit> units = make_units(model.config());
    model.check(units);
    std::size_t seen = 0;
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            INFO(parameter.name);
            std::vector<double> values(static_cast<std::size_t>(parameter.elements()));
            model.read(parameter, 0, parameter.elements(), DType::f64, values.data());
            CHECK(values == expected.at(parameter.name).get<std::vector<double>>());
            if (values.size() > 3) {
                model.read(parameter, 2, 1, DType::f64, values.data());
                CHECK(values[0] == expected.at(parameter.name)[2].get<double>());
            }
            ++seen;
        }
    }
    CHECK(seen == expected.size());
}

TEST_CASE("one file, shards, and names without prefix give the same model") {
    const TemporaryDirectory directory;
    const TinyModel tiny;
    tiny.save(directory, "one");
    tiny.save_shards(directory, "three", 3);
    TinyModel bare;
    bare.tensors.clear();
    for (const auto& [name, tensor] : tiny.tensors) {
        bare.tensors[name.starts_with("model.") ? name.substr(6) : name] = tensor;
    }
    bare.save(directory, "bare");
    // An index over a single file of the usual name, as some converters write it.
    tiny.save(directory, "indexed");
    json map = json::object();
    for (const std::string& name : tiny.names()) {
        map[name] = "model.safetensors";
    }
    directory.write("indexed/model.safetensors.index.json", json{{"weight_map", map}}.dump());
    for (const char* name : {"one", "three", "bare", "indexed"}) {
        INFO(name);
        const HfModel model = HfModel::open(directory.path(name));
        model.check(make_units(model.config()));
        check_values(model, tiny);
        CHECK(model.weights_dtype() == DType::f32);
        CHECK(model.model_hash() == hash_of(directory.path("one")));
    }
}

TEST_CASE("tensors that do not fit the configuration are named") {
    const TemporaryDirectory directory;
    const auto spoiled = [&directory](const auto& spoil) {
        TinyModel model;
        spoil(model);
        model.save(directory, "model");
        return directory.path("model");
    };
    const auto rename = [](const char* from, const char* to) {
        return [from, to](TinyModel& model) {
            model.tensors[to] = model.tensors.at(from);
            model.tensors.erase(from);
        };
    };
    refuse({"lacks 1 of", "\"model.layers.1.mlp.up_proj.weight\""},
           spoiled([](TinyModel& m) { m.tensors.erase("model.layers.1.mlp.up_proj.weight"); }));
    refuse({"lacks 1 of", "\"model.norm.weight\" (there is \"model.nrom.weight\")"},
           spoiled(rename("model.norm.weight", "model.nrom.weight")));
    refuse({"has 1 tensors", "\"model.layers.0.self_attn.q_proj.bias\"", "near"},
           spoiled([](TinyModel& m) { m.add("model.layers.0.self_attn.q_proj.bias", {8}); }));
    refuse({"has 9 tensors", "model.layers.2.", "and 5 more"}, spoiled([](TinyModel& m) {
               for (const std::string& name : m.names()) {
                   if (name.starts_with("model.layers.1.")) {
                       m.tensors["model.layers.2." + name.substr(15)] = m.tensors.at(name);
                   }
               }
           }));
    refuse({"\"model.norm.weight\"", "shape [4,2]", "makes it [8]"}, spoiled([](TinyModel& m) {
               m.tensors.at("model.norm.weight").shape = {4, 2};
           }));
    refuse({"model.layers.0.self_attn.k_proj.weight", "shape [8,4]", "makes it [4,8]"}, spoiled([](TinyModel& m) {
               m.tensors.at("model.layers.0.self_attn.k_proj.weight").shape = {8, 4};
           }));
    refuse({"\"model.embed_tokens.weight\"", "shape [11,8]", "makes it [12,8]"},
           spoiled([](TinyModel& m) { m.config["vocab_size"] = 12; }));
    refuse({"\"model.layers.1.mlp.up_proj.weight\"", "I8"},
           spoiled([](TinyModel& m) { m.tensors.at("model.layers.1.mlp.up_proj.weight").dtype = "I8"; }));
    refuse({"tensor \"norm.weight\" is there with and without"}, spoiled([&rename](TinyModel& m) {
               rename("model.embed_tokens.weight", "embed_tokens.weight")(m);
               m.tensors["norm.weight"] = m.tensors.at("model.norm.weight");
           }));
    open_and_check(spoiled([](TinyModel& m) { m.add("model.layers.0.self_attn.rotary_emb.inv_freq", {2}); }));
}

TEST_CASE("the four combinations of the tie flag and a head in the file") {
    const TemporaryDirectory directory;
    const auto saved = [&directory](bool tied, bool head, bool equal, const std::string& head_dtype = "F32") {
        TinyModel model(tied);
        model.tensors.erase("lm_head.weight");
        if (head) {
            model.tensors["lm_head.weight"] = model.tensors.at("model.embed_tokens.weight");
            model.tensors.at("lm_head.weight").dtype = head_dtype;
            model.tensors.at("lm_head.weight").values.back() += equal ? 0.0F : 0.25F;
        }
        model.save(directory, "model");
        return directory.path("model");
    };
    open_and_check(saved(true, false, true));
    const std::string tied_hash = hash_of(directory.path("model"));
    open_and_check(saved(true, true, true));
    CHECK(hash_of(directory.path("model")) == tied_hash);
    open_and_check(saved(true, true, true, "BF16"));
    open_and_check(saved(false, true, true));
    CHECK(hash_of(directory.path("model")) != tied_hash);
    refuse({"tie_word_embeddings = true", "lm_head.weight differs"}, saved(true, true, false));
    refuse({"no lm_head.weight", "tie_word_embeddings"}, saved(false, false, true));
}

TEST_CASE("an index that does not match its shards is refused") {
    const TemporaryDirectory directory;
    const TinyModel tiny;
    json index;
    const auto spoiled = [&](const auto& spoil) {
        index = tiny.save_shards(directory, "model", 2);
        spoil(index);
        directory.write("model/model.safetensors.index.json", index.dump());
        return directory.path("model");
    };
    const auto with_norm_in = [&](const json& shard) {
        return spoiled([&shard](json& i) { i["weight_map"]["model.norm.weight"] = shard; });
    };
    refuse({"9.safetensors is missing", "index.json"}, with_norm_in("9.safetensors"), ExitCode::missing_input);
    for (const char* name : {"../1.safetensors", "/etc/passwd", "a/1.safetensors", "..", ".", "", "a\\b", "a\nb"}) {
        INFO(name);
        refuse({"\"model.norm.weight\"", "not the name of a file"}, with_norm_in(name));
    }
    refuse({"\"model.norm.weight\"", "1, which is not the name"}, with_norm_in(1));
    refuse({"\"model.norm.weight\"", "not the name"}, with_norm_in(std::string("1.safetensors\0", 14)));
    refuse({"tensor \"model.norm.weight\"", "does not name", "stale or not whole"},
           spoiled([](json& i) { i["weight_map"].erase("model.norm.weight"); }));
    const std::string here = tiny.save_shards(directory, "model", 2)["weight_map"]["model.norm.weight"];
    refuse({"tensor \"model.norm.weight\"", "says is in"},
           with_norm_in(here == "1.safetensors" ? "2.safetensors" : "1.safetensors"));
    refuse({"does not hold tensor \"model.layers.2.norm\"", "stale"},
           spoiled([](json& i) { i["weight_map"]["model.layers.2.norm"] = "1.safetensors"; }));
    refuse({"weight_map is empty"}, spoiled([](json& i) { i["weight_map"] = json::object(); }));
    refuse({"weight_map is missing"}, spoiled([](json& i) { i.erase("weight_map"); }));
    refuse({"weight_map holds [], not an object"}, spoiled([](json& i) { i["weight_map"] = json::array(); }));
    refuse({"index.json", "not an object"}, spoiled([](json& i) { i = json::array(); }));
    // A tensor in two shards.
    spoiled([](json&) {});
    directory.write("model/1.safetensors", tiny.file(tiny.names()));
    refuse({"index"}, directory.path("model"));
    // A shard that is cut.
    spoiled([](json&) {});
    const std::string shard = directory.read("model/2.safetensors");
    directory.write("model/2.safetensors", shard.substr(0, shard.size() - 1));
    refuse({"2.safetensors", "truncated"}, directory.path("model"));
    // A whole file beside an index of others.
    spoiled([](json&) {});
    directory.write("model/model.safetensors", tiny.file(tiny.names()));
    refuse({"both model.safetensors and an index", "stale"}, directory.path("model"));
    // JSON that is none, or says things twice.
    directory.write("model/model.safetensors.index.json", "{");
    refuse({"index.json", "not valid JSON"}, directory.path("model"));
    directory.write("model/model.safetensors.index.json",
                    R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})");
    refuse({"index.json", "\"a\"", "twice"}, directory.path("model"));
}

TEST_CASE("a directory without weights can be opened for its configuration") {
    const TemporaryDirectory directory;
    directory.write("model/config.json", TinyModel().config.dump());
    const HfModel model = HfModel::open(directory.path("model"));
    CHECK(!model.has_weights());
    CHECK(model.config().hidden_size == 8);
    refuse({"has no weights", "random"}, directory.path("model"), ExitCode::missing_input);
    directory.write("model/pytorch_model.bin", "x");
    refuse({"pytorch_model.bin", "save_pretrained"}, directory.path("model"), ExitCode::missing_input);
    directory.write("empty/readme", "");
    refuse({"empty has no config.json"}, directory.path("empty"), ExitCode::missing_input);
    directory.write("broken/config.json", "{");
    refuse({"broken/config.json", "not valid JSON"}, directory.path("broken"));
}

TEST_CASE("the hash depends on names, shapes and values alone") {
    const TemporaryDirectory directory;
    const TinyModel tiny;
    tiny.save(directory, "a");
    const std::string hash = hash_of(directory.path("a"));
    CHECK(hash.size() == 32);
    TinyModel stored = tiny;
    for (auto& [name, tensor] : stored.tensors) {
        tensor.dtype = name.find("mlp") != std::string::npos ? "BF16" : "F64";
    }
    stored.save_shards(directory, "b", 4);
    CHECK(hash_of(directory.path("b")) == hash);
    TinyModel frequencies = tiny;
    frequencies.add("model.layers.0.self_attn.rotary_emb.inv_freq", {2});
    frequencies.save(directory, "c");
    CHECK(hash_of(directory.path("c")) == hash);

    TinyModel value = tiny;
    value.tensors.at("model.layers.1.mlp.down_proj.weight").values[47] += 0.015625F;
    value.save(directory, "d");
    CHECK(hash_of(directory.path("d")) != hash);
    TinyModel exchanged = tiny;
    std::swap(exchanged.tensors.at("model.layers.0.mlp.up_proj.weight"),
              exchanged.tensors.at("model.layers.0.mlp.gate_proj.weight"));
    exchanged.save(directory, "e");
    CHECK(hash_of(directory.path("e")) != hash);
    TinyModel shape = tiny;
    shape.tensors.at("model.norm.weight").shape = {2, 4};
    shape.save(directory, "f");
    CHECK(hash_of(directory.path("f")) != hash);
}

TEST_CASE("hub names are found in the local cache") {
    const TemporaryDirectory directory;
    const Environment cache("HF_HUB_CACHE", directory.path("hub"));
    TinyModel().save(directory, "hub/models--org--name/snapshots/0123abc");
    directory.write("hub/models--org--name/refs/main", "0123abc\n");
    directory.write("hub/models--org--name/refs/refs/pr/1", "0123abc");
    directory.write("hub/models--org--name/refs/bad", "../../..");
    const std::string snapshot = directory.path("hub/models--org--name/snapshots/0123abc");
    CHECK(find_model_directory("org/name") == snapshot);
    CHECK(find_model_directory("org/name@main") == snapshot);
    CHECK(find_model_directory("org/name@0123abc") == snapshot);
    CHECK(find_model_directory("org/name@refs/pr/1") == snapshot);
    CHECK(find_model_directory(directory.path()) == directory.path());
    open_and_check("org/name");
    const auto find = [](const std::string& name) { return [name] { static_cast<void>(find_model_directory(name)); }; };
    expect_error(ExitCode::missing_input, {"\"org/other\"", directory.path("hub"), "hf download org/other"},
                 find("org/other"));
    expect_error(ExitCode::missing_input, {"hf download org/name --revision v2"}, find("org/name@v2"));
    expect_error(ExitCode::bad_data, {"refs/bad", "not a commit"}, find("org/name@bad"));
    for (const char* name : {"/no/such/place", "./models", "../x", "a/b/c", "org/..", "org/name@../main", "", "a//b",
                             "org/na me", "org/name@", "~/model", ".hidden"}) {
        INFO(name);
        expect_error(ExitCode::missing_input, {"no such directory"}, find(name));
    }
    directory.write("file", "");
    expect_error(ExitCode::bad_data, {"is a file"}, find(directory.path("file")));
}

TEST_CASE("the cache is where Hugging Face's own variables say") {
    const TemporaryDirectory directory;
    directory.write("home/hub/models--org--name/snapshots/c/config.json", "{}");
    directory.write("home/hub/models--org--name/refs/main", "c");
    directory.write("user/.cache/huggingface/hub/models--one/snapshots/c/config.json", "{}");
    directory.write("user/.cache/huggingface/hub/models--one/refs/main", "c");
    const Environment no_cache("HF_HUB_CACHE", "");
    const Environment no_old_cache("HUGGINGFACE_HUB_CACHE", "");
    const Environment no_xdg("XDG_CACHE_HOME", "");
    const Environment user("HOME", directory.path("user"));
    {
        const Environment home("HF_HOME", directory.path("home"));
        CHECK(find_model_directory("org/name") == directory.path("home/hub/models--org--name/snapshots/c"));
    }
    const Environment no_home("HF_HOME", "");
    CHECK(find_model_directory("one") == directory.path("user/.cache/huggingface/hub/models--one/snapshots/c"));
}
