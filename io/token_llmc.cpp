// llm.c's token files: 256 int32 (magic, version, tokens), then the tokens as uint16 (GPT-2) or uint32 (Llama 3).
#include <array>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "io/releasable_file.h"
#include "io/token_source.h"

namespace tessera {

namespace {

constexpr std::int64_t kHeaderBytes = 256 * 4;

struct Kind {
    std::int32_t magic;
    std::int32_t version;
    std::int64_t token_bytes;
};
constexpr std::array<Kind, 2> kKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};
constexpr std::int32_t kEvaluationMagic = 20240522;
constexpr std::int32_t kModelMagic = 20240326;

class LlmcTokens : public TokenSource {
  public:
    explicit LlmcTokens(const std::string& path) : file_(path) {
        if (file_.size() < kHeaderBytes) {
            fail(ExitCode::bad_data, "{}: {} bytes are too few for the header of an llm.c file ({} bytes)", path,
                 file_.size(), kHeaderBytes);
        }
        std::array<std::int32_t, 3> header{};
        file_.read(0, sizeof header, header.data());
        const Kind* kind = nullptr;
        for (const Kind& known : kKinds) {
            kind = header[0] == known.magic ? &known : kind;
        }
        if (kind == nullptr) {
            const char* hint = header[0] == kEvaluationMagic ? " (an evaluation set of llm.c, not a token file)"
                               : header[0] == kModelMagic    ? " (a model of llm.c, not a token file)"
                                                             : "";
            fail(ExitCode::bad_data, "{}: begins with {}{}, not with {} or {} as llm.c's token files do", path,
                 header[0], hint, kKinds[0].magic, kKinds[1].magic);
        }
        if (header[1] != kind->version) {
            fail(ExitCode::bad_data, "{}: version {} of an llm.c token file; version {} is supported", path, header[1],
                 kind->version);
        }
        tokens_ = header[2];
        token_bytes_ = kind->token_bytes;
        if (tokens_ < 0 || file_.size() != kHeaderBytes + tokens_ * token_bytes_) {
            fail(ExitCode::bad_data,
                 "{}: the header promises {} tokens of {} bytes but {} bytes follow it; the file is truncated or "
                 "damaged",
                 path, tokens_, token_bytes_, file_.size() - kHeaderBytes);
        }
    }

    [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
    [[nodiscard]] std::int64_t documents() const override { return 1; }

    void read(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        bytes_.resize(static_cast<std::size_t>(count * token_bytes_));
        file_.read(kHeaderBytes + first * token_bytes_, count * token_bytes_, bytes_.data());
        for (std::int64_t i = 0; i < count; ++i) {
            std::uint32_t id = 0;  // little-endian: a uint16 fills the lower half
            std::memcpy(&id, bytes_.data() + i * token_bytes_, static_cast<std::size_t>(token_bytes_));
            to[i] = id;
        }
    }

    void read_offsets(std::int64_t first, std::int64_t count, std::int64_t* to) override {
        for (std::int64_t i = 0; i < count; ++i) {
            to[i] = first + i == 0 ? 0 : tokens_;
        }
    }

    void release() noexcept override { file_.release(); }

  private:
    ReleasableFile file_;
    std::int64_t tokens_ = 0;
    std::int64_t token_bytes_ = 2;
    std::vector<unsigned char> bytes_;
};

}  // namespace

bool is_llmc_file(const std::string& path) {
    ReleasableFile file(path);
    std::int32_t magic = 0;
    if (file.size() < kHeaderBytes) {
        return false;
    }
    file.read(0, sizeof magic, &magic);
    return magic == kKinds[0].magic || magic == kKinds[1].magic || magic == kEvaluationMagic || magic == kModelMagic;
}

std::unique_ptr<TokenSource> open_llmc_tokens(const std::string& path) {
    return std::make_unique<LlmcTokens>(path);
}

}  // namespace tessera
