#include "io/log_prob_file.h"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"

namespace tessera {

namespace {

static_assert(std::endian::native == std::endian::little, "values go to the file as they lie in memory");

constexpr const char* kFormat = "tessera.log_probs";
constexpr const char* kAlignment = "value t scores token t+1";
constexpr std::int64_t kVersion = 1;
// A quiet not-a-number with a payload ("TESS"); processors make theirs with payload 0.
constexpr std::uint64_t kNotDone = 0x7ff8000054455353ULL;

bool is_done(double sum) {
    return std::bit_cast<std::uint64_t>(sum) != kNotDone;
}

/// HDF5 prints its error stack on stderr unless told not to; our messages say what matters of it.
class Quiet {
  public:
    Quiet() {
        H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    }
    ~Quiet() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

  private:
    H5E_auto2_t function_ = nullptr;
    void* data_ = nullptr;
};

/// What went wrong at the bottom of the last failed call.
std::string hdf5_error() {
    std::string text = "unknown error";
    H5Ewalk2(
        H5E_DEFAULT, H5E_WALK_UPWARD,
        [](unsigned position, const H5E_error2_t* entry, void* to) -> herr_t {
            if (position == 0 && entry->desc != nullptr) {
                *static_cast<std::string*>(to) = entry->desc;
            }
            return 0;
        },
        &text);
    return text;
}

class Handle {
  public:
    using Close = herr_t (*)(hid_t);
    Handle() = default;
    Handle(hid_t id, Close with) : id_(id), close_(with) {}
    Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Handle() {
        if (id_ >= 0) {
            close_(id_);
        }
    }
    [[nodiscard]] hid_t get() const { return id_; }
    [[nodiscard]] bool valid() const { return id_ >= 0; }
    /// Closes now, and says whether that went well.
    [[nodiscard]] bool close() { return close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

  private:
    hid_t id_ = H5I_INVALID_HID;
    Close close_ = nullptr;
};

/// Our own lock guards the output directory; HDF5's fails where a file system has none.
Handle file_access() {
    Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_file_locking(access.get(), false, true);
    // After a kill a file of these versions opens again; later ones mark it as open for writing.
    H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
    return access;
}

// ---------------------------------------------------------------------------------------------------------- reading

struct DataSet {
    Handle set;
    std::int64_t length = 0;
    std::int64_t at = -1;  // byte in the file where it begins, where it lies there in one piece and as it is in memory
};

/// A one-dimensional data set of the given kind; nothing where it does not exist. `file_bytes` is the size of the file.
std::optional<DataSet> open_set(hid_t file, const std::string& path, const char* name, H5T_class_t kind,
                                std::int64_t element_bytes, std::int64_t file_bytes) {
    H5L_info_t link{};
    if (H5Lexists(file, name, H5P_DEFAULT) <= 0) {
        return std::nullopt;
    }
    // A soft or external link could lead anywhere, other files included.
    if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) {
        fail(ExitCode::bad_data, "{}: /{} is a link", path, name);
    }
    DataSet result;
    result.set = Handle(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
    if (!result.set.valid()) {
        fail(ExitCode::bad_data, "{}: /{} cannot be opened as a data set: {}", path, name, hdf5_error());
    }
    const Handle type(H5Dget_type(result.set.get()), H5Tclose);
    if (H5Tget_class(type.get()) != kind || H5Tget_size(type.get()) != static_cast<std::size_t>(element_bytes) ||
        (kind == H5T_INTEGER && H5Tget_sign(type.get()) != H5T_SGN_2)) {
        fail(ExitCode::bad_data, "{}: /{} should hold {}{} values", path, name, kind == H5T_INTEGER ? "int" : "float",
             element_bytes * 8);
    }
    const Handle space(H5Dget_space(result.set.get()), H5Sclose);
    hsize_t length = 0;
    if (H5Sget_simple_extent_ndims(space.get()) != 1 || H5Sget_simple_extent_dims(space.get(), &length, nullptr) != 1) {
        fail(ExitCode::bad_data, "{}: /{} should have one dimension", path, name);
    }
    const Handle properties(H5Dget_create_plist(result.set.get()), H5Pclose);
    const H5D_layout_t layout = H5Pget_layout(properties.get());
    if (H5Pget_external_count(properties.get()) != 0 || layout == H5D_VIRTUAL) {
        fail(ExitCode::bad_data, "{}: /{} keeps its values in other files", path, name);
    }
    // The header may lie about the length. What is stored cannot be more than the file holds, and no filter of HDF5 but
    // a hostile one packs better than deflate's 1032 to 1.
    const hsize_t stored = H5Dget_storage_size(result.set.get());
    const hsize_t most = layout == H5D_CHUNKED ? stored * 1032 : stored;
    if (stored > static_cast<hsize_t>(file_bytes) || length > most / static_cast<hsize_t>(element_bytes)) {
        fail(ExitCode::bad_data, "{}: /{} claims {} values, more than the file holds; is it truncated?", path, name,
             length);
    }
    result.length = narrow<std::int64_t>(length);
    const haddr_t at = layout == H5D_CONTIGUOUS ? H5Dget_offset(result.set.get()) : HADDR_UNDEF;
    if (at != HADDR_UNDEF) {
        if (at > static_cast<haddr_t>(file_bytes) || stored > static_cast<haddr_t>(file_bytes) - at) {
            fail(ExitCode::bad_data, "{}: /{} reaches beyond the end of the file; is it truncated?", path, name);
        }
        if (H5Tget_order(type.get()) == H5T_ORDER_LE) {
            result.at = narrow<std::int64_t>(at);
        }
    }
    return result;
}

DataSet require_set(hid_t file, const std::string& path, const char* name, H5T_class_t kind, std::int64_t element_bytes,
                    std::int64_t file_bytes) {
    auto set = open_set(file, path, name, kind, element_bytes, file_bytes);
    if (!set) {
        fail(ExitCode::bad_data, "{}: /{} is missing; this is not a whole log-prob file", path, name);
    }
    return std::move(*set);
}

/// Elements [first, first + count) of a data set, converted to `memory_type`.
void read_range(const DataSet& from, hid_t memory_type, std::int64_t first, std::size_t count, void* to,
                const std::string& path, const char* name) {
    if (first < 0 || narrow<std::int64_t>(count) > from.length - first) {
        fail(ExitCode::internal, "{}: values {} to {} of /{} were asked for; it has {}", path, first,
             first + narrow<std::int64_t>(count), name, from.length);
    }
    if (count == 0) {
        return;
    }
    const Quiet quiet;
    const auto start = static_cast<hsize_t>(first);
    const hsize_t size = count;
    const Handle space(H5Dget_space(from.set.get()), H5Sclose);
    const Handle memory(H5Screate_simple(1, &size, nullptr), H5Sclose);
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &size, nullptr) < 0 ||
        H5Dread(from.set.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, to) < 0) {
        fail(ExitCode::bad_data, "{}: /{} cannot be read: {}", path, name, hdf5_error());
    }
}

Handle open_attribute(hid_t file, const std::string& path, const char* name) {
    if (H5Aexists(file, name) <= 0) {
        return {};
    }
    Handle attribute(H5Aopen(file, name, H5P_DEFAULT), H5Aclose);
    const Handle space(attribute.valid() ? H5Aget_space(attribute.get()) : H5I_INVALID_HID, H5Sclose);
    if (!space.valid() || H5Sget_simple_extent_npoints(space.get()) != 1) {
        fail(ExitCode::bad_data, "{}: attribute {} is not a single value", path, name);
    }
    return attribute;
}

std::optional<std::string> text_attribute(hid_t file, const std::string& path, const char* name) {
    constexpr std::size_t kLongest = std::size_t{1} << 20;
    const Handle attribute = open_attribute(file, path, name);
    if (!attribute.valid()) {
        return std::nullopt;
    }
    const Handle stored(H5Aget_type(attribute.get()), H5Tclose);
    if (H5Tget_class(stored.get()) != H5T_STRING) {
        fail(ExitCode::bad_data, "{}: attribute {} should be a string", path, name);
    }
    std::string text;
    if (H5Tis_variable_str(stored.get()) > 0) {
        const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
        H5Tset_size(type.get(), H5T_VARIABLE);
        H5Tset_cset(type.get(), H5Tget_cset(stored.get()));
        char* value = nullptr;
        if (H5Aread(attribute.get(), type.get(), &value) < 0) {
            fail(ExitCode::bad_data, "{}: attribute {} cannot be read: {}", path, name, hdf5_error());
        }
        if (value != nullptr) {
            text = value;
            H5free_memory(value);
        }
        return text;
    }
    const std::size_t bytes = H5Tget_size(stored.get());
    if (bytes > kLongest) {
        fail(ExitCode::bad_data, "{}: attribute {} claims {} bytes", path, name, bytes);
    }
    text.resize(bytes);
    if (H5Aread(attribute.get(), stored.get(), text.data()) < 0) {
        fail(ExitCode::bad_data, "{}: attribute {} cannot be read: {}", path, name, hdf5_error());
    }
    text.resize(std::min(text.find('\0'), text.size()));
    return text;
}

/// `memory_type` is H5T_NATIVE_INT64 for int64 or H5T_NATIVE_DOUBLE for double.
template <typename T>
std::optional<T> number_attribute(hid_t file, const std::string& path, const char* name, hid_t memory_type) {
    const Handle attribute = open_attribute(file, path, name);
    if (!attribute.valid()) {
        return std::nullopt;
    }
    const Handle stored(H5Aget_type(attribute.get()), H5Tclose);
    const H5T_class_t kind = H5Tget_class(stored.get());
    T value{};
    if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || H5Aread(attribute.get(), memory_type, &value) < 0) {
        fail(ExitCode::bad_data, "{}: attribute {} should be a number", path, name);
    }
    return value;
}

