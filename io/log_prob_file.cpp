#include "io/log_prob_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "io/file.h"

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

hdf5::File open_log_probs(const std::string& path) {
    hdf5::File file = hdf5::File::open(path);
    file.require_format(kFormat, kVersion);
    return file;
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

std::vector<std::int64_t> read_offsets(const hdf5::File& file) {
    const hdf5::Dataset dataset = file.dataset("offsets", {hdf5::Type::i64});
    constexpr std::int64_t kBlock = 1 << 20;
    std::vector<std::int64_t> offsets;
    // Grows with what was really read: a packed data set may promise more.
    for (std::int64_t first = 0; first < dataset.size(); first += kBlock) {
        const std::int64_t count = std::min(kBlock, dataset.size() - first);
        offsets.resize(static_cast<std::size_t>(first + count));
        dataset.read(first, count, offsets.data() + first);
    }
    check_offsets(offsets, file.path(), ExitCode::bad_data);
    return offsets;
}

hdf5::Dataset open_values(const hdf5::File& file, const char* name, hdf5::Type type, std::int64_t length) {
    hdf5::Dataset dataset = file.dataset(name, {type});
    if (dataset.size() != length) {
        fail(ExitCode::bad_data, "{} has {} values, /offsets asks for {}", dataset.place(), dataset.size(), length);
    }
    return dataset;
}

LogProbAttributes read_attributes(const hdf5::File& file) {
    const auto text = [&](const char* name) { return file.string_attribute(name).value_or(""); };
    return {text("model"),         text("model_hash"), text("data"), file.real_attribute("temperature").value_or(1.0),
            text("compute_dtype"), text("job")};
}

// ---------------------------------------------------------------------------------------------------------- writing

/// Makes a data set and says where in the file its values begin.
std::int64_t create_values(const hdf5::File& file, const char* name, hdf5::Type type, std::int64_t length) {
    const hdf5::Dataset dataset = file.create_dataset(name, type, length);
    const auto at = dataset.offset();
    if (length > 0 && !at) {
        fail(ExitCode::cannot_write, "{}: HDF5 did not give it space", dataset.place());
    }
    return at.value_or(0);
}

FileDescriptor open_to_write(const std::string& path, int flags) {
    FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
    if (!file.is_open()) {
        fail_to_write((flags & O_CREAT) != 0 ? "create" : "open", path, errno);
    }
    return file;
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

LogProbFile::LogProbFile(const std::string& path) : LogProbFile(open_log_probs(path)) {}

LogProbFile::LogProbFile(const hdf5::File& file)
    : path_(file.path()),
      offsets_(read_offsets(file)),
      log_probs_(open_values(file, "log_probs", hdf5::Type::f32, values())),
      sums_(open_values(file, "sum_log_prob", hdf5::Type::f64, sequences())),
      attributes_(read_attributes(file)),
      complete_(file.integer_attribute("complete").value_or(0) == 1) {
    if (file.has("entropy")) {
        entropy_ = open_values(file, "entropy", hdf5::Type::f32, values());
    }
}

std::vector<bool> LogProbFile::done() const {
    std::vector<double> sums(static_cast<std::size_t>(sequences()));
    read_sums(0, sums);
    std::vector<bool> result(sums.size());
    std::transform(sums.begin(), sums.end(), result.begin(), is_done);
    return result;
}

void LogProbFile::read_log_probs(std::int64_t first, std::span<float> to) const {
    log_probs_.read(first, std::ssize(to), to.data());
}

void LogProbFile::read_entropy(std::int64_t first, std::span<float> to) const {
    if (!has_entropy()) {
        fail(ExitCode::bad_data, "{} holds no entropy", path_);
    }
    entropy_->read(first, std::ssize(to), to.data());
}

void LogProbFile::read_sums(std::int64_t first, std::span<double> to) const {
    sums_.read(first, std::ssize(to), to.data());
}

// ---------------------------------------------------------------------------------------------------- LogProbWriter

LogProbWriter::LogProbWriter(std::string path, std::vector<std::int64_t> offsets, bool entropy,
                             const LogProbAttributes& attributes)
    : path_(std::move(path)), partial_(path_ + ".partial"), offsets_(std::move(offsets)), entropy_(entropy) {
    check_offsets(offsets_, path_, ExitCode::internal);
    if (!take_up(attributes)) {
        create(attributes);
    }
    file_ = open_to_write(partial_, O_RDWR);
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
        const auto place_of = [](const hdf5::Dataset& values) {
            return values.size() == 0 ? std::optional<std::int64_t>(0) : values.offset();
        };
        const auto log_probs_at = place_of(file.log_probs_);
        const auto entropy_at = entropy_ ? place_of(*file.entropy_) : 0;
        const auto sums_at = place_of(file.sums_);
        if (!log_probs_at || !entropy_at || !sums_at) {
            return discard("its values do not lie in one piece");
        }
        log_probs_at_ = *log_probs_at;
        entropy_at_ = *entropy_at;
        sums_at_ = *sums_at;
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
        const FileDescriptor space = open_to_write(path, O_WRONLY | O_CREAT | O_TRUNC);
        reserve(space.get(), bytes + kMetadata, path);
    }
    std::int64_t offsets_at = 0;
    {
        hdf5::File file = hdf5::File::create(path);
        file.set_attribute("format", std::string(kFormat));
        file.set_attribute("format_version", kVersion);
        file.set_attribute("alignment", std::string(kAlignment));
        file.set_attribute("complete", std::int64_t{0});
        file.set_attribute("temperature", attributes.temperature);
        file.set_attribute("model", attributes.model);
        file.set_attribute("model_hash", attributes.model_hash);
        file.set_attribute("data", attributes.data);
        file.set_attribute("compute_dtype", attributes.compute_dtype);
        file.set_attribute("job", attributes.job);
        offsets_at = create_values(file, "offsets", hdf5::Type::i64, count + 1);
        log_probs_at_ = create_values(file, "log_probs", hdf5::Type::f32, values);
        entropy_at_ = entropy_ ? create_values(file, "entropy", hdf5::Type::f32, values) : 0;
        sums_at_ = create_values(file, "sum_log_prob", hdf5::Type::f64, count);
        file.close();
    }
    const FileDescriptor file = open_to_write(path, O_RDWR);
    reserve(file.get(), ReadOnlyFile(path).size(), path);
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
    hdf5::File file = hdf5::File::open_to_write(partial_);
    file.set_attribute("complete", std::int64_t{1});
    file.close();
    sync_file(file_.get(), partial_);
    file_ = FileDescriptor();
    replace(partial_, path_);
}

}  // namespace tessera
