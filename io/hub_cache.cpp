#include "io/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "io/durable_file.h"
#include "io/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
    std::error_code error;
    return fs::is_directory(path, error);
}

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

fs::path cache_directory() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
        if (const std::string path = environment(name); !path.empty()) {
            return path;
        }
    }
    if (const std::string home = environment("HF_HOME"); !home.empty()) {
        return fs::path(home) / "hub";
    }
    if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
        return fs::path(cache) / "huggingface" / "hub";
    }
    return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

/// Letters, digits and ._- in parts that are neither empty nor begin with a dot: such a name cannot leave the cache.
bool is_safe(std::string_view name, std::ptrdiff_t max_slashes) {
    if (name.empty() || name.front() == '/' || name.back() == '/' || std::ranges::count(name, '/') > max_slashes) {
        return false;
    }
    char before = '/';
    for (const char c : name) {
        const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                          c == '-' || c == '.' || c == '/';
        if (!word || (before == '/' && (c == '/' || c == '.'))) {
            return false;
        }
        before = c;
    }
    return true;
}

std::string trimmed(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
        text.pop_back();
    }
    return text;
}

/// The snapshot of a revision: a branch or tag (refs/<revision> holds the commit) or a commit. Empty where absent.
fs::path find_snapshot(const fs::path& repository, const std::string& revision) {
    std::string commit = revision;
    std::error_code error;
    if (const fs::path reference = repository / "refs" / revision; fs::is_regular_file(reference, error)) {
        commit = trimmed(read_text_file(reference.string(), 4096));
        if (!is_safe(commit, 0)) {
            fail(ExitCode::bad_data, "{} holds {}, not a commit", reference.string(), in_quotes(commit));
        }
    }
    const fs::path snapshot = repository / "snapshots" / commit;
    return is_folder(snapshot) ? snapshot : fs::path();
}

}  // namespace

std::string find_model_directory(const std::string& model_name) {
    if (is_folder(model_name)) {
        return model_name;
    }
    std::error_code error;
    if (fs::exists(model_name, error)) {
        fail(ExitCode::bad_data, "model_name {} is a file; give the directory that holds config.json", model_name);
    }
    const std::size_t at = model_name.find('@');
    const std::string name = model_name.substr(0, at);
    const std::string revision = at == std::string::npos ? "main" : model_name.substr(at + 1);
    if (!is_safe(name, 1) || !is_safe(revision, 8)) {
        fail(ExitCode::missing_input, "model_name {}: there is no such directory", in_quotes(model_name));
    }
    std::string folder = "models--" + name;
    if (const std::size_t slash = folder.find('/'); slash != std::string::npos) {
        folder.replace(slash, 1, "--");
    }
    const fs::path cache = cache_directory();
    const fs::path snapshot = find_snapshot(cache / folder, revision);
    if (snapshot.empty()) {
        fail(
            ExitCode::missing_input,
            "model_name {}: there is no such directory, and it is not in the Hugging Face cache {}. To download it: hf "
            "download {}{}",
            in_quotes(model_name), cache.string(), name, at == std::string::npos ? "" : " --revision " + revision);
    }
    return snapshot.string();
}

}  // namespace tessera
