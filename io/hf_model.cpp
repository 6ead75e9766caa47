#include "io/hf_model.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "core/base/error.h"
#include "io/durable_file.h"
#include "io/hf_config.h"
#include "io/hub_cache.h"
#include "io/json.h"
#include "io/json_object.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMaxConfigBytes = 16 << 20;
constexpr std::int64_t kMaxIndexBytes = 256 << 20;
constexpr std::int64_t kChunkElements = 1 << 18;
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

bool is_file(const std::string& path) {
    std::error_code error;
    return fs::is_regular_file(path, error);
}

/// Old files keep the frequencies of rope, which follow from the configuration.
bool is_tolerated(const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq");
}

/// Number of insertions, deletions and exchanges of characters between two names.
std::size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) {
        row[j] = j;
    }
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t exchange = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({exchange, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

/// The nearest of `candidates` as " (<verb> "name")"; empty where none is near.
std::string nearest(const std::string& name, const std::vector<std::string>& candidates, const char* verb) {
    constexpr std::size_t kMostTried = 2000;
    constexpr std::size_t kLongestName = 200;
    const std::string* best = nullptr;
    std::size_t best_distance = name.size() / 3 + 1;
    for (std::size_t i = 0; i < std::min(candidates.size(), kMostTried); ++i) {
        if (candidates[i].size() > kLongestName) {
            continue;
        }
        const std::size_t distance = edit_distance(name, candidates[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = &candidates[i];
        }
    }
    return best == nullptr ? "" : fmt::format(" ({} {})", verb, in_quotes(*best));
}

/// Names for a message, the first few of them.
std::string listed(const std::vector<std::string>& names, const std::vector<std::string>& candidates,
                   const char* verb) {
    constexpr std::size_t kMostShown = 4;
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), kMostShown); ++i) {
        text += (i > 0 ? ", " : "") + in_quotes(names[i]) + nearest(names[i], candidates, verb);
    }
    return names.size() > kMostShown ? text + fmt::format(" and {} more", names.size() - kMostShown) : text;
}

/// A name of a file in the same directory, and nothing else.
bool is_plain_file_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
           std::none_of(name.begin(), name.end(),
                        [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
}

class Xxh128 {
  public:
    Xxh128() : state_(XXH3_createState()) {
        if (state_ == nullptr) {
            throw std::bad_alloc();
        }
        XXH3_128bits_reset(state_.get());
    }
    void update(const void* data, std::size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
    [[nodiscard]] XXH128_canonical_t digest() const {
        XXH128_canonical_t bytes;
        XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state_.get()));
        return bytes;
    }

  private:
    struct Free {
        void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
    };
    std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace

HfModel HfModel::open(const std::string& model_name) {
    HfModel model;
    model.directory_ = find_model_directory(model_name);
    const std::string path = model.directory_ + "/config.json";
    if (!is_file(path)) {
        fail(ExitCode::missing_input, "{} has no config.json: it is not a Hugging Face model directory",
             model.directory_);
    }
    model.config_ = read_model_config(read_text_file(path, kMaxConfigBytes), path, model.warnings_);
    model.open_weights();
    return model;
}

void HfModel::open_weights() {
    const std::string single = directory_ + "/model.safetensors";
    const std::string index = directory_ + "/model.safetensors.index.json";
    if (is_file(index)) {
        open_shards(index);
    } else if (is_file(single)) {
        files_.reserve(1);
        add_file("model.safetensors");
    }
    add_missing_prefix();
}

void HfModel::add_file(const std::string& name) {
    // The pointers into a file's table stay valid when files_ grows or the model moves: the table itself stays.
    files_.emplace_back(directory_ + "/" + name);
    for (const TensorInfo& tensor : files_.back().tensors()) {
        const auto [found, is_new] = tensors_.try_emplace(tensor.name, Location{files_.size() - 1, &tensor});
        if (!is_new) {
            fail(ExitCode::bad_data, "tensor {} is both in {} and in {}", in_quotes(tensor.name),
                 files_[found->second.file].path(), files_.back().path());
        }
    }
}

void HfModel::open_shards(const std::string& index_path) {
    const json root = parse_json(read_text_file(index_path, kMaxIndexBytes), index_path);
    const JsonObject index(root, index_path);
    index.require("weight_map");
    const JsonObject map(index.value("weight_map"), index_path, "weight_map.");
    std::unordered_map<std::string, std::string> shard_of;
    std::set<std::string> shards;
    for (const std::string& tensor : map.unread()) {
        const json& shard = map.value(tensor.c_str());
        if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
            fail(ExitCode::bad_data,
                 "{}: tensor {} is said to be in {}, which is not the name of a file in the directory", index_path,
                 in_quotes(tensor), shown(shard));
        }
        shards.insert(shard.get<std::string>());
        shard_of.emplace(tensor, shard.get<std::string>());
    }
    if (shards.empty()) {
        fail(ExitCode::bad_data, "{}: weight_map is empty", index_path);
    }
    if (is_file(directory_ + "/model.safetensors") && !shards.contains("model.safetensors")) {
        fail(ExitCode::bad_data,
             "{} has both model.safetensors and an index of other files: one of them is stale; remove it", directory_);
    }
    for (const std::string& shard : shards) {
        if (!is_file(directory_ + "/" + shard)) {
            fail(ExitCode::missing_input, "{}/{} is missing; the index {} names it", directory_, shard, index_path);
        }
    }
    for (const std::string& shard : shards) {
        add_file(shard);
        for (const TensorInfo& tensor : files_.back().tensors()) {
            const auto entry = shard_of.find(tensor.name);
            if (entry == shard_of.end() || entry->second != shard) {
                fail(ExitCode::bad_data, "{} holds tensor {}, which the index {} {}: the index is stale or not whole",
                     files_.back().path(), in_quotes(tensor.name), index_path,
                     entry == shard_of.end() ? "does not name" : "says is in " + in_quotes(entry->second));
            }
        }
    }
    for (const auto& [tensor, shard] : shard_of) {
        if (!tensors_.contains(tensor)) {
            fail(ExitCode::bad_data,
                 "{}/{} does not hold tensor {}, which the index {} says it does: the index is stale", directory_,
                 shard, in_quotes(tensor), index_path);
        }
    }
}