void check_offsets(const std::vector<std::int64_t>& offsets, const std::string& path, ExitCode code) {
    if (offsets.empty() || offsets.front() != 0) {
        fail(code, "{}: /offsets should begin with 0", path);
    }
    for (std::size_t n = 1; n < offsets.size(); ++n) {
        if (offsets[n] < offsets[n - 1]) {
            fail(code, "{}: /offsets falls from {} to {} at entry {}", path, offsets[n - 1], offsets[n], n);
        }
    }
}

std::int64_t size_of_file(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        fail_to_read("open", path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        fail(ExitCode::bad_data, "{} is not a regular file", path);
    }
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) {
        fail_to_read("open", path, errno);
    }
    return status.st_size;
}

// ---------------------------------------------------------------------------------------------------------- writing

void check(bool good, const std::string& path) {
    if (!good) {
        fail(ExitCode::cannot_write, "cannot write {}: HDF5 says: {}", path, hdf5_error());
    }
}

void write_text(hid_t file, const std::string& path, const char* name, const std::string& text) {
    // Of variable length, since a resolved job may be longer than the 64 KiB that an attribute itself may hold.
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), H5T_VARIABLE);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle attribute(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    const char* value = text.c_str();
    check(attribute.valid() && H5Awrite(attribute.get(), type.get(), &value) >= 0, path);
}

