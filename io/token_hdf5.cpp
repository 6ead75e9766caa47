// Our own token files (docs/files.md): /tokens, /offsets and, optionally, /loss_mask.
#include <optional>

#include "core/base/error.h"
#include "io/hdf5.h"
#include "io/token_source.h"

namespace tessera {

namespace {

class Hdf5Tokens : public TokenSource {
  public:
    explicit Hdf5Tokens(const std::string& path) : path_(path) {
        const Parts& parts = this->parts();
        tokens_ = parts.tokens.size();
        documents_ = parts.offsets.size() - 1;
        has_mask_ = parts.mask.has_value();
        vocab_size_ = parts.file.integer_attribute("vocab_size");
    }

    [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
    [[nodiscard]] std::int64_t documents() const override { return documents_; }
    [[nodiscard]] bool has_mask() const override { return has_mask_; }
    [[nodiscard]] std::optional<std::int64_t> vocab_size() const override { return vocab_size_; }

    void read(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        parts().tokens.read(first, count, to);
    }
    void read_mask(std::int64_t first, std::int64_t count, std::uint8_t* to) override {
        parts().mask.value().read(first, count, to);
    }
    void read_offsets(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        parts().offsets.read(first, count, to);
    }

    void release() noexcept override { parts_.reset(); }

  private:
    struct Parts {
        hdf5::File file;
        hdf5::Dataset tokens;
        hdf5::Dataset offsets;
        std::optional<hdf5::Dataset> mask;
    };

    /// The open file; opened and checked where it is not.
    Parts& parts() {
        if (parts_) {
            return *parts_;
        }
        hdf5::File file = hdf5::File::open(path_);
        file.require_format("tessera.tokens", 1);
        hdf5::Dataset tokens = file.dataset("tokens", {hdf5::Type::u16, hdf5::Type::u32});
        hdf5::Dataset offsets = file.dataset("offsets", {hdf5::Type::i64});
        std::optional<hdf5::Dataset> mask;
        if (offsets.size() < 1) {
            fail(ExitCode::bad_data, "{}: is empty; it has one entry more than there are documents", offsets.place());
        }
        if (file.has("loss_mask")) {
            mask = file.dataset("loss_mask", {hdf5::Type::u8});
            if (mask->size() != tokens.size()) {
                fail(ExitCode::bad_data, "{}: has {} entries for {} tokens", mask->place(), mask->size(),
                     tokens.size());
            }
        }
        if (tokens_ >= 0 &&
            (tokens_ != tokens.size() || documents_ != offsets.size() - 1 || has_mask_ != mask.has_value())) {
            fail(ExitCode::bad_data, "{}: the file changed while it was used", path_);
        }
        parts_.emplace(Parts{std::move(file), std::move(tokens), std::move(offsets), std::move(mask)});
        return *parts_;
    }

    std::string path_;
    std::optional<Parts> parts_;
    std::int64_t tokens_ = -1;  // not opened yet
    std::int64_t documents_ = 0;
    bool has_mask_ = false;
    std::optional<std::int64_t> vocab_size_;
};

}  // namespace

std::unique_ptr<TokenSource> open_hdf5_tokens(const std::string& path) {
    return std::make_unique<Hdf5Tokens>(path);
}

}  // namespace tessera
