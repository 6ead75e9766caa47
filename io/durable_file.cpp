#include "io/durable_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/file.h"

namespace tessera {

namespace {

const char* advice_for(int error) {
    switch (error) {
        case ENOSPC:
        case EDQUOT:
            return "; free some space there or write to another place (output_dir)";
        case EROFS:
            return "; that file system is read-only: write to another place (output_dir)";
        case EACCES:
        case EPERM:
            return "; this user may not write there: change the permissions or write to another place (output_dir)";
        case ENOENT:
            return "; its directory is gone";
        case EFBIG:
            return "; the file is larger than this file system or the limit of this shell (ulimit -f) allows";
        default:
            return "";
    }
}

// Kernels transfer at most 2 GiB a call; smaller pieces also let signals through.
constexpr std::int64_t kLargestWrite = std::int64_t{1} << 30;

/// Calls write_some(from, count), which says how much it wrote, until all bytes are written.
template <typename WriteSome>
void write_pieces(const void* data, std::int64_t bytes, const std::string& path, const WriteSome& write_some) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = write_some(from, static_cast<std::size_t>(std::min(bytes, kLargestWrite)));
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            fail_to_write("write to", path, errno);
        }
        from += written;
        bytes -= written;
    }
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
        if (value_ >= 0) {
            ::close(value_);
        }
        value_ = other.release();
    }
    return *this;
}

FileDescriptor::~FileDescriptor() {
    if (value_ >= 0) {
        ::close(value_);
    }
}

int FileDescriptor::release() noexcept {
    return std::exchange(value_, -1);
}

void fail_to_write(std::string_view action, const std::string& path, int error) {
    fail(ExitCode::cannot_write, "cannot {} {}: {}{}", action, path, std::generic_category().message(error),
         advice_for(error));
}

void fail_to_read(std::string_view action, const std::string& path, int error) {
    const bool missing = error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM;
    fail(missing ? ExitCode::missing_input : ExitCode::bad_data, "cannot {} {}: {}", action, path,
         std::generic_category().message(error));
}

void Xxh3::Free::operator()(XXH3_state_s* state) const noexcept {
    XXH3_freeState(state);
}

Xxh3::Xxh3() : state_(XXH3_createState()) {
    if (state_ == nullptr) {
        throw std::bad_alloc();
    }
    XXH3_64bits_reset(state_.get());
}

void Xxh3::update(const void* data, std::int64_t bytes) {
    if (bytes > 0) {
        XXH3_64bits_update(state_.get(), data, static_cast<std::size_t>(bytes));
    }
}

std::uint64_t Xxh3::digest() const {
    return XXH3_64bits_digest(state_.get());
}

std::string Xxh3::hex() const {
    return fmt::format("{:016x}", digest());
}

std::string xxh3_hex(std::string_view text) {
    return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

DurableFile::DurableFile(std::string path, Checksum checksum) : path_(std::move(path)) {
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file_.is_open()) {
        fail_to_write("create", path_, errno);
    }
    if (checksum == Checksum::xxh3) {
        digest_ = std::make_unique<Xxh3>();
    }
}

DurableFile::~DurableFile() {
    if (file_.is_open()) {
        ::unlink(path_.c_str());
    }
}

void DurableFile::write(const void* data, std::int64_t bytes) {
    if (!file_.is_open()) {
        fail(ExitCode::internal, "{} was written to after it was closed", path_);
    }
    write_all(file_.get(), data, bytes, path_);
    bytes_ += bytes;
    if (digest_ != nullptr) {
        digest_->update(data, bytes);
    }
}

void DurableFile::write(std::string_view text) {
    write(text.data(), narrow<std::int64_t>(text.size()));
}

void DurableFile::close() {
    if (!file_.is_open()) {
        return;
    }
    sync_file(file_.get(), path_);
    // Network file systems report a failed write as late as here; the descriptor is gone in any case.
    if (::close(file_.release()) != 0) {
        const int error = errno;
        ::unlink(path_.c_str());
        fail_to_write("close", path_, error);
    }
}

std::string DurableFile::checksum() const {
    if (digest_ == nullptr) {
        fail(ExitCode::internal, "{} was written without a checksum", path_);
    }
    return digest_->hex();
}

void write_all(int file, const void* data, std::int64_t bytes, const std::string& path) {
    write_pieces(data, bytes, path, [&](const char* from, std::size_t count) { return ::write(file, from, count); });
}

void write_at(int file, const void* data, std::int64_t bytes, std::int64_t offset, const std::string& path) {
    write_pieces(data, bytes, path, [&](const char* from, std::size_t count) {
        return ::pwrite(file, from, count, offset + (from - static_cast<const char*>(data)));
    });
}

void sync_file(int file, const std::string& path) {
    while (::fsync(file) != 0) {
        if (errno != EINTR) {
            fail_to_write("flush", path, errno);
        }
    }
}

void sync_directory(const std::string& path) {
    const FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory.is_open()) {
        fail_to_write("open directory", path, errno);
    }
    // Some file systems (FUSE, some network ones) cannot flush a directory and say EINVAL: their renames are what they
    // are.
    if (::fsync(directory.get()) != 0 && errno != EINVAL && errno != EBADF) {
        fail_to_write("flush directory", path, errno);
    }
}

void replace(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) {
        fail_to_write(fmt::format("rename {} to", from), to, errno);
    }
    sync_directory(directory_of(to));
}

void make_directories(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) {
        fail_to_write("create directory", path, error.value());
    }
    if (!std::filesystem::is_directory(path, error)) {
        fail_to_write("create directory", path, ENOTDIR);
    }
}

void check_can_make_directories(const std::string& path) {
    std::filesystem::path existing = std::filesystem::absolute(path);
    std::error_code error;
    while (!std::filesystem::exists(std::filesystem::symlink_status(existing, error)) && existing.has_relative_path()) {
        existing = existing.parent_path();
    }
    if (!std::filesystem::is_directory(existing, error)) {
        fail_to_write("create directory", path, ENOTDIR);
    }
    if (access(existing.c_str(), W_OK | X_OK) != 0) {
        fail_to_write("create directory", path, errno);
    }
}

void write_durably(const std::string& path, std::string_view text) {
    DurableFile file(path);
    file.write(text);
    file.close();
}

void write_file_atomically(const std::string& path, std::string_view text) {
    const std::string beside = path + ".tmp";
    write_durably(beside, text);
    replace(beside, path);
}

std::string read_text_file(const std::string& path, std::int64_t max_bytes) {
    const ReadOnlyFile file(path);
    if (file.size() > max_bytes) {
        fail(ExitCode::bad_data, "{} has {} bytes, more than the {} that such a file may have", path, file.size(),
             max_bytes);
    }
    std::string text(static_cast<std::size_t>(file.size()), '\0');
    file.read(0, text.data(), file.size());
    return text;
}

std::string directory_of(const std::string& path) {
    const std::string directory = std::filesystem::path(path).parent_path().string();
    return directory.empty() ? "." : directory;
}

}  // namespace tessera
