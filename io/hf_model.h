// A Hugging Face model directory: config.json and safetensors weights, one file or shards with an index.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/model_config.h"
#include "core/parameters.h"
#include "io/safetensors.h"

namespace tessera {

class HfModel {
  public:
    /// Finds the directory (io/hub_cache.h), reads config.json and, where there are weights, their headers. Throws
    /// missing_input or bad_data for what is absent or wrong, an index that does not match its shards included.
    [[nodiscard]] static HfModel open(const std::string& model_name);

    [[nodiscard]] const ModelConfig& config() const { return config_; }
    [[nodiscard]] const std::string& directory() const { return directory_; }
    /// Lines worth showing to the user once.
    [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

    [[nodiscard]] bool has_weights() const { return !tensors_.empty(); }
    /// The dtype of most elements.
    [[nodiscard]] DType weights_dtype() const;

    /// Throws unless the weights are exactly the parameters of `units`: names, shapes, readable dtypes. A tied model
    /// may bring an lm_head that equals its embedding (the two are compared, in pieces).
    void check(const std::vector<Unit>& units) const;

    /// Elements [first, first + count) of a parameter, converted to `dtype`. May be called from several threads.
    void read(const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) const;

    /// 32 hexadecimal digits over names, shapes and values (as float32) of all parameters. Files, shards, order and a
    /// stored dtype that holds the same values do not change it. Reads all weights.
    [[nodiscard]] std::string model_hash() const;

  private:
    struct Location {
        std::size_t file = 0;
        const TensorInfo* tensor = nullptr;
    };

    void open_weights();
    void open_shards(const std::string& index_path);
    void add_file(const std::string& name);
    void add_missing_prefix();
    void require_weights() const;
    void check_tied_head() const;
    [[nodiscard]] const Location& locate(const std::string& name) const;

    std::string directory_;
    ModelConfig config_;
    std::vector<std::string> warnings_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, Location> tensors_;  // by the names that parameters have
};

}  // namespace tessera