/// A file saved from the bare decoder (LlamaModel) leaves "model." out of every name.
void HfModel::add_missing_prefix() {
    if (!tensors_.contains("embed_tokens.weight") || tensors_.contains(kEmbedding)) {
        return;
    }
    std::map<std::string, Location> renamed;
    for (const auto& [name, location] : tensors_) {
        const bool own = name == kHead || name.starts_with("model.");
        const bool is_new = renamed.emplace(own ? name : "model." + name, location).second;
        if (!is_new) {
            fail(ExitCode::bad_data, "{}: tensor {} is there with and without \"model.\" before it", directory_,
                 in_quotes(name));
        }
    }
    tensors_ = std::move(renamed);
}

void HfModel::require_weights() const {
    if (has_weights()) {
        return;
    }
    for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
        if (is_file(directory_ + "/" + name)) {
            fail(ExitCode::missing_input,
                 "{} has its weights in {}, which runs code when it is read; save them as safetensors with "
                 "transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)",
                 directory_, name);
        }
    }
    fail(ExitCode::missing_input,
         "{} has no weights (model.safetensors or model.safetensors.index.json); to start from random weights, set "
         "model.init = \"random\"",
         directory_);
}

const HfModel::Location& HfModel::locate(const std::string& name) const {
    require_weights();
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
        fail(ExitCode::bad_data, "{} has no tensor {}", directory_, in_quotes(name));
    }
    return found->second;
}

DType HfModel::weights_dtype() const {
    require_weights();
    std::array<std::int64_t, 4> elements{};
    for (const auto& [name, location] : tensors_) {
        if (const auto dtype = dtype_from_safetensors(location.tensor->dtype_name)) {
            elements.at(static_cast<std::size_t>(*dtype)) += location.tensor->elements;
        }
    }
    const auto most = std::max_element(elements.begin(), elements.end());
    if (*most == 0) {
        fail(ExitCode::bad_data, "{} has no weights of dtype F64, F32, BF16 or F16", directory_);
    }
    return static_cast<DType>(most - elements.begin());
}

