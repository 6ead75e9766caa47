// A file that is read at chosen places, by as many threads as like.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "io/durable_file.h"

namespace tessera {

/// A regular file open for reading.
class ReadOnlyFile {
  public:
    /// Throws missing_input where `path` cannot be opened, bad_data where it is no regular file.
    explicit ReadOnlyFile(std::string path);

    [[nodiscard]] const std::string& path() const { return path_; }
    /// Bytes, as of opening.
    [[nodiscard]] std::int64_t size() const { return size_; }

    /// Exactly `bytes` bytes from `offset` on. Throws bad_data where the file ends before.
    void read(std::int64_t offset, void* to, std::int64_t bytes) const;
    /// The whole file, in order, in pieces of at most 1 MiB.
    void read_in_pieces(const std::function<void(std::string_view piece)>& visit) const;

  private:
    std::string path_;
    FileDescriptor file_;
    std::int64_t size_ = 0;
};

}  // namespace tessera
