#include "apps/path_kind.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "core/base/error.h"
#include "io/hdf5.h"
#include "io/json.h"
#include "io/token_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

constexpr std::string_view kHdf5Begin = "\x89HDF\r\n\x1a\n"sv;
constexpr std::string_view kMegatronBegin = "MMIDIDX\0\0"sv;

bool has(const std::string& directory, const char* name) {
    std::error_code error;
    return fs::exists(fs::path(directory) / name, error);
}

PathKind kind_of_directory(const std::string& path) {
    if (has(path, "manifest.json")) {
        return PathKind::checkpoint;
    }
    if (has(path, "config.json")) {
        return PathKind::model;
    }
    if (has(path, "job.resolved.toml") || has(path, "metrics.jsonl") || has(path, "checkpoints")) {
        return PathKind::run;
    }
    fail(ExitCode::bad_data,
         "{} is no model (config.json), no checkpoint (manifest.json) and no run (job.resolved.toml, metrics.jsonl or "
         "checkpoints): name one of those",
         path);
}

/// The first bytes of a file, at most 16.
std::string beginning(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        fail(ExitCode::missing_input, "cannot open {}: {}", path, std::strerror(errno));
    }
    std::array<char, 16> bytes{};
    file.read(bytes.data(), bytes.size());
    return {bytes.data(), static_cast<std::size_t>(file.gcount())};
}

FoundPath kind_of_hdf5(const std::string& path) {
    const std::string format = hdf5::File::open(path).string_attribute("format").value_or("");
    if (format == "tessera.tokens") {
        return {PathKind::tokens, "hdf5"};
    }
    if (format == "tessera.log_probs") {
        return {PathKind::log_probs, ""};
    }
    if (format == "tessera.rollouts") {
        fail(ExitCode::bad_data, "{} is a rollout file (tessera.rollouts): not available in this version", path);
    }
    fail(ExitCode::bad_data,
         "{}: attribute format of this HDF5 file is {}, not \"tessera.tokens\" or \"tessera.log_probs\"", path,
         in_quotes(format));
}

FoundPath kind_of_file(const std::string& path) {
    const std::string begin = beginning(path);
    std::error_code error;
    if (begin.starts_with(kHdf5Begin)) {
        return kind_of_hdf5(path);
    }
    if (begin.starts_with(kMegatronBegin)) {
        return {PathKind::tokens, "megatron"};
    }
    if (begin.size() >= 4 && is_llmc_file(path)) {
        return {PathKind::tokens, "llmc"};
    }
    if (path.ends_with(".bin") && fs::exists(with_ending(path, ".idx"), error)) {
        return {PathKind::tokens, "megatron"};
    }
    if (path.ends_with(".txt")) {
        return {PathKind::tokens, "bytes"};
    }
    if (begin.starts_with("{") || path.ends_with(".jsonl")) {
        return {PathKind::metrics, ""};
    }
    fail(ExitCode::bad_data,
         "{} is no token file (HDF5, Megatron .bin with .idx, llm.c .bin, .txt), log-prob file or metrics.jsonl; of a "
         "model, checkpoint or run name the directory",
         path);
}

}  // namespace

FoundPath find_kind(const std::string& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) {
        fail(ExitCode::missing_input, "{}: there is no such file or directory", path);
    }
    if (fs::is_directory(status)) {
        return {kind_of_directory(path), ""};
    }
    if (!fs::is_regular_file(status)) {
        fail(ExitCode::bad_data, "{} is neither a regular file nor a directory", path);
    }
    return kind_of_file(path);
}

}  // namespace tessera