template <typename T>
void write_number(hid_t file, const std::string& path, const char* name, hid_t type, T value) {
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle attribute(H5Acreate2(file, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    check(attribute.valid() && H5Awrite(attribute.get(), type, &value) >= 0, path);
}

/// Makes a data set whose space is there from the start, and says where in the file it begins.
std::int64_t create_set(hid_t file, const std::string& path, const char* name, hid_t type, std::int64_t length) {
    const Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_layout(properties.get(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
    const auto size = static_cast<hsize_t>(length);
    const Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
    const Handle set(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), H5Dclose);
    check(set.valid(), path);
    const haddr_t at = H5Dget_offset(set.get());
    if (length == 0) {
        return 0;
    }
    check(at != HADDR_UNDEF, path);
    return narrow<std::int64_t>(at);
}

void write_at(int file, const void* data, std::int64_t bytes, std::int64_t at, const std::string& path) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = ::pwrite(file, from, static_cast<std::size_t>(bytes), at);
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            fail_to_write("write to", path, errno);
        }
        from += written;
        at += written;
        bytes -= written;
    }
}

/// Claims the space now, so that a disk that is too small is found before the work and not after it.
void reserve(int file, std::int64_t bytes, const std::string& path) {
    while (::fallocate(file, 0, 0, bytes) != 0) {
        if (errno == EINTR) {
            continue;
        }
        if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
            fail_to_write(fmt::format("reserve {} bytes for", bytes), path, errno);
        }
        return;
    }
}

