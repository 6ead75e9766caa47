// Checkpoints as directories of files: written beside, checksummed, manifest last, renamed. Knows bytes, not what they
// mean.
//
//     <root>/step-00000100/            a complete checkpoint: its shards and manifest.json
//     <root>/step-00000100.tmp/        one that is being written, or was when its run died
//     <root>/latest                    the name of the newest, for people and scripts
//
// manifest.json holds what the caller recorded, `format`, `format_version`, `step`, `files` (name, bytes and xxh3 of
// each) and, as its last key, `manifest_xxh3`: the xxh3-64 of all bytes of the file before the comma in front of it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/durable_file.h"

namespace tessera {

struct FileRecord {
    std::string name;  // within the checkpoint's directory
    std::int64_t bytes = 0;
    std::string xxh3;  // xxh3-64 of the contents, 16 hexadecimal digits

    bool operator==(const FileRecord&) const = default;
};

/// Writes one file of a checkpoint.
class ShardWriter {
  public:
    ShardWriter(const std::string& directory, std::string name);
    void write(const void* data, std::int64_t bytes) { file_.write(data, bytes); }
    [[nodiscard]] std::int64_t bytes() const { return file_.bytes(); }
    /// Flushes and closes; the record goes to rank 0, for commit().
    [[nodiscard]] FileRecord finish();

  private:
    std::string name_;
    DurableFile file_;
};

/// One checkpoint on its way. Rank 0: begin(). All ranks, after that: shards into directory(). Rank 0, after all:
/// commit().
class CheckpointWriter {
  public:
    CheckpointWriter(std::string root, std::int64_t step);

    /// Where the shards go.
    [[nodiscard]] const std::string& directory() const { return directory_; }

    /// Makes the directory, without what a dead run left in it.
    void begin();

    /// `manifest` is a JSON object without the keys that the format itself has. Makes the checkpoint complete, in place
    /// of an older one of the same step, and points `latest` to it.
    void commit(const nlohmann::json& manifest, const std::vector<FileRecord>& files);

  private:
    std::string root_;
    std::int64_t step_;
    std::string directory_;
};

struct CheckpointInfo {
    std::string path;
    std::int64_t step = 0;
    std::vector<FileRecord> files;
    std::shared_ptr<const nlohmann::json> manifest;  // the whole object
};

/// The checkpoint in a directory of any name. Throws, saying what is wrong, unless its manifest is whole and all files
/// have their sizes.
[[nodiscard]] CheckpointInfo open_checkpoint(const std::string& path);

/// The complete checkpoint of the highest step below `root`; nullopt where there is none or no `root`. Each damaged one
/// that was passed over adds a line to `warnings`.
[[nodiscard]] std::optional<CheckpointInfo> find_newest_checkpoint(const std::string& root,
                                                                   std::vector<std::string>& warnings);

/// Compares the checksum of one file, or of all; throws bad_data at the first that differs.
void verify_checkpoint_file(const CheckpointInfo& checkpoint, const FileRecord& file);
void verify_checkpoint(const CheckpointInfo& checkpoint);

/// Removes complete checkpoints but the newest `keep_last` (0: none is removed), the multiples of `keep_every` (where
/// above 0) and `protected_step`, and what dead runs left half-written. Not while one is being written.
void prune_checkpoints(const std::string& root, std::int64_t keep_last, std::int64_t keep_every,
                       std::optional<std::int64_t> protected_step);

/// For a run that goes on from `step` on purpose: renames later checkpoints to `<name>.superseded`, so that they are
/// not taken for this run's. Returns the new names.
std::vector<std::string> supersede_checkpoints_after(const std::string& root, std::int64_t step);

/// "step-00000100"
[[nodiscard]] std::string checkpoint_name(std::int64_t step);

}  // namespace tessera
