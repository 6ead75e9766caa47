// Megatron's indexed data sets: raw tokens in X.bin, and X.idx that says where its sequences and documents are.
//
// X.idx: "MMIDIDX\0\0", uint64 version (1), uint8 type of a token, uint64 sequences, uint64 entries of the document
// table; then int32 lengths[sequences], int64 pointers[sequences] (bytes in X.bin, in any order), int64
// documents[entries] (document d is sequences documents[d] to documents[d + 1]), and optionally int8 modes[sequences].
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/offset_table.h"
#include "io/releasable_file.h"
#include "io/token_source.h"

namespace tessera {

namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::int64_t kHeaderBytes = 34;
constexpr std::int64_t kBlock = 4096;

template <typename T>
void widen(const unsigned char* bytes, std::int64_t count, std::int64_t* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        T id;  // the bytes need not be aligned
        std::memcpy(&id, bytes + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
        to[i] = id;
    }
}

struct TokenType {
    std::int64_t bytes;
    void (*widen)(const unsigned char*, std::int64_t, std::int64_t*);
};

TokenType token_type(const std::string& path, std::uint8_t code) {
    switch (code) {
        case 1:
            return {1, widen<std::uint8_t>};
        case 2:
            return {1, widen<std::int8_t>};
        case 3:
            return {2, widen<std::int16_t>};
        case 4:
            return {4, widen<std::int32_t>};
        case 5:
            return {8, widen<std::int64_t>};
        case 8:
            return {2, widen<std::uint16_t>};
        default:
            break;
    }
    const bool real = code == 6 || code == 7;
    fail(ExitCode::bad_data, "{}: type code {} of its tokens is {}; whole numbers are codes 1 to 5 and 8", path, code,
         real ? "for floating-point numbers" : "unknown");
}

class MegatronTokens : public TokenSource {
  public:
    explicit MegatronTokens(const std::string& path)
        : index_(with_ending(path, ".idx")), data_(with_ending(path, ".bin")) {
        read_header();
        starts_.emplace(
            sequences_, [this](auto first, auto count, auto start, auto* to) { sum_lengths(first, count, start, to); },
            index_.path(), "sequence");
        check_pointers();
        check_modes();
        std::int64_t ends[2];
        read_array(documents_at(), 0, 1, &ends[0]);
        read_array(documents_at(), documents_, 1, &ends[1]);
        if (ends[0] != 0 || ends[1] != sequences_) {
            fail(ExitCode::bad_data, "{}: its documents are sequences {} to {}, but there are {} sequences",
                 index_.path(), ends[0], ends[1], sequences_);
        }
    }

    [[nodiscard]] std::int64_t tokens() const override { return starts_->total(); }
    [[nodiscard]] std::int64_t documents() const override { return documents_; }

    void read(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        while (count > 0) {
            const std::int64_t sequence = starts_->find(first);
            const std::int64_t skipped = first - starts_->at(sequence);
            const std::int64_t some = std::min(count, starts_->at(sequence + 1) - first);
            std::int64_t pointer = 0;
            read_array(pointers_at(), sequence, 1, &pointer);
            bytes_.resize(static_cast<std::size_t>(some * type_.bytes));
            data_.read(pointer + skipped * type_.bytes, some * type_.bytes, bytes_.data());
            type_.widen(bytes_.data(), some, to);
            first += some;
            count -= some;
            to += some;
        }
    }

    void read_offsets(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        read_array(documents_at(), first, count, to);
        for (std::int64_t i = 0; i < count; ++i) {
            if (to[i] < 0 || to[i] > sequences_) {
                fail(ExitCode::bad_data, "{}: document {} begins at sequence {} of {}", index_.path(), first + i, to[i],
                     sequences_);
            }
            to[i] = starts_->at(to[i]);
        }
    }

    void release() noexcept override {
        index_.release();
        data_.release();
    }

  private:
    [[nodiscard]] std::int64_t pointers_at() const { return kHeaderBytes + 4 * sequences_; }
    [[nodiscard]] std::int64_t documents_at() const { return pointers_at() + 8 * sequences_; }

    /// Entries of an array of the index that begins at byte `base`.
    template <typename T>
    void read_array(std::int64_t base, std::int64_t first, std::int64_t count, T* to) {
        constexpr std::int64_t kSize = sizeof(T);
        index_.read(base + first * kSize, count * kSize, to);
    }

