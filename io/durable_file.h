// Files that must survive a crash: written beside, flushed to the disk, renamed over the old one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace tessera {

/// Owner of an open file descriptor.
class FileDescriptor {
  public:
    FileDescriptor() = default;
    explicit FileDescriptor(int value) : value_(value) {}
    FileDescriptor(FileDescriptor&& other) noexcept : value_(other.release()) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept;
    ~FileDescriptor();

    [[nodiscard]] int get() const { return value_; }
    [[nodiscard]] bool is_open() const { return value_ >= 0; }
    [[nodiscard]] int release() noexcept;

  private:
    int value_ = -1;
};

/// Throws ExitCode::cannot_write: "cannot <action> <path>: <strerror>; <what to do>". `error` is an errno.
[[noreturn]] void fail_to_write(std::string_view action, const std::string& path, int error);

/// Throws ExitCode::missing_input (absent or not permitted) or bad_data: "cannot <action> <path>: <strerror>".
[[noreturn]] void fail_to_read(std::string_view action, const std::string& path, int error);

/// Digest of bytes that come in pieces.
class Xxh3 {
  public:
    Xxh3();
    void update(const void* data, std::int64_t bytes);
    [[nodiscard]] std::uint64_t digest() const;
    /// 16 lower-case hexadecimal digits.
    [[nodiscard]] std::string hex() const;

  private:
    struct Free {
        void operator()(XXH3_state_s* state) const noexcept;
    };
    std::unique_ptr<XXH3_state_s, Free> state_;
};

/// xxh3-64 of a text, as 16 hexadecimal digits.
[[nodiscard]] std::string xxh3_hex(std::string_view text);

enum class Checksum : bool { none, xxh3 };

/// A new file, written from its beginning to its end. What is not closed is removed by the destructor: a file of this
/// class that outlives it is whole and on the disk. Not for several threads at once.
class DurableFile {
  public:
    /// Creates `path`, or empties what is there.
    explicit DurableFile(std::string path, Checksum checksum = Checksum::none);
    DurableFile(DurableFile&&) = default;
    DurableFile& operator=(DurableFile&&) = delete;
    ~DurableFile();

    void write(const void* data, std::int64_t bytes);
    void write(std::string_view text);

    /// Flushes to the disk and closes. The name is durable only after sync_directory() of its directory.
    void close();

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    /// xxh3-64 of what was written, in hexadecimal; only with Checksum::xxh3.
    [[nodiscard]] std::string checksum() const;

  private:
    std::string path_;
    FileDescriptor file_;
    std::int64_t bytes_ = 0;
    std::unique_ptr<Xxh3> digest_;
};

/// Writes all bytes to an open file at its position; `path` is for messages.
void write_all(int file, const void* data, std::int64_t bytes, const std::string& path);

/// The same from the byte `offset` of the file on.
void write_at(int file, const void* data, std::int64_t bytes, std::int64_t offset, const std::string& path);

/// Flushes an open file to the disk.
void sync_file(int file, const std::string& path);

/// Makes created, renamed and removed names of a directory durable.
void sync_directory(const std::string& path);

/// Renames `from` over `to` (same directory) and makes that durable.
void replace(const std::string& from, const std::string& to);

/// Creates a directory and those above it; none is an error to exist already.
void make_directories(const std::string& path);

/// Writes nothing; throws what make_directories, or a file made in that directory, would fail with as far as permissions
/// and the kind of the file system tell.
void check_can_make_directories(const std::string& path);

/// Writes a new file, or an old one anew, and flushes it to the disk. What fails leaves no file.
void write_durably(const std::string& path, std::string_view text);

/// Writes `<path>.tmp`, then renames: a reader sees the old text or the new one.
void write_file_atomically(const std::string& path, std::string_view text);

/// The whole of a regular file; one of more than `max_bytes` is refused.
[[nodiscard]] std::string read_text_file(const std::string& path, std::int64_t max_bytes);

/// The directory part of a path; "." where it has none.
[[nodiscard]] std::string directory_of(const std::string& path);

}  // namespace tessera
