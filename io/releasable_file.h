// A file whose handle can be given back between two reads, so that more files are used than a process may open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "io/file.h"

namespace tessera {

class ReleasableFile {
  public:
    /// Throws what ReadOnlyFile throws.
    explicit ReleasableFile(const std::string& path) : path_(path), file_(path), size_(file_->size()) {}

    [[nodiscard]] const std::string& path() const { return path_; }
    /// Bytes.
    [[nodiscard]] std::int64_t size() const { return size_; }

    /// Copies bytes [first, first + count); opens the file again where it was released.
    void read(std::int64_t first, std::int64_t count, void* to) {
        if (!file_) {
            file_.emplace(path_);
            if (file_->size() != size_) {
                fail(ExitCode::bad_data, "{}: the file changed its size from {} to {} bytes while it was used", path_,
                     size_, file_->size());
            }
        }
        file_->read(first, to, count);
    }

    void release() noexcept { file_.reset(); }

  private:
    std::string path_;
    std::optional<ReadOnlyFile> file_;
    std::int64_t size_ = 0;
};

}  // namespace tessera