    void read_header() {
        const std::string& path = index_.path();
        if (index_.size() < kHeaderBytes) {
            fail(ExitCode::bad_data, "{}: {} bytes are too few for the header of a Megatron index ({} bytes)", path,
                 index_.size(), kHeaderBytes);
        }
        std::array<char, kHeaderBytes> header{};
        index_.read(0, kHeaderBytes, header.data());
        if (std::string_view(header.data(), kMagic.size()) != kMagic) {
            fail(ExitCode::bad_data, "{}: does not begin with MMIDIDX as the index of a Megatron data set does", path);
        }
        std::uint64_t version = 0;
        std::uint64_t sequences = 0;
        std::uint64_t entries = 0;
        std::memcpy(&version, header.data() + 9, 8);
        std::memcpy(&sequences, header.data() + 18, 8);
        std::memcpy(&entries, header.data() + 26, 8);
        if (version != 1) {
            fail(ExitCode::bad_data, "{}: version {} of a Megatron index; version 1 is supported", path, version);
        }
        type_ = token_type(path, static_cast<std::uint8_t>(header[17]));
        // Both counts are far below the size of the file where the file holds what it promises: no sum overflows.
        const auto body = static_cast<std::uint64_t>(index_.size() - kHeaderBytes);
        const bool plausible = sequences <= body && entries <= body && entries > 0;
        const std::uint64_t plain = plausible ? 12 * sequences + 8 * entries : 0;
        if (!plausible || (body != plain && body != plain + sequences)) {
            fail(ExitCode::bad_data,
                 "{}: the header promises {} sequences and {} entries of documents, which does not fit the {} bytes "
                 "that follow it; the file is truncated or damaged",
                 path, sequences, entries, body);
        }
        sequences_ = static_cast<std::int64_t>(sequences);
        documents_ = static_cast<std::int64_t>(entries) - 1;
        has_modes_ = body != plain;
    }

    /// Where sequences begin in the stream, from their lengths.
    void sum_lengths(std::int64_t first, std::int64_t count, std::int64_t start, std::int64_t* to) {
        lengths_.resize(static_cast<std::size_t>(count - 1));
        read_array(kHeaderBytes, first, count - 1, lengths_.data());
        to[0] = start;
        for (std::int64_t i = 1; i < count; ++i) {
            const std::int32_t length = lengths_[static_cast<std::size_t>(i - 1)];
            if (length < 0) {
                fail(ExitCode::bad_data, "{}: sequence {} has {} tokens", index_.path(), first + i - 1, length);
            }
            to[i] = checked_add(to[i - 1], length, index_.path().c_str());
        }
    }

    /// Every sequence must lie in X.bin, and X.bin must end with one: else the two files do not belong together.
    void check_pointers() {
        std::vector<std::int32_t> lengths(kBlock);
        std::vector<std::int64_t> pointers(kBlock);
        std::int64_t end = 0;
        for (std::int64_t first = 0; first < sequences_; first += kBlock) {
            const std::int64_t count = std::min(kBlock, sequences_ - first);
            read_array(kHeaderBytes, first, count, lengths.data());
            read_array(pointers_at(), first, count, pointers.data());
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t pointer = pointers[static_cast<std::size_t>(i)];
                const std::int64_t bytes = lengths[static_cast<std::size_t>(i)] * type_.bytes;
                if (pointer < 0 || bytes > data_.size() || pointer > data_.size() - bytes) {
                    fail(ExitCode::bad_data, "{}: sequence {} is bytes {} to {} + {} of {}, which has {} bytes",
                         index_.path(), first + i, pointer, pointer, bytes, data_.path(), data_.size());
                }
                end = std::max(end, pointer + bytes);
            }
        }
        if (end != data_.size()) {
            fail(ExitCode::bad_data, "{}: describes {} bytes but {} has {}; the two files do not belong together",
                 index_.path(), end, data_.path(), data_.size());
        }
    }

    /// Modes other than 0 mark sequences that are not text.
    void check_modes() {
        std::vector<std::int8_t> modes(kBlock);
        const std::int64_t base = documents_at() + 8 * (documents_ + 1);
        for (std::int64_t first = 0; has_modes_ && first < sequences_; first += kBlock) {
            const std::int64_t count = std::min(kBlock, sequences_ - first);
            read_array(base, first, count, modes.data());
            const auto end = modes.begin() + count;
            const auto other = std::find_if(modes.begin(), end, [](std::int8_t mode) { return mode != 0; });
            if (other != end) {
                fail(ExitCode::bad_data, "{}: sequence {} has mode {}; only text (mode 0) is supported", index_.path(),
                     first + (other - modes.begin()), *other);
            }
        }
    }

    ReleasableFile index_;
    ReleasableFile data_;
    TokenType type_{};
    std::int64_t sequences_ = 0;
    std::int64_t documents_ = 0;
    bool has_modes_ = false;
    std::optional<OffsetTable> starts_;
    std::vector<std::int32_t> lengths_;
    std::vector<unsigned char> bytes_;
};

}  // namespace

std::string with_ending(const std::string& path, const std::string& ending) {
    if (!path.ends_with(".bin") && !path.ends_with(".idx")) {
        fail(ExitCode::bad_data, "{}: the files of a Megatron data set end in .bin and .idx", path);
    }
    return path.substr(0, path.size() - 4) + ending;
}

std::unique_ptr<TokenSource> open_megatron_tokens(const std::string& path) {
    return std::make_unique<MegatronTokens>(path);
}

}  // namespace tessera
