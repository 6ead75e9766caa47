// Text files as bytes: a token is a byte, a document is a whole file.
#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "io/releasable_file.h"
#include "io/token_source.h"

namespace tessera {

namespace {

class ByteTokens : public TokenSource {
  public:
    explicit ByteTokens(const std::string& path) : file_(path) {}

    [[nodiscard]] std::int64_t tokens() const override { return file_.size(); }
    [[nodiscard]] std::int64_t documents() const override { return 1; }

    void read(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        bytes_.resize(static_cast<std::size_t>(count));
        file_.read(first, count, bytes_.data());
        std::copy(bytes_.begin(), bytes_.end(), to);
    }

    void read_offsets(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        for (std::int64_t i = 0; i < count; ++i) {
            to[i] = first + i == 0 ? 0 : tokens();
        }
    }

    void release() noexcept override { file_.release(); }

  private:
    ReleasableFile file_;
    std::vector<unsigned char> bytes_;
};

}  // namespace

void TokenSource::read_mask(std::int64_t /*first*/, std::int64_t /*count*/, std::uint8_t* /*to*/) {
    fail(ExitCode::internal, "a file without a loss mask was asked for it");
}

std::unique_ptr<TokenSource> open_byte_tokens(const std::string& path) {
    return std::make_unique<ByteTokens>(path);
}

}  // namespace tessera
