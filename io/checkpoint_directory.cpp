#include "io/checkpoint_directory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "tessera.checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr const char* kManifest = "manifest.json";
constexpr std::int64_t kLargestManifest = std::int64_t{64} << 20;
constexpr std::string_view kChecksumKey = ",\n \"manifest_xxh3\": \"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr std::size_t kDigits = 16;

/// The manifest's text ends with the checksum of what stands before it.
void check_own_checksum(const std::string& text, const std::string& path) {
    const std::size_t tail = kChecksumKey.size() + kDigits + kEnd.size();
    const std::string_view view = text;
    if (view.size() < tail || !view.ends_with(kEnd) ||
        view.substr(view.size() - tail, kChecksumKey.size()) != kChecksumKey) {
        fail(ExitCode::bad_data, "{} does not end with its checksum; it is torn or was edited", path);
    }
    const std::string_view before = view.substr(0, view.size() - tail);
    if (view.substr(before.size() + kChecksumKey.size(), kDigits) != xxh3_hex(before)) {
        fail(ExitCode::bad_data, "{} differs from its checksum; it is damaged or was edited", path);
    }
}

bool plain_name(const std::string& name) {
    return !name.empty() && name.size() <= 255 && name != "." && name != ".." && name != kManifest &&
           name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

bool hexadecimal(const std::string& text) {
    return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<FileRecord> parse_files(const json& manifest, const std::string& path) {
    const auto files = manifest.find("files");
    if (files == manifest.end() || !files->is_array()) {
        fail(ExitCode::bad_data, "{}: \"files\" should be an array", path);
    }
    std::vector<FileRecord> records;
    std::set<std::string> names;
    for (const json& file : *files) {
        const auto is = [&](const char* key, auto test) { return file.contains(key) && (file[key].*test)(); };
        if (!file.is_object() || !is("name", &json::is_string) || !is("bytes", &json::is_number_unsigned) ||
            !is("xxh3", &json::is_string)) {
            fail(ExitCode::bad_data, "{}: entry {} of \"files\" should have a name, bytes and xxh3", path,
                 records.size());
        }
        const auto bytes = file["bytes"].get<std::uint64_t>();
        FileRecord record{file["name"].get<std::string>(), 0, file["xxh3"].get<std::string>()};
        if (!plain_name(record.name) || !hexadecimal(record.xxh3) || !std::in_range<std::int64_t>(bytes) ||
            !names.insert(record.name).second) {
            fail(ExitCode::bad_data, "{}: entry {} of \"files\" has a bad or repeated name, size or checksum", path,
                 records.size());
        }
        record.bytes = static_cast<std::int64_t>(bytes);
        records.push_back(std::move(record));
    }
    return records;
}

/// The step of a directory's name "step-<digits><suffix>"; nothing where it is named otherwise.
std::optional<std::int64_t> step_of(const std::string& name, std::string_view suffix = "") {
    constexpr std::string_view kPrefix = "step-";
    if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) {
        return std::nullopt;
    }
    std::int64_t step = 0;
    const char* const first = name.data() + kPrefix.size();
    const char* const last = name.data() + name.size() - suffix.size();
    if (first >= last || std::from_chars(first, last, step).ptr != last ||
        checkpoint_name(step) + std::string(suffix) != name) {
        return std::nullopt;
    }
    return step;
}

/// Names in a directory; none where it does not exist.
std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator entries(directory, error);
    if (error == std::errc::no_such_file_or_directory) {
        return names;
    }
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
        names.push_back(entries->path().filename().string());
    }
    if (error) {
        fail_to_read("list", directory, error.value());
    }
    return names;
}

void remove_tree(const std::string& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) {
        fail_to_write("remove", path, error.value());
    }
}

void rename_or_fail(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) {
        fail_to_write(fmt::format("rename {} to", from), to, errno);
    }
}

/// Removes a complete checkpoint. Under its own name it is whole until the last moment.
void remove_checkpoint(const std::string& path) {
    const std::string trash = path + ".trash";
    remove_tree(trash);
    rename_or_fail(path, trash);
    sync_directory(directory_of(path));
    remove_tree(trash);
}

/// `fresh` takes the place of `old`, and the old one is gone afterwards.
void put_in_place(const std::string& fresh, const std::string& old) {
    const std::string root = directory_of(old);
    if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) == 0) {
        sync_directory(root);
        remove_tree(fresh);
        return;
    }
    // Network file systems cannot do it in one step. find_newest_checkpoint() knows the name that fills the gap.
    const std::string aside = old + ".old";
    remove_tree(aside);
    rename_or_fail(old, aside);
    rename_or_fail(fresh, old);
    sync_directory(root);
    remove_tree(aside);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
    return fmt::format("step-{:08}", step);
}

