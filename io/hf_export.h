// Writes a Hugging Face model directory, one tensor at a time, so that it is there whole or not at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/parameters.h"
#include "io/safetensors.h"

namespace tessera {

class HfExport {
  public:
    static constexpr std::int64_t kMaxShardBytes = 5'000'000'000;  // what the hub recommends

    /// Begins a directory beside `out_directory`. `source_directory` is the model's own: its config.json (with the
    /// dtype and the tie flag brought up to date), tokenizer, generation configuration and chat template are carried
    /// over. Weights beyond `max_shard_bytes` go into several files with an index. Throws cannot_write where
    /// `out_directory` is something else than an earlier export.
    HfExport(std::string source_directory, std::string out_directory, const std::vector<Unit>& units, DType dtype,
             bool tied, std::int64_t max_shard_bytes = kMaxShardBytes);
    HfExport(const HfExport&) = delete;
    HfExport& operator=(const HfExport&) = delete;
    /// Removes what was not finished.
    ~HfExport();

    /// The next `count` elements of `parameter`. Parameters come in the order of the units, each from its first element
    /// to its last, in as many pieces as the caller likes.
    void write(const Parameter& parameter, DType from, const void* values, std::int64_t count);

    /// Completes the directory, flushes it to the disk and puts it in the place of `out_directory`.
    void finish();

  private:
    struct Shard {
        std::vector<SafetensorsWriter::Tensor> tensors;
        std::int64_t elements = 0;
    };

    void plan_shards(const std::vector<Unit>& units, std::int64_t max_shard_bytes);
    [[nodiscard]] std::string shard_name(std::size_t shard) const;
    void open_shard();
    void write_index() const;
    void write_config() const;
    void carry_over() const;
    void publish();

    std::string source_;
    std::string out_;
    std::string temporary_;
    DType dtype_;
    bool tied_;
    std::vector<Shard> shards_;
    std::size_t current_ = 0;  // shard being written
    std::int64_t left_ = 0;    // elements that it lacks
    std::optional<SafetensorsWriter> writer_;
    bool finished_ = false;
};

}  // namespace tessera
