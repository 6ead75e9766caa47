// The tokens of a data set: the documents of all its files, in the order of the files, as one stream.
//
// Files are read by ranges as they are needed, so a data set may be far larger than memory. Not for several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/offset_table.h"
#include "io/token_source.h"

namespace tessera {

struct DocumentRange {
    std::int64_t first = 0;  // in the stream
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t size() const { return end - first; }
};

class TokenData {
  public:
    /// `patterns`: files or globs. What a glob matches is sorted; files listed twice count twice; X.idx beside X.bin in
    /// the list is one Megatron data set. `format`: "auto", "hdf5", "megatron", "llmc" or "bytes"; "auto" goes by the
    /// ending and, for .bin, by what the file begins with. Throws missing_input for a pattern that matches nothing and
    /// bad_data for files that are not what they should be, and for a data set without tokens.
    [[nodiscard]] static TokenData open(const std::vector<std::string>& patterns, const std::string& format,
                                        std::int64_t vocab_size);

    [[nodiscard]] std::int64_t tokens() const { return tokens_; }
    [[nodiscard]] std::int64_t documents() const { return documents_; }
    /// Tokens of the longest document.
    [[nodiscard]] std::int64_t longest_document() const { return longest_; }
    /// True where a file has a loss mask.
    [[nodiscard]] bool has_mask() const { return has_mask_; }

    /// Where document d lies, 0 <= d < documents(). A document may be empty.
    [[nodiscard]] DocumentRange document_range(std::int64_t d);
    /// The document that token `position` belongs to.
    [[nodiscard]] std::int64_t document_at(std::int64_t position);
    /// "file.h5, document 3" for messages; documents are counted from 0 in their file.
    [[nodiscard]] std::string document_name(std::int64_t d) const;

    /// Copies tokens [first, first + count) of the stream. An id outside [0, vocab_size) is bad_data, with its place.
    void read(std::int64_t first, std::int64_t count, std::int32_t* to);
    /// 1 where a token may be a target; 1 throughout a file without a mask. Other values than 0 and 1 are bad_data.
    void read_mask(std::int64_t first, std::int64_t count, std::uint8_t* to);

    /// Reads everything once; throws at the first token or mask value that is wrong.
    void check_all();

    struct FileInfo {
        std::string path;
        std::string format;  // "hdf5", "megatron", "llmc", "bytes"
        std::int64_t tokens = 0;
        std::int64_t documents = 0;
        bool has_mask = false;
    };
    [[nodiscard]] std::vector<FileInfo> files() const;

  private:
    struct File {
        std::string path;
        std::string format;
        std::unique_ptr<TokenSource> source;
        OffsetTable offsets;  // of its documents
        std::int64_t first_token = 0;
        std::int64_t first_document = 0;
        std::int64_t last_use = 0;  // 0: closed
    };

    TokenData() = default;
    void add(const std::string& path, const std::string& format);
    File& use(std::size_t index);
    [[nodiscard]] std::size_t file_of_token(std::int64_t position) const;
    [[nodiscard]] std::size_t file_of_document(std::int64_t d) const;
    /// Calls part(file, first in the file, count, done so far) for each file that a range of the stream touches.
    template <typename Part>
    void for_each_part(std::int64_t first, std::int64_t count, Part part);
    [[noreturn]] void refuse_id(File& file, std::int64_t position, std::int64_t id) const;

    std::vector<File> files_;
    std::int64_t vocab_size_ = 0;
    std::int64_t tokens_ = 0;
    std::int64_t documents_ = 0;
    std::int64_t longest_ = 0;
    bool has_mask_ = false;
    std::int64_t uses_ = 0;
    std::int64_t open_files_ = 0;
    std::vector<std::int64_t> ids_;
};

}  // namespace tessera
