#include "io/token_data.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"

namespace tessera {

namespace {

constexpr std::int64_t kBlock = 1 << 16;      // tokens read from a file at once
constexpr std::int64_t kMostOpenFiles = 100;  // of the 1024 that a process usually may open; a Megatron set has two

bool exists(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0;
}

/// The files that a pattern names, sorted by bytes, whatever the locale.
std::vector<std::string> expand(const std::string& pattern) {
    if (exists(pattern)) {  // also a file with brackets in its name
        return {pattern};
    }
    glob_t found{};
    const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
    ::globfree(&found);
    if (result == GLOB_NOMATCH || paths.empty()) {
        const bool is_glob = pattern.find_first_of("*?[") != std::string::npos;
        fail(ExitCode::missing_input, "data: {} {}", pattern, is_glob ? "matches no file" : "does not exist");
    }
    std::sort(paths.begin(), paths.end());
    return paths;
}

std::string format_of(const std::string& path) {
    const auto ends = [&](const char* ending) { return path.ends_with(ending); };
    if (ends(".h5") || ends(".hdf5")) {
        return "hdf5";
    }
    if (ends(".txt")) {
        return "bytes";
    }
    if (ends(".idx")) {
        return "megatron";
    }
    if (ends(".bin")) {
        if (is_llmc_file(path)) {
            return "llmc";
        }
        if (exists(with_ending(path, ".idx"))) {
            return "megatron";
        }
        fail(ExitCode::bad_data, "{}: neither begins as a token file of llm.c nor has a Megatron index ({}) beside it",
             path, with_ending(path, ".idx"));
    }
    fail(ExitCode::bad_data,
         "{}: the ending does not tell its format (.h5, .hdf5, .bin, .idx or .txt do); set [data].format", path);
}

std::unique_ptr<TokenSource> open_source(const std::string& path, const std::string& format) {
    if (format == "hdf5") {
        return open_hdf5_tokens(path);
    }
    if (format == "megatron") {
        return open_megatron_tokens(path);
    }
    if (format == "llmc") {
        return open_llmc_tokens(path);
    }
    if (format == "bytes") {
        return open_byte_tokens(path);
    }
    fail(ExitCode::usage, "data format \"{}\" is not one of auto, hdf5, megatron, llmc, bytes", format);
}

}  // namespace

TokenData TokenData::open(const std::vector<std::string>& patterns, const std::string& format,
                          std::int64_t vocab_size) {
    TokenData data;
    data.vocab_size_ = narrow<std::int32_t>(vocab_size);
    std::vector<std::string> paths;
    for (const std::string& pattern : patterns) {
        const std::vector<std::string> some = expand(pattern);
        paths.insert(paths.end(), some.begin(), some.end());
    }
    std::vector<std::string> sorted = paths;
    std::sort(sorted.begin(), sorted.end());
    const auto listed = [&](const std::string& path) { return std::binary_search(sorted.begin(), sorted.end(), path); };
    for (const std::string& path : paths) {
        const bool second_of_pair =
            path.ends_with(".idx") && listed(with_ending(path, ".bin")) &&
            (format == "megatron" || (format == "auto" && format_of(with_ending(path, ".bin")) == "megatron"));
        if (!second_of_pair) {
            data.add(path, format == "auto" ? format_of(path) : format);
        }
    }
    if (data.tokens_ == 0) {
        fail(ExitCode::bad_data, "the data has no tokens: {} file{}{}{}", paths.size(), paths.size() == 1 ? "" : "s",
             paths.empty() ? "" : ", the first ", paths.empty() ? "" : paths[0]);
    }
    return data;
}

void TokenData::add(const std::string& path, const std::string& format) {
    std::unique_ptr<TokenSource> source = open_source(path, format);
    TokenSource* reader = source.get();
    const auto load = [reader](std::int64_t first, std::int64_t count, std::int64_t /*start*/, std::int64_t* to) {
        reader->read_offsets(first, count, to);
    };
    OffsetTable offsets(source->documents(), load, path, "document");
    if (offsets.total() != source->tokens()) {
        fail(ExitCode::bad_data, "{}: its documents end at token {} but it holds {}", path, offsets.total(),
             source->tokens());
    }
    source->release();
    has_mask_ = has_mask_ || source->has_mask();
    longest_ = std::max(longest_, offsets.longest());
    const std::int64_t first_token = tokens_;
    const std::int64_t first_document = documents_;
    tokens_ = checked_add(tokens_, source->tokens(), "tokens of the data");
    documents_ = checked_add(documents_, source->documents(), "documents of the data");
    files_.push_back({path, format, std::move(source), std::move(offsets), first_token, first_document});
}

/// The file, after closing the one that was not used for the longest time if too many are open.
TokenData::File& TokenData::use(std::size_t index) {
    File& file = files_[index];
    if (file.last_use == 0) {
        if (open_files_ == kMostOpenFiles) {
            File* oldest = nullptr;
            for (File& other : files_) {
                if (other.last_use > 0 && (oldest == nullptr || other.last_use < oldest->last_use)) {
                    oldest = &other;
                }
            }
            oldest->source->release();
            oldest->last_use = 0;
            --open_files_;
        }
        ++open_files_;
    }
    file.last_use = ++uses_;
    return file;
}

std::size_t TokenData::file_of_token(std::int64_t position) const {
    // Of files that begin at one token only the last has any.
    const auto after = std::upper_bound(files_.begin(), files_.end(), position,
                                        [](std::int64_t p, const File& file) { return p < file.first_token; });
    return static_cast<std::size_t>(after - files_.begin()) - 1;
}

std::size_t TokenData::file_of_document(std::int64_t d) const {
    if (d < 0 || d >= documents_) {
        fail(ExitCode::internal, "document {} of {} was asked for", d, documents_);
    }
    const auto after = std::upper_bound(files_.begin(), files_.end(), d,
                                        [](std::int64_t i, const File& file) { return i < file.first_document; });
    return static_cast<std::size_t>(after - files_.begin()) - 1;
}

DocumentRange TokenData::document_range(std::int64_t d) {
    File& file = use(file_of_document(d));
    const std::int64_t inner = d - file.first_document;
    const std::int64_t first = file.offsets.at(inner);
    return {file.first_token + first, file.first_token + file.offsets.at(inner + 1)};
}

std::int64_t TokenData::document_at(std::int64_t position) {
    if (position < 0 || position >= tokens_) {
        fail(ExitCode::internal, "token {} of {} was asked for", position, tokens_);
    }
    File& file = use(file_of_token(position));
    return file.first_document + file.offsets.find(position - file.first_token);
}

std::string TokenData::document_name(std::int64_t d) const {
    const File& file = files_[file_of_document(d)];
    return fmt::format("{}, document {}", file.path, d - file.first_document);
}

template <typename Part>
void TokenData::for_each_part(std::int64_t first, std::int64_t count, Part part) {
    if (first < 0 || count < 0 || first > tokens_ || count > tokens_ - first) {
        fail(ExitCode::internal, "tokens {} to {} + {} of {} were asked for", first, first, count, tokens_);
    }
    for (std::int64_t done = 0; done < count;) {
        File& file = use(file_of_token(first + done));
        const std::int64_t inner = first + done - file.first_token;
        const std::int64_t some = std::min({count - done, file.source->tokens() - inner, kBlock});
        part(file, inner, some, done);
        done += some;
    }
}

void TokenData::read(std::int64_t first, std::int64_t count, std::int32_t* to) {
    for_each_part(first, count, [&](File& file, std::int64_t inner, std::int64_t some, std::int64_t done) {
        ids_.resize(static_cast<std::size_t>(some));
        file.source->read(inner, some, ids_.data());
        for (std::int64_t i = 0; i < some; ++i) {
            const std::int64_t id = ids_[static_cast<std::size_t>(i)];
            if (id < 0 || id >= vocab_size_) {
                refuse_id(file, inner + i, id);
            }
            to[done + i] = static_cast<std::int32_t>(id);
        }
    });
}

void TokenData::refuse_id(File& file, std::int64_t position, std::int64_t id) const {
    const std::int64_t d = file.offsets.find(position);
    const auto made_with = file.source->vocab_size();
    fail(ExitCode::bad_data,
         "{}: token {} (number {} of document {}) is {}, but the model's vocabulary has {} ids{}; was the data made "
         "with the model's own tokenizer?",
         file.path, position, position - file.offsets.at(d), d, id, vocab_size_,
         made_with ? fmt::format(" and that of the file {}", *made_with) : "");
}

void TokenData::read_mask(std::int64_t first, std::int64_t count, std::uint8_t* to) {
    for_each_part(first, count, [&](File& file, std::int64_t inner, std::int64_t some, std::int64_t done) {
        if (!file.source->has_mask()) {
            std::fill_n(to + done, some, std::uint8_t{1});
            return;
        }
        file.source->read_mask(inner, some, to + done);
        const auto* wrong = std::find_if(to + done, to + done + some, [](std::uint8_t value) { return value > 1; });
        if (wrong != to + done + some) {
            fail(ExitCode::bad_data, "{}: the loss mask of token {} is {} instead of 0 or 1", file.path,
                 inner + (wrong - to - done), *wrong);
        }
    });
}

void TokenData::check_all() {
    std::vector<std::int32_t> tokens(kBlock);
    std::vector<std::uint8_t> mask(kBlock);
    for (std::int64_t first = 0; first < tokens_; first += kBlock) {
        const std::int64_t count = std::min(kBlock, tokens_ - first);
        read(first, count, tokens.data());
        read_mask(first, count, mask.data());
    }
}

std::vector<TokenData::FileInfo> TokenData::files() const {
    std::vector<FileInfo> infos;
    for (const File& file : files_) {
        infos.push_back(
            {file.path, file.format, file.source->tokens(), file.source->documents(), file.source->has_mask()});
    }
    return infos;
}

}  // namespace tessera
