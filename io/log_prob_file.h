// The log-prob file (docs: "tessera.log_probs"): ragged log-probabilities, entropies and sums of a data set in HDF5.
// HDF5 is not re-entrant: use these classes from one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/durable_file.h"
#include "io/hdf5.h"

namespace tessera {

/// What the values were computed from. Two files with equal attributes and offsets hold the same values.
struct LogProbAttributes {
    std::string model;
    std::string model_hash;
    std::string data;
    double temperature = 1.0;
    std::string compute_dtype;
    std::string job;  // the resolved job file

    bool operator==(const LogProbAttributes&) const = default;
};

/// Reads a log-prob file, whole or partial. Throws bad_data where it is not one, or says of itself what cannot be.
class LogProbFile {
  public:
    explicit LogProbFile(const std::string& path);

    [[nodiscard]] const std::string& path() const { return path_; }
    /// Sequence n has the values [offsets[n], offsets[n + 1]).
    [[nodiscard]] const std::vector<std::int64_t>& offsets() const { return offsets_; }
    [[nodiscard]] std::int64_t sequences() const { return std::ssize(offsets_) - 1; }
    [[nodiscard]] std::int64_t values() const { return offsets_.back(); }
    [[nodiscard]] bool has_entropy() const { return entropy_.has_value(); }
    [[nodiscard]] bool complete() const { return complete_; }
    [[nodiscard]] const LogProbAttributes& attributes() const { return attributes_; }

    /// Which sequences have been written; all of them where complete().
    [[nodiscard]] std::vector<bool> done() const;

    /// Values [first, first + to.size()) of all sequences, one after another.
    void read_log_probs(std::int64_t first, std::span<float> to) const;
    void read_entropy(std::int64_t first, std::span<float> to) const;
    /// Sums of the sequences [first, first + to.size()); not a number where a sequence is not done.
    void read_sums(std::int64_t first, std::span<double> to) const;

  private:
    friend class LogProbWriter;
    explicit LogProbFile(const hdf5::File& file);

    std::string path_;
    std::vector<std::int64_t> offsets_;
    hdf5::Dataset log_probs_;
    hdf5::Dataset sums_;
    std::optional<hdf5::Dataset> entropy_;
    LogProbAttributes attributes_;
    bool complete_;
};

/// Writes a log-prob file under the name `<path>.partial` and renames it when it is whole. A run that was stopped is
/// taken up again: what flush() has made durable is kept. For one process at a time.
///
/// HDF5 makes the file with all its space and closes it; values then go to their places with plain writes, which
/// leaves nothing that a kill could tear. A sequence is done when its sum is there: until then /sum_log_prob holds a
/// not-a-number that no computation gives.
class LogProbWriter {
  public:
    /// `offsets` has one entry more than there are sequences, starts at 0 and never falls. Sequences without values are
    /// done from the start, with the sum 0. A partial file of other offsets or attributes is discarded.
    LogProbWriter(std::string path, std::vector<std::int64_t> offsets, bool entropy,
                  const LogProbAttributes& attributes);

    /// Why an earlier partial file was not taken up; empty where it was or there was none.
    [[nodiscard]] const std::string& discarded() const { return discarded_; }

    [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(done_.size()); }
    /// Sequences that need not be computed any more.
    [[nodiscard]] const std::vector<bool>& done() const { return done_; }
    [[nodiscard]] std::int64_t done_count() const { return done_count_; }

    /// Values [first_value, first_value + log_probs.size()) of a sequence that is not done, each value once, in any
    /// order. `entropy` is as long as `log_probs`, or empty where the file has none.
    void write(std::int64_t sequence, std::int64_t first_value, std::span<const float> log_probs,
               std::span<const float> entropy);

    /// Says that all values of the sequence were written. Kept from the next flush() on.
    void mark_done(std::int64_t sequence, double sum_log_prob);

    /// All values of a sequence at once.
    void write_sequence(std::int64_t sequence, std::span<const float> log_probs, std::span<const float> entropy,
                        double sum_log_prob);

    /// Makes durable what is done: first the values, then the marks.
    void flush();

    /// Every sequence must be done: marks the file complete and renames it to its final name. Nothing may follow.
    void finish();

  private:
    struct Sum {
        std::int64_t sequence;
        double value;
    };

    [[nodiscard]] bool take_up(const LogProbAttributes& attributes);
    void create(const LogProbAttributes& attributes);

    std::string path_;
    std::string partial_;
    std::vector<std::int64_t> offsets_;
    bool entropy_;
    std::string discarded_;
    std::vector<bool> done_;
    std::int64_t done_count_ = 0;
    std::vector<std::int64_t> missing_;  // values of each sequence that are still to be written
    std::vector<Sum> marks_;             // done since the last flush
    FileDescriptor file_;
    std::int64_t log_probs_at_ = 0;  // where the data sets begin in the file, bytes
    std::int64_t entropy_at_ = 0;
    std::int64_t sums_at_ = 0;
};

}  // namespace tessera
