#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace tessera {

ReadOnlyFile::ReadOnlyFile(std::string path) : path_(std::move(path)) {
    // Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
    file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file_.is_open()) {
        fail_to_read("open", path_, errno);
    }
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) {
        fail_to_read("read", path_, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        fail(ExitCode::bad_data, "{} is {}, not a file", path_,
             S_ISDIR(status.st_mode) ? "a directory" : "a device or pipe");
    }
    size_ = status.st_size;
}

void ReadOnlyFile::read(std::int64_t offset, void* to, std::int64_t bytes) const {
    constexpr std::int64_t kLargestRead = std::int64_t{1} << 30;  // the kernel gives at most 2 GiB a call
    auto* target = static_cast<char*>(to);
    while (bytes > 0) {
        const ssize_t count = ::pread(file_.get(), target, static_cast<std::size_t>(std::min(bytes, kLargestRead)),
                                      static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            fail_to_read("read", path_, errno);
        }
        if (count == 0) {
            fail(ExitCode::bad_data, "{} ends at byte {}, where {} more bytes should follow: it is truncated", path_,
                 offset, bytes);
        }
        target += count;
        offset += count;
        bytes -= count;
    }
}

void ReadOnlyFile::read_in_pieces(const std::function<void(std::string_view piece)>& visit) const {
    constexpr std::int64_t kPiece = 1 << 20;
    std::vector<char> buffer(static_cast<std::size_t>(std::min(kPiece, size_)));
    for (std::int64_t done = 0; done < size_; done += kPiece) {
        const std::int64_t count = std::min(kPiece, size_ - done);
        read(done, buffer.data(), count);
        visit({buffer.data(), static_cast<std::size_t>(count)});
    }
}

}  // namespace tessera
