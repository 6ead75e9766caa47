#include "io/hf_export.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/hf_model.h"
#include "test/io/expect_error.h"
#include "test/io/tiny_model.h"

using namespace tessera;
using nlohmann::json;

namespace {

/// Streams the values of `model` into an export, a few elements at a time.
void write_all_of(HfExport& out, const std::vector<Unit>& units, const TinyModel& model) {
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            const std::vector<float>& values = model.tensors.at(parameter.name).values;
            for (std::int64_t first = 0; first < parameter.elements(); first += 17) {
                const std::int64_t count = std::min<std::int64_t>(17, parameter.elements() - first);
                out.write(parameter, DType::f32, values.data() + first, count);
            }
        }
    }
}

void export_model(const TemporaryDirectory& directory, const TinyModel& model, const std::string& out, DType dtype,
                  bool tied, std::int64_t max_shard_bytes = HfExport::kMaxShardBytes) {
    const std::vector<Unit> units = make_units(HfModel::open(directory.path("source")).config());
    HfExport target(directory.path("source"), directory.path(out), units, dtype, tied, max_shard_bytes);
    write_all_of(target, units, model);
    target.finish();
}

std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace

TEST_CASE("an export has the values, whatever its dtype and shards") {
    const TemporaryDirectory directory;
    const TinyModel model;  // its values are exact in every dtype
    model.save(directory, "source");
    const std::string hash = HfModel::open(directory.path("source")).model_hash();
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const std::int64_t shard : {HfExport::kMaxShardBytes, std::int64_t{500}, std::int64_t{1}}) {
            INFO(name_of(dtype) << ", shards of " << shard);
            export_model(directory, model, "out", dtype, false, shard);
            const HfModel read = HfModel::open(directory.path("out"));
            read.check(make_units(read.config()));
            CHECK(read.weights_dtype() == dtype);
            CHECK(read.model_hash() == hash);
            CHECK(directory.exists("out/model.safetensors") == (shard > 500));
            CHECK(directory.exists("out/model.safetensors.index.json") == (shard <= 500));
        }
    }
    CHECK(names_in(directory.path()) == std::vector<std::string>{"out", "source"});
}

TEST_CASE("shards are named, indexed and not larger than asked, single tensors aside") {
    const TemporaryDirectory directory;
    const TinyModel model;
    model.save(directory, "source");
    export_model(directory, model, "out", DType::f32, false, 500);
    const json index = json::parse(directory.read("out/model.safetensors.index.json"));
    std::int64_t bytes = 0;
    for (const auto& [name, tensor] : model.tensors) {
        bytes += static_cast<std::int64_t>(tensor.values.size() * 4);
        REQUIRE(directory.exists("out/" + index["weight_map"][name].get<std::string>()));
    }
    CHECK(index["metadata"]["total_size"] == bytes);
    CHECK(index["weight_map"].size() == model.tensors.size());
    CHECK(index["weight_map"]["model.embed_tokens.weight"].get<std::string>().starts_with("model-00001-of-000"));
    for (const auto& entry : std::filesystem::directory_iterator(directory.path("out"))) {
        if (entry.path().extension() == ".safetensors") {
            const SafetensorsFile file(entry.path().string());
            const TensorInfo& last = file.tensors().back();
            CHECK((file.tensors().size() == 1 || last.offset + last.bytes - file.tensors().front().offset <= 500));
        }
    }
}

TEST_CASE("configuration, tokenizer and templates come along, other files do not") {
    const TemporaryDirectory directory;
    TinyModel model;
    model.config["unknown_to_us"] = {{"a", 1.5e-5}};
    model.save(directory, "source");
    const std::vector<std::string> carried = {"added_tokens.json", "chat_template.jinja",     "generation_config.json",
                                              "merges.txt",        "special_tokens_map.json", "spiece.model",
                                              "tokenizer.json",    "tokenizer_config.json",   "vocab.json"};
    for (const std::string& name : carried) {
        directory.write("source/" + name, name + std::string(3'000'000, 'x'));
    }
    directory.write("source/README.md", "x");
    directory.write("source/pytorch_model.bin", "x");
    directory.write("source/tokenizer_directory/file", "x");
    export_model(directory, model, "out", DType::bf16, false);
    std::vector<std::string> expected = carried;
    expected.insert(expected.end(), {"config.json", "model.safetensors"});
    std::sort(expected.begin(), expected.end());
    CHECK(names_in(directory.path("out")) == expected);
    for (const std::string& name : carried) {
        CHECK(directory.read("out/" + name) == directory.read("source/" + name));
    }
    json config = model.config;
    config["torch_dtype"] = "bfloat16";
    CHECK(json::parse(directory.read("out/config.json")) == config);
}

