// One file of tokens in one of the formats that people have. A format is a file token_<format>.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// Token t of the file is token t of its documents, one after another. Ranges that are asked for lie within the file.
class TokenSource {
  public:
    TokenSource() = default;
    TokenSource(const TokenSource&) = delete;
    TokenSource& operator=(const TokenSource&) = delete;
    virtual ~TokenSource() = default;

    [[nodiscard]] virtual std::int64_t tokens() const = 0;
    [[nodiscard]] virtual std::int64_t documents() const = 0;
    [[nodiscard]] virtual bool has_mask() const { return false; }
    /// The size of the vocabulary that the file says it was made with.
    [[nodiscard]] virtual std::optional<std::int64_t> vocab_size() const { return std::nullopt; }

    /// Ids as the file has them: any whole number.
    virtual void read(std::int64_t first, std::int64_t count, std::int64_t* to) = 0;
    /// The loss mask as the file has it; only where has_mask().
    virtual void read_mask(std::int64_t first, std::int64_t count, std::uint8_t* to);
    /// Entries [first, first + count) of the documents() + 1 offsets of documents. Whoever reads them checks that they
    /// ascend from 0 to tokens().
    virtual void read_offsets(std::int64_t first, std::int64_t count, std::int64_t* to) = 0;

    /// Closes the file until the next read, so that a data set may have more files than a process may open.
    virtual void release() noexcept = 0;
};

/// Throw missing_input where the file is not there and bad_data where it is not what the format says. Nothing but
/// headers (and, for Megatron, the lengths of the sequences) is read.
[[nodiscard]] std::unique_ptr<TokenSource> open_hdf5_tokens(const std::string& path);
/// The bytes of a file as tokens; the file is one document.
[[nodiscard]] std::unique_ptr<TokenSource> open_byte_tokens(const std::string& path);
/// The file is one document: llm.c's files have no bounds, only tokenizer-specific tokens between texts.
[[nodiscard]] std::unique_ptr<TokenSource> open_llmc_tokens(const std::string& path);
/// The pair that `path` with either ending, .bin or .idx, belongs to.
[[nodiscard]] std::unique_ptr<TokenSource> open_megatron_tokens(const std::string& path);

/// True where the file begins as one of llm.c's token files does.
[[nodiscard]] bool is_llmc_file(const std::string& path);
/// `path`, which ends in .bin or .idx, with the ending `.idx` or `.bin` instead.
[[nodiscard]] std::string with_ending(const std::string& path, const std::string& ending);

}  // namespace tessera