void HfModel::check(const std::vector<Unit>& units) const {
    require_weights();
    std::set<std::string> extra;
    for (const auto& [name, location] : tensors_) {
        if (!is_tolerated(name) && !(config_.tied && name == kHead)) {
            extra.insert(name);
        }
    }
    std::vector<std::string> missing;
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            if (extra.erase(parameter.name) == 0) {
                missing.push_back(parameter.name);
                continue;
            }
            const Location& location = locate(parameter.name);
            const TensorInfo& tensor = *location.tensor;
            if (tensor.shape != parameter.shape) {
                fail(ExitCode::bad_data, "{}: tensor {} has shape {}, config.json makes it {}",
                     files_[location.file].path(), in_quotes(parameter.name), shown(tensor.shape),
                     shown(parameter.shape));
            }
            if (!dtype_from_safetensors(tensor.dtype_name)) {
                fail(ExitCode::bad_data, "{}: tensor {} has dtype {}; only F64, F32, BF16 and F16 can be read",
                     files_[location.file].path(), in_quotes(parameter.name), in_quotes(tensor.dtype_name));
            }
        }
    }
    const std::vector<std::string> extras(extra.begin(), extra.end());
    if (missing.size() == 1 && missing[0] == kHead) {
        fail(ExitCode::bad_data,
             "{} has no {}, and config.json does not say tie_word_embeddings = true: the head is missing{}", directory_,
             kHead, extras.empty() ? "; set that if head and embedding share their weight" : "");
    }
    if (!missing.empty()) {
        fail(ExitCode::bad_data, "{} lacks {} of the tensors that config.json asks for: {}", directory_, missing.size(),
             listed(missing, extras, "there is"));
    }
    if (!extras.empty()) {
        std::vector<std::string> names;
        for (const Unit& unit : units) {
            for (const Parameter& parameter : unit.parameters) {
                names.push_back(parameter.name);
            }
        }
        fail(ExitCode::bad_data, "{} has {} tensors that a {} of its config.json does not have: {}", directory_,
             extras.size(), config_.family, listed(extras, names, "near"));
    }
    check_tied_head();
}

void HfModel::check_tied_head() const {
    if (!config_.tied || !tensors_.contains(kHead)) {
        return;
    }
    const Location& head = locate(kHead);
    const Location& embedding = locate(kEmbedding);
    bool equal = head.tensor->shape == embedding.tensor->shape;
    std::vector<double> a(static_cast<std::size_t>(std::min(kChunkElements, embedding.tensor->elements)));
    std::vector<double> b(a.size());
    for (std::int64_t first = 0; equal && first < head.tensor->elements; first += kChunkElements) {
        const std::int64_t count = std::min(kChunkElements, head.tensor->elements - first);
        files_[head.file].read(*head.tensor, first, count, DType::f64, a.data());
        files_[embedding.file].read(*embedding.tensor, first, count, DType::f64, b.data());
        equal = std::equal(a.begin(), a.begin() + count, b.begin(),
                           [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
    }
    if (!equal) {
        fail(ExitCode::bad_data,
             "{}: config.json says tie_word_embeddings = true, but {} differs from {}; set it to false if the head has "
             "weights of its own",
             directory_, kHead, kEmbedding);
    }
}

void HfModel::read(const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) const {
    const Location& location = locate(parameter.name);
    files_[location.file].read(*location.tensor, first, count, dtype, to);
}

std::string HfModel::model_hash() const {
    require_weights();
    Xxh128 whole;
    std::vector<float> values;
    for (const auto& [name, location] : tensors_) {  // sorted by name
        if (is_tolerated(name) || (config_.tied && name == kHead)) {
            continue;
        }
        const TensorInfo& tensor = *location.tensor;
        Xxh128 digest;
        for (std::int64_t first = 0; first < tensor.elements; first += kChunkElements) {
            const std::int64_t count = std::min(kChunkElements, tensor.elements - first);
            values.resize(static_cast<std::size_t>(count));
            files_[location.file].read(tensor, first, count, DType::f32, values.data());
            digest.update(values.data(), values.size() * sizeof(float));
        }
        const auto rank = static_cast<std::int64_t>(tensor.shape.size());
        const XXH128_canonical_t bytes = digest.digest();
        whole.update(name.c_str(), name.size() + 1);
        whole.update(&rank, sizeof(rank));
        whole.update(tensor.shape.data(), tensor.shape.size() * sizeof(std::int64_t));
        whole.update(bytes.digest, sizeof(bytes.digest));
    }
    std::string hex;
    for (const unsigned char byte : whole.digest().digest) {
        hex += fmt::format("{:02x}", byte);
    }
    return hex;
}

}  // namespace tessera