/// A file under a temporary name: removed unless it was renamed.
struct Unfinished {
    std::string path;
    ~Unfinished() { ::unlink(path.c_str()); }
};

}  // namespace

// ------------------------------------------------------------------------------------------------------ LogProbFile

struct LogProbFile::Opened {
    std::string path;
    Handle file;
    DataSet log_probs;
    DataSet sums;
    std::optional<DataSet> entropy;
    std::vector<std::int64_t> offsets;
    LogProbAttributes attributes;
    bool complete = false;
};

LogProbFile::LogProbFile(const std::string& path) : opened_(std::make_unique<Opened>()) {
    Opened& o = *opened_;
    o.path = path;
    const std::int64_t file_bytes = size_of_file(path);
    const Quiet quiet;
    const Handle access = file_access();
    o.file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
    if (!o.file.valid()) {
        fail(ExitCode::bad_data, "{} is not a readable HDF5 file: {}", path, hdf5_error());
    }
    const hid_t file = o.file.get();
    const std::string format = text_attribute(file, path, "format").value_or("");
    if (format != kFormat) {
        fail(ExitCode::bad_data, "{}: attribute format is \"{}\", not \"{}\"", path, format, kFormat);
    }
    const auto version = number_attribute<std::int64_t>(file, path, "format_version", H5T_NATIVE_INT64).value_or(0);
    if (version != kVersion) {
        fail(ExitCode::bad_data, "{}: format_version {} is not known; this version reads {}", path, version, kVersion);
    }
    const DataSet offsets = require_set(file, path, "offsets", H5T_INTEGER, 8, file_bytes);
    o.offsets.resize(static_cast<std::size_t>(offsets.length));
    read_range(offsets, H5T_NATIVE_INT64, 0, o.offsets.size(), o.offsets.data(), path, "offsets");
    check_offsets(o.offsets, path, ExitCode::bad_data);
    const auto require_length = [&](const DataSet& set, const char* name, std::int64_t length) {
        if (set.length != length) {
            fail(ExitCode::bad_data, "{}: /{} has {} values, /offsets asks for {}", path, name, set.length, length);
        }
    };
    o.log_probs = require_set(file, path, "log_probs", H5T_FLOAT, 4, file_bytes);
    require_length(o.log_probs, "log_probs", values());
    o.sums = require_set(file, path, "sum_log_prob", H5T_FLOAT, 8, file_bytes);
    require_length(o.sums, "sum_log_prob", sequences());
    o.entropy = open_set(file, path, "entropy", H5T_FLOAT, 4, file_bytes);
    if (o.entropy) {
        require_length(*o.entropy, "entropy", values());
    }
    o.attributes.model = text_attribute(file, path, "model").value_or("");
    o.attributes.model_hash = text_attribute(file, path, "model_hash").value_or("");
    o.attributes.data = text_attribute(file, path, "data").value_or("");
    o.attributes.temperature = number_attribute<double>(file, path, "temperature", H5T_NATIVE_DOUBLE).value_or(1.0);
    o.attributes.compute_dtype = text_attribute(file, path, "compute_dtype").value_or("");
    o.attributes.job = text_attribute(file, path, "job").value_or("");
    o.complete = number_attribute<std::int64_t>(file, path, "complete", H5T_NATIVE_INT64).value_or(0) == 1;
}