// ---------------------------------------------------------------------------------------------------------- writing

ShardWriter::ShardWriter(const std::string& directory, std::string name)
    : name_(std::move(name)), file_(directory + "/" + name_, Checksum::xxh3) {
    if (!plain_name(name_)) {
        fail(ExitCode::internal, "\"{}\" is no name for a file of a checkpoint", name_);
    }
}

FileRecord ShardWriter::finish() {
    file_.close();
    return {name_, file_.bytes(), file_.checksum()};
}

CheckpointWriter::CheckpointWriter(std::string root, std::int64_t step)
    : root_(std::move(root)), step_(step), directory_(root_ + "/" + checkpoint_name(step) + ".tmp") {
    if (step < 0) {
        fail(ExitCode::internal, "a checkpoint of step {}", step);
    }
}

void CheckpointWriter::begin() {
    make_directories(root_);
    remove_tree(directory_);
    make_directories(directory_);
}

void CheckpointWriter::commit(const json& manifest, const std::vector<FileRecord>& files) {
    json whole = manifest;
    json list = json::array();
    for (const FileRecord& file : files) {
        const std::string path = directory_ + "/" + file.name;
        std::error_code error;
        const auto bytes = fs::file_size(path, error);
        if (error || bytes != static_cast<std::uintmax_t>(file.bytes)) {
            fail(ExitCode::cannot_write, "{} should have {} bytes and {}; is {} the same directory on all nodes?", path,
                 file.bytes, error ? error.message() : fmt::format("has {}", bytes), root_);
        }
        list.push_back({{"name", file.name}, {"bytes", static_cast<std::uint64_t>(file.bytes)}, {"xxh3", file.xxh3}});
    }
    for (const char* key : {"format", "format_version", "step", "files", "manifest_xxh3"}) {
        if (!whole.is_object() || whole.contains(key)) {
            fail(ExitCode::internal, "a checkpoint's manifest is not an object, or has the key {}", key);
        }
    }
    whole["format"] = kFormat;
    whole["format_version"] = kVersion;
    whole["step"] = step_;
    whole["files"] = std::move(list);
    std::string text = whole.dump(1);
    text.resize(text.size() - 2);  // without "\n}"
    const std::string digest = xxh3_hex(text);
    text.append(kChecksumKey).append(digest).append(kEnd);
    if (narrow<std::int64_t>(text.size()) > kLargestManifest) {
        fail(ExitCode::internal, "the manifest of a checkpoint has {} bytes", text.size());
    }
    // The names of the shards first, so that a manifest on the disk means that all it lists is there.
    sync_directory(directory_);
    write_durably(directory_ + "/" + kManifest, text);
    sync_directory(directory_);

    const std::string name = checkpoint_name(step_);
    const std::string path = root_ + "/" + name;
    std::error_code error;
    if (fs::exists(fs::symlink_status(path, error))) {
        put_in_place(directory_, path);
    } else {
        replace(directory_, path);
    }
    write_file_atomically(root_ + "/latest", name + "\n");
}

// ---------------------------------------------------------------------------------------------------------- reading

CheckpointInfo open_checkpoint(const std::string& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
        fail(ExitCode::missing_input, "there is no checkpoint {}: no such directory", path);
    }
    const std::string manifest_path = path + "/" + kManifest;
    if (!fs::exists(manifest_path, error)) {
        fail(ExitCode::missing_input, "{} is not a complete checkpoint: it has no {}", path, kManifest);
    }
    const std::string text = read_text_file(manifest_path, kLargestManifest);
    check_own_checksum(text, manifest_path);
    json manifest = parse_json(text, manifest_path);
    if (!manifest.is_object() || manifest.value("format", json()) != kFormat) {
        fail(ExitCode::bad_data, "{}: \"format\" is not \"{}\"", manifest_path, kFormat);
    }
    if (manifest.value("format_version", json()) != kVersion) {
        fail(ExitCode::bad_data, "{}: format_version {} is not known; this version reads {}", manifest_path,
             manifest.value("format_version", json()).dump(), kVersion);
    }
    const json step = manifest.value("step", json());
    if (!step.is_number_unsigned() || !std::in_range<std::int64_t>(step.get<std::uint64_t>())) {
        fail(ExitCode::bad_data, "{}: \"step\" should be a whole number", manifest_path);
    }
    CheckpointInfo info{path, step.get<std::int64_t>(), parse_files(manifest, manifest_path), nullptr};
    for (const FileRecord& file : info.files) {
        const std::string file_path = path + "/" + file.name;
        const auto bytes = fs::is_regular_file(file_path, error) ? fs::file_size(file_path, error) : 0;
        if (error || !fs::is_regular_file(file_path, error)) {
            fail(ExitCode::bad_data, "{} is damaged: its file {} is missing", path, file.name);
        }
        if (bytes != static_cast<std::uintmax_t>(file.bytes)) {
            fail(ExitCode::bad_data, "{} is damaged: its file {} has {} bytes instead of {}", path, file.name, bytes,
                 file.bytes);
        }
    }
    info.manifest = std::make_shared<const json>(std::move(manifest));
    return info;
}

