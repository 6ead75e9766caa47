// A file that is read by ranges: size known, every range checked against it, short reads continued.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

/// The handle is opened by the first read and may be released and opened again; the file must then still be as it was.
class InputFile {
  public:
    /// Throws missing_input where there is no such file, bad_data where it is not a regular one.
    explicit InputFile(const std::string& path);
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    ~InputFile() { release(); }

    [[nodiscard]] const std::string& path() const { return path_; }
    /// Bytes.
    [[nodiscard]] std::int64_t size() const { return size_; }

    /// Copies bytes [first, first + count). A range that leaves the file is bad_data.
    void read(std::int64_t first, std::int64_t count, void* to);

    /// Closes the handle until the next read.
    void release() noexcept;

  private:
    void open();

    std::string path_;
    std::int64_t size_ = 0;
    int descriptor_ = -1;
};

}  // namespace tessera