LogProbFile::LogProbFile(LogProbFile&&) noexcept = default;
LogProbFile& LogProbFile::operator=(LogProbFile&&) noexcept = default;
LogProbFile::~LogProbFile() = default;

const std::string& LogProbFile::path() const {
    return opened_->path;
}

const std::vector<std::int64_t>& LogProbFile::offsets() const {
    return opened_->offsets;
}

std::int64_t LogProbFile::sequences() const {
    return narrow<std::int64_t>(opened_->offsets.size()) - 1;
}

std::int64_t LogProbFile::values() const {
    return opened_->offsets.back();
}

bool LogProbFile::has_entropy() const {
    return opened_->entropy.has_value();
}

bool LogProbFile::complete() const {
    return opened_->complete;
}

const LogProbAttributes& LogProbFile::attributes() const {
    return opened_->attributes;
}

std::vector<bool> LogProbFile::done() const {
    std::vector<double> sums(static_cast<std::size_t>(sequences()));
    read_sums(0, sums);
    std::vector<bool> result(sums.size());
    std::transform(sums.begin(), sums.end(), result.begin(), is_done);
    return result;
}

void LogProbFile::read_log_probs(std::int64_t first, std::span<float> to) const {
    read_range(opened_->log_probs, H5T_NATIVE_FLOAT, first, to.size(), to.data(), opened_->path, "log_probs");
}

void LogProbFile::read_entropy(std::int64_t first, std::span<float> to) const {
    if (!has_entropy()) {
        fail(ExitCode::bad_data, "{} holds no entropy", opened_->path);
    }
    read_range(*opened_->entropy, H5T_NATIVE_FLOAT, first, to.size(), to.data(), opened_->path, "entropy");
}

void LogProbFile::read_sums(std::int64_t first, std::span<double> to) const {
    read_range(opened_->sums, H5T_NATIVE_DOUBLE, first, to.size(), to.data(), opened_->path, "sum_log_prob");
}

// ---------------------------------------------------------------------------------------------------- LogProbWriter

LogProbWriter::LogProbWriter(std::string path, std::vector<std::int64_t> offsets, bool entropy,
                             const LogProbAttributes& attributes)
    : path_(std::move(path)), partial_(path_ + ".partial"), offsets_(std::move(offsets)), entropy_(entropy) {
    check_offsets(offsets_, path_, ExitCode::internal);
    if (!take_up(attributes)) {
        create(attributes);
    }
    file_ = FileDescriptor(::open(partial_.c_str(), O_RDWR | O_CLOEXEC));
    if (!file_.is_open()) {
        fail_to_write("open", partial_, errno);
    }
    missing_.resize(done_.size());
    for (std::size_t n = 0; n < done_.size(); ++n) {
        missing_[n] = done_[n] ? 0 : offsets_[n + 1] - offsets_[n];
    }
    done_count_ = std::count(done_.begin(), done_.end(), true);
}