TEST_CASE("config.json says the dtype in the spelling that it had") {
    const TemporaryDirectory directory;
    TinyModel model;
    const auto exported = [&](const json& config) {
        model.config = config;
        model.save(directory, "source");
        export_model(directory, model, "out", DType::f16, false);
        return json::parse(directory.read("out/config.json"));
    };
    json plain = model.config;
    plain.erase("torch_dtype");
    json config = exported(plain);
    CHECK(config["torch_dtype"] == "float16");
    CHECK(!config.contains("dtype"));
    plain["dtype"] = "bfloat16";
    config = exported(plain);
    CHECK(config["dtype"] == "float16");
    CHECK(!config.contains("torch_dtype"));
    plain["torch_dtype"] = "bfloat16";
    config = exported(plain);
    CHECK(config["dtype"] == "float16");
    CHECK(config["torch_dtype"] == "float16");
}

TEST_CASE("a tied model is exported without a head") {
    const TemporaryDirectory directory;
    TinyModel model(true);
    model.tensors["lm_head.weight"] = model.tensors.at("model.embed_tokens.weight");
    model.save(directory, "source");
    export_model(directory, model, "out", DType::f32, true);
    const HfModel read = HfModel::open(directory.path("out"));
    read.check(make_units(read.config()));
    CHECK(read.config().tied);
    CHECK(SafetensorsFile(directory.path("out/model.safetensors")).find("lm_head.weight") == nullptr);
    CHECK(read.model_hash() == HfModel::open(directory.path("source")).model_hash());
}

TEST_CASE("an earlier export is replaced whole, other directories are left alone") {
    const TemporaryDirectory directory;
    const TinyModel model;
    model.save(directory, "source");
    export_model(directory, model, "out", DType::f32, false, 500);
    export_model(directory, model, "out/", DType::f32, false);
    CHECK(names_in(directory.path("out")) == std::vector<std::string>{"config.json", "model.safetensors"});
    std::filesystem::create_directory(directory.path("empty"));
    export_model(directory, model, "empty", DType::f32, false);
    CHECK(directory.exists("empty/model.safetensors"));

    directory.write("notes/letter.txt", "x");
    directory.write("nested/config.json", "{}");
    directory.write("nested/below/file", "x");
    directory.write("file", "x");
    for (const char* name : {"notes", "nested", "file"}) {
        INFO(name);
        expect_error(ExitCode::cannot_write, {name, "not an earlier export"},
                     [&] { export_model(directory, model, name, DType::f32, false); });
    }
    CHECK(directory.exists("notes/letter.txt"));
    expect_error(ExitCode::cannot_write, {"export to another directory"},
                 [&] { export_model(directory, model, "source/.", DType::f32, false); });
    expect_error(ExitCode::cannot_write, {"file/out"},
                 [&] { export_model(directory, model, "file/out", DType::f32, false); });
}

TEST_CASE("an export that is not finished leaves nothing, and the earlier one stays") {
    const TemporaryDirectory directory;
    const TinyModel model;
    model.save(directory, "source");
    export_model(directory, model, "out", DType::f32, false);
    const std::string before = directory.read("out/model.safetensors");
    const std::vector<Unit> units = make_units(HfModel::open(directory.path("source")).config());
    const std::vector<float> zeros(1000);
    {
        HfExport target(directory.path("source"), directory.path("out"), units, DType::bf16, false);
        const Parameter& first = units[0].parameters[0];
        target.write(first, DType::f32, zeros.data(), first.elements() - 1);
        CHECK(names_in(directory.path()).size() == 3);
        expect_error(ExitCode::internal, {"embed_tokens"}, [&] { target.finish(); });
        expect_error(ExitCode::internal, {"norm"},
                     [&] { target.write(units.back().parameter("norm.weight"), DType::f32, zeros.data(), 1); });
        expect_error(ExitCode::internal, {"embed_tokens"}, [&] { target.write(first, DType::f32, zeros.data(), 2); });
    }
    CHECK(names_in(directory.path()) == std::vector<std::string>{"out", "source"});
    CHECK(directory.read("out/model.safetensors") == before);
    HfExport target(directory.path("source"), directory.path("out"), units, DType::f32, false);
    write_all_of(target, units, model);
    expect_error(ExitCode::internal, {"after the last"},
                 [&] { target.write(units[0].parameters[0], DType::f32, zeros.data(), 1); });
}