std::optional<CheckpointInfo> find_newest_checkpoint(const std::string& root, std::vector<std::string>& warnings) {
    struct Candidate {
        std::int64_t step;
        bool aside;
        std::string name;
    };
    std::vector<Candidate> candidates;
    for (const std::string& name : names_in(root)) {
        if (const auto step = step_of(name)) {
            candidates.push_back({*step, false, name});
        } else if (const auto old_step = step_of(name, ".old")) {
            candidates.push_back({*old_step, true, name});
        }
    }
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        return a.step != b.step ? a.step > b.step : a.aside < b.aside;
    });
    for (const Candidate& candidate : candidates) {
        try {
            CheckpointInfo info = open_checkpoint(root + "/" + candidate.name);
            if (info.step != candidate.step) {
                fail(ExitCode::bad_data, "{} holds step {}; it was renamed", info.path, info.step);
            }
            return info;
        } catch (const Error& error) {
            warnings.push_back(fmt::format("checkpoint passed over: {}", error.what()));
        }
    }
    return std::nullopt;
}

void verify_checkpoint_file(const CheckpointInfo& checkpoint, const FileRecord& file) {
    const std::string path = checkpoint.path + "/" + file.name;
    const ReadOnlyFile reader(path);
    Xxh3 digest;
    reader.read_in_pieces([&](std::string_view piece) { digest.update(piece.data(), std::ssize(piece)); });
    if (reader.size() != file.bytes || digest.hex() != file.xxh3) {
        fail(ExitCode::bad_data,
             "{} is damaged: its checksum is {} ({} bytes) instead of {} ({} bytes); resume from an older checkpoint",
             path, digest.hex(), reader.size(), file.xxh3, file.bytes);
    }
}

void verify_checkpoint(const CheckpointInfo& checkpoint) {
    for (const FileRecord& file : checkpoint.files) {
        verify_checkpoint_file(checkpoint, file);
    }
}

// --------------------------------------------------------------------------------------------------------- removing

void prune_checkpoints(const std::string& root, std::int64_t keep_last, std::int64_t keep_every,
                       std::optional<std::int64_t> protected_step) {
    std::vector<std::int64_t> complete;
    for (const std::string& name : names_in(root)) {
        const std::string path = root + "/" + name;
        std::error_code error;
        // What a link points to is somebody else's.
        if (!fs::is_directory(fs::symlink_status(path, error))) {
            continue;
        }
        const auto aside = step_of(name, ".old");
        if (step_of(name, ".tmp") || step_of(name, ".trash") ||
            (aside && fs::exists(root + "/" + checkpoint_name(*aside), error))) {
            remove_tree(path);
        } else if (const auto step = step_of(name)) {
            try {
                complete.push_back(open_checkpoint(path).step == *step ? *step : -1);
            } catch (const Error&) {
                // A damaged one is left for its owner to look at; it does not count as kept.
            }
        }
    }
    if (keep_last == 0) {
        return;
    }
    std::erase(complete, -1);
    std::sort(complete.begin(), complete.end(), std::greater<>());
    for (std::size_t i = 0; i < complete.size(); ++i) {
        const std::int64_t step = complete[i];
        const bool kept =
            narrow<std::int64_t>(i) < keep_last || (keep_every > 0 && step % keep_every == 0) || step == protected_step;
        if (!kept) {
            remove_checkpoint(root + "/" + checkpoint_name(step));
        }
    }
}

std::vector<std::string> supersede_checkpoints_after(const std::string& root, std::int64_t step) {
    std::vector<std::string> renamed;
    for (const std::string& name : names_in(root)) {
        const auto later = step_of(name);
        if (!later || *later <= step) {
            continue;
        }
        const std::string aside = root + "/" + name + ".superseded";
        remove_tree(aside);
        rename_or_fail(root + "/" + name, aside);
        renamed.push_back(aside);
    }
    if (!renamed.empty()) {
        sync_directory(root);
    }
    return renamed;
}

}  // namespace tessera