bool LogProbWriter::take_up(const LogProbAttributes& attributes) {
    if (::access(partial_.c_str(), F_OK) != 0) {
        return false;
    }
    const auto discard = [&](const std::string& why) {
        discarded_ = fmt::format("{} is started over: {}", partial_, why);
        return false;
    };
    try {
        const LogProbFile file(partial_);
        const LogProbAttributes& old = file.attributes();
        const auto differs = [&](const char* what) {
            return discard(fmt::format("it was computed with another {}", what));
        };
        if (file.offsets() != offsets_) return differs("data set (other sequences or lengths)");
        if (old.model_hash != attributes.model_hash || old.model != attributes.model) return differs("model");
        if (old.data != attributes.data) return differs("list of data");
        if (old.temperature != attributes.temperature) return differs("temperature");
        if (old.compute_dtype != attributes.compute_dtype) return differs("precision");
        if (file.has_entropy() != entropy_) return differs("choice of entropy");
        if (old != attributes) return differs("job file");
        const LogProbFile::Opened& o = *file.opened_;
        const bool in_place = file.values() == 0 || (o.log_probs.at >= 0 && (!entropy_ || o.entropy->at >= 0));
        if (!in_place || (file.sequences() > 0 && o.sums.at < 0)) {
            return discard("its values do not lie in one piece");
        }
        log_probs_at_ = o.log_probs.at;
        entropy_at_ = entropy_ ? o.entropy->at : 0;
        sums_at_ = o.sums.at;
        done_ = file.done();
        return true;
    } catch (const Error& error) {
        return discard(error.what());
    }
}

void LogProbWriter::create(const LogProbAttributes& attributes) {
    // Made beside, so that a partial file is never itself half-made.
    const Unfinished beside{partial_ + ".tmp"};
    const std::string& path = beside.path;
    const std::int64_t count = narrow<std::int64_t>(offsets_.size()) - 1;
    const std::int64_t values = offsets_.back();
    const std::int64_t bytes = checked_add(checked_mul(values, entropy_ ? 8 : 4, "log-probs"),
                                           checked_mul(count, 16, "sequences"), "log-prob file");
    {
        // First without HDF5, whose messages do not say what to do where nothing can be written.
        constexpr std::int64_t kMetadata = 64 << 10;
        const FileDescriptor space(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
        if (!space.is_open()) {
            fail_to_write("create", path, errno);
        }
        reserve(space.get(), bytes + kMetadata, path);
    }
    std::int64_t offsets_at = 0;
    {
        const Quiet quiet;
        const Handle access = file_access();
        const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
        // All attributes in one object header: to mark the file complete is then a single small write.
        H5Pset_attr_phase_change(creation.get(), 64, 0);
        Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
        check(file.valid(), path);
        const hid_t id = file.get();
        write_text(id, path, "format", kFormat);
        write_number(id, path, "format_version", H5T_STD_I64LE, kVersion);
        write_text(id, path, "alignment", kAlignment);
        write_number(id, path, "complete", H5T_STD_I64LE, std::int64_t{0});
        write_number(id, path, "temperature", H5T_IEEE_F64LE, attributes.temperature);
        write_text(id, path, "model", attributes.model);
        write_text(id, path, "model_hash", attributes.model_hash);
        write_text(id, path, "data", attributes.data);
        write_text(id, path, "compute_dtype", attributes.compute_dtype);
        write_text(id, path, "job", attributes.job);
        offsets_at = create_set(id, path, "offsets", H5T_STD_I64LE, count + 1);
        log_probs_at_ = create_set(id, path, "log_probs", H5T_IEEE_F32LE, values);
        entropy_at_ = entropy_ ? create_set(id, path, "entropy", H5T_IEEE_F32LE, values) : 0;
        sums_at_ = create_set(id, path, "sum_log_prob", H5T_IEEE_F64LE, count);
        check(file.close(), path);
    }
    const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file.is_open()) {
        fail_to_write("open", path, errno);
    }
    reserve(file.get(), size_of_file(path), path);
    done_.assign(static_cast<std::size_t>(count), false);
    std::vector<std::uint64_t> sums(done_.size(), kNotDone);
    for (std::size_t n = 0; n < done_.size(); ++n) {
        if (offsets_[n + 1] == offsets_[n]) {
            done_[n] = true;
            sums[n] = std::bit_cast<std::uint64_t>(0.0);
        }
    }
    write_at(file.get(), offsets_.data(), (count + 1) * 8, offsets_at, path);
    write_at(file.get(), sums.data(), count * 8, sums_at_, path);
    sync_file(file.get(), path);
    replace(path, partial_);
}

