#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace tessera {

namespace {

/// Size of a regular file.
std::int64_t checked_size(const std::string& path, int result, const struct stat& status) {
    if (result != 0) {
        const ExitCode code = errno == ENOENT || errno == ENOTDIR ? ExitCode::missing_input : ExitCode::bad_data;
        fail(code, "{}: {}", path, std::strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        fail(ExitCode::bad_data, "{}: not a regular file", path);
    }
    return status.st_size;
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
    struct stat status {};
    const int result = ::stat(path.c_str(), &status);  // before open: opening a pipe would wait for its writer
    size_ = checked_size(path, result, status);
}

void InputFile::open() {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) {
        fail(ExitCode::bad_data, "{}: cannot be opened: {}", path_, std::strerror(errno));
    }
    struct stat status {};
    const int result = ::fstat(descriptor_, &status);
    if (checked_size(path_, result, status) != size_) {
        fail(ExitCode::bad_data, "{}: the file changed its size from {} to {} bytes while it was used", path_, size_,
             status.st_size);
    }
}

void InputFile::read(std::int64_t first, std::int64_t count, void* to) {
    if (first < 0 || count < 0 || first > size_ || count > size_ - first) {
        fail(ExitCode::bad_data, "{}: bytes {} to {} + {} do not exist in a file of {} bytes", path_, first, first,
             count, size_);
    }
    if (descriptor_ < 0) {
        open();
    }
    auto* out = static_cast<char*>(to);
    while (count > 0) {
        constexpr std::int64_t kMost = 1 << 30;  // Linux reads less than 2 GiB at once
        const ssize_t got = ::pread(descriptor_, out, static_cast<std::size_t>(std::min(count, kMost)), first);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            fail(ExitCode::bad_data, "{}: cannot be read at byte {}: {}", path_, first, std::strerror(errno));
        }
        if (got == 0) {
            fail(ExitCode::bad_data, "{}: the file became shorter while it was read (byte {} of {})", path_, first,
                 size_);
        }
        out += got;
        first += got;
        count -= got;
    }
}

void InputFile::release() noexcept {
    if (descriptor_ >= 0) {
        ::close(descriptor_);
        descriptor_ = -1;
    }
}

}  // namespace tessera
