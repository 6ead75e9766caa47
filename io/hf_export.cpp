#include "io/hf_export.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/durable_file.h"
#include "io/file.h"
#include "io/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMaxConfigBytes = 16 << 20;

const char* torch_name(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return "float64";
        case DType::f32:
            return "float32";
        case DType::bf16:
            return "bfloat16";
        case DType::f16:
            return "float16";
    }
    fail(ExitCode::internal, "a dtype without a name in torch");
}

/// Files of a model directory, beside config.json and the weights, that belong to the model.
bool is_carried_over(const std::string& name) {
    return name.starts_with("tokenizer") || name.starts_with("chat_template") || name == "special_tokens_map.json" ||
           name == "added_tokens.json" || name == "generation_config.json" || name == "vocab.json" ||
           name == "merges.txt" || (name.ends_with(".model") && name.size() > 6);
}

void copy_file(const std::string& from, const std::string& to) {
    const ReadOnlyFile source(from);
    DurableFile target(to);
    source.read_in_pieces([&](std::string_view piece) { target.write(piece); });
    target.close();
}

/// An empty directory, or one that an export could have written: config.json and no directories within.
bool may_be_replaced(const fs::path& directory) {
    if (!fs::is_directory(directory)) {
        return false;
    }
    bool empty = true;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
        empty = false;
        if (entry.is_directory()) {
            return false;
        }
    }
    return empty || fs::exists(directory / "config.json");
}

}  // namespace

HfExport::HfExport(std::string source_directory, std::string out_directory, const std::vector<Unit>& units, DType dtype,
                   bool tied, std::int64_t max_shard_bytes)
    : source_(std::move(source_directory)), out_(std::move(out_directory)), dtype_(dtype), tied_(tied) {
    while (out_.size() > 1 && out_.ends_with('/')) {
        out_.pop_back();
    }
    std::error_code error;
    if (fs::equivalent(source_, out_, error)) {
        fail(ExitCode::cannot_write, "{} is the model that the run came from; export to another directory", out_);
    }
    if (fs::exists(out_) && !may_be_replaced(out_)) {
        fail(ExitCode::cannot_write, "{} is not an earlier export; move it away or export to another directory", out_);
    }
    plan_shards(units, max_shard_bytes);
    temporary_ = fmt::format("{}.tmp-{}", out_, ::getpid());
    fs::remove_all(temporary_, error);
    make_directories(temporary_);
    open_shard();
}

HfExport::~HfExport() {
    writer_.reset();
    if (!finished_) {
        std::error_code error;
        fs::remove_all(temporary_, error);
    }
}

void HfExport::plan_shards(const std::vector<Unit>& units, std::int64_t max_shard_bytes) {
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            const std::int64_t elements = parameter.elements();
            const std::int64_t bytes = checked_mul(elements, size_of(dtype_), parameter.name.c_str());
            if (shards_.empty() || shards_.back().elements * size_of(dtype_) > max_shard_bytes - bytes) {
                shards_.emplace_back();
            }
            shards_.back().tensors.push_back({parameter.name, parameter.shape, dtype_});
            shards_.back().elements += elements;
        }
    }
    if (shards_.empty()) {
        fail(ExitCode::internal, "an export without parameters");
    }
}

std::string HfExport::shard_name(std::size_t shard) const {
    return shards_.size() == 1 ? "model.safetensors"
                               : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards_.size());
}

void HfExport::open_shard() {
    writer_.emplace(temporary_ + "/" + shard_name(current_), shards_[current_].tensors);
    left_ = shards_[current_].elements;
}

void HfExport::write(const Parameter& parameter, DType from, const void* values, std::int64_t count) {
    if (count == 0) {
        return;
    }
    if (left_ == 0) {
        if (current_ + 1 >= shards_.size()) {
            fail(ExitCode::internal, "{}: {} was written after the last parameter", out_, parameter.name);
        }
        writer_->finish();
        ++current_;
        open_shard();
    }
    writer_->write(parameter.name, from, values, count);
    left_ -= count;
}

void HfExport::finish() {
    if (current_ + 1 != shards_.size()) {
        fail(ExitCode::internal, "{}: finished after {} of {} files", out_, current_, shards_.size());
    }
    writer_->finish();
    write_index();
    write_config();
    carry_over();
    sync_directory(temporary_);
    publish();
    finished_ = true;
}

void HfExport::write_index() const {
    if (shards_.size() == 1) {
        return;
    }
    json weight_map = json::object();
    std::int64_t elements = 0;
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
        for (const SafetensorsWriter::Tensor& tensor : shards_[shard].tensors) {
            weight_map[tensor.name] = shard_name(shard);
        }
        elements += shards_[shard].elements;
    }
    const json index = {{"metadata", {{"total_parameters", elements}, {"total_size", elements * size_of(dtype_)}}},
                        {"weight_map", weight_map}};
    write_durably(temporary_ + "/model.safetensors.index.json", index.dump(2) + "\n");
}

void HfExport::write_config() const {
    const std::string path = source_ + "/config.json";
    json config = parse_json(read_text_file(path, kMaxConfigBytes), path);
    if (!config.is_object()) {
        fail(ExitCode::bad_data, "{} does not hold an object", path);
    }
    // transformers 5 writes dtype, 4 wrote torch_dtype, and 5 reads both.
    const bool has_new = config.contains("dtype");
    if (has_new) {
        config["dtype"] = torch_name(dtype_);
    }
    if (!has_new || config.contains("torch_dtype")) {
        config["torch_dtype"] = torch_name(dtype_);
    }
    if (config.contains("tie_word_embeddings") || tied_) {  // false where it is left out
        config["tie_word_embeddings"] = tied_;
    }
    write_durably(temporary_ + "/config.json", config.dump(2) + "\n");
}

void HfExport::carry_over() const {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(source_, error)) {
        const std::string name = entry.path().filename().string();
        if (is_carried_over(name) && entry.is_regular_file(error)) {
            copy_file(entry.path().string(), temporary_ + "/" + name);
        }
    }
    if (error) {
        fail_to_read("read directory", source_, error.value());
    }
}

void HfExport::publish() {
    if (!fs::exists(out_)) {
        replace(temporary_, out_);
        return;
    }
    // The two change places at once; where the file system cannot do that, the old one steps aside for a moment.
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, out_.c_str(), RENAME_EXCHANGE) == 0) {
        sync_directory(directory_of(out_));
        fs::remove_all(temporary_);
        return;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
        fail_to_write(fmt::format("rename {} to", temporary_), out_, errno);
    }
    const std::string old = fmt::format("{}.old-{}", out_, ::getpid());
    replace(out_, old);
    replace(temporary_, out_);
    fs::remove_all(old);
}

}  // namespace tessera