void LogProbWriter::write(std::int64_t sequence, std::int64_t first_value, std::span<const float> log_probs,
                          std::span<const float> entropy) {
    const auto count = narrow<std::int64_t>(log_probs.size());
    if (sequence < 0 || sequence >= sequences() || done_[static_cast<std::size_t>(sequence)]) {
        fail(ExitCode::internal, "{}: values of sequence {}, which is done or not there", path_, sequence);
    }
    if (entropy.size() != (entropy_ ? log_probs.size() : 0)) {
        fail(ExitCode::internal, "{}: {} entropies for {} log-probs", path_, entropy.size(), count);
    }
    const auto n = static_cast<std::size_t>(sequence);
    const std::int64_t length = offsets_[n + 1] - offsets_[n];
    if (first_value < 0 || first_value > length || count > length - first_value || count > missing_[n]) {
        fail(ExitCode::internal, "{}: {} values from {} on do not fit sequence {} of {}, {} of them to be written",
             path_, count, first_value, sequence, length, missing_[n]);
    }
    missing_[n] -= count;
    const std::int64_t at = (offsets_[n] + first_value) * 4;
    write_at(file_.get(), log_probs.data(), count * 4, log_probs_at_ + at, partial_);
    if (entropy_) {
        write_at(file_.get(), entropy.data(), count * 4, entropy_at_ + at, partial_);
    }
}

void LogProbWriter::mark_done(std::int64_t sequence, double sum_log_prob) {
    if (sequence < 0 || sequence >= sequences() || done_[static_cast<std::size_t>(sequence)]) {
        fail(ExitCode::internal, "{}: sequence {} is done or not there", path_, sequence);
    }
    const auto n = static_cast<std::size_t>(sequence);
    if (missing_[n] != 0) {
        fail(ExitCode::internal, "{}: {} values of sequence {} were not written", path_, missing_[n], sequence);
    }
    done_[n] = true;
    ++done_count_;
    // Whatever the computation made of it, a not-a-number must not look like the mark.
    marks_.push_back({sequence, std::isnan(sum_log_prob) ? std::numeric_limits<double>::quiet_NaN() : sum_log_prob});
}

void LogProbWriter::write_sequence(std::int64_t sequence, std::span<const float> log_probs,
                                   std::span<const float> entropy, double sum_log_prob) {
    write(sequence, 0, log_probs, entropy);
    mark_done(sequence, sum_log_prob);
}

void LogProbWriter::flush() {
    sync_file(file_.get(), partial_);
    if (marks_.empty()) {
        return;
    }
    for (const Sum& mark : marks_) {
        write_at(file_.get(), &mark.value, 8, sums_at_ + mark.sequence * 8, partial_);
    }
    sync_file(file_.get(), partial_);
    marks_.clear();
}

void LogProbWriter::finish() {
    if (done_count_ != sequences()) {
        fail(ExitCode::internal, "{}: {} of {} sequences are not done", path_, sequences() - done_count_, sequences());
    }
    flush();
    {
        const Quiet quiet;
        const Handle access = file_access();
        Handle file(H5Fopen(partial_.c_str(), H5F_ACC_RDWR, access.get()), H5Fclose);
        check(file.valid(), partial_);
        {
            const Handle attribute(H5Aopen(file.get(), "complete", H5P_DEFAULT), H5Aclose);
            const std::int64_t one = 1;
            check(attribute.valid() && H5Awrite(attribute.get(), H5T_NATIVE_INT64, &one) >= 0, partial_);
        }
        check(file.close(), partial_);
    }
    sync_file(file_.get(), partial_);
    file_ = FileDescriptor();
    replace(partial_, path_);
}

}  // namespace tessera
