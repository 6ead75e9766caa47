// Checkpoints of sharded states: every rank writes what it owns; any number of ranks reads what it needs by ranges.
//
// Shard file of rank r, little-endian f32, three sections of one size: masters, first moments, second moments. A
// section holds the rank's pieces in the order of the buckets. The manifest's `layout` says which buckets there are, so
// that element e of unit u is found without any rule: bucket [unit, first, piece] with first <= e, rank (e - first) /
// piece, at (the sum of the pieces of the buckets before it) + (e - first) % piece in the section. Weights in a lower
// precision are the masters, rounded; they are not stored.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/communicator.h"
#include "io/checkpoint_directory.h"
#include "io/file.h"
#include "zero/model_states.h"

namespace tessera {

/// How far a run has come. Everything that depends on the past other than weights and moments.
struct TrainingProgress {
    std::int64_t step = 0;     // steps done, skipped ones too
    std::int64_t updates = 0;  // steps that changed the weights: what bias correction and schedule count
    std::int64_t skipped_in_a_row = 0;
    std::int64_t rows = 0;    // rows taken from the stream
    std::int64_t tokens = 0;  // inputs so far

    bool operator==(const TrainingProgress&) const = default;
};

/// What a reader of a checkpoint wants to know besides the states.
struct CheckpointDescription {
    std::string model_directory;  // config and tokenizer files
    std::string compute_dtype;
    std::string job;  // the resolved job file
};

/// Writes <root>/step-<n>; collective. Errors are agreed on; the checkpoints before it stay as they are.
void save_checkpoint(const std::string& root, const ModelStates& states, Ops& ops, const Communicator& communicator,
                     const TrainingProgress& progress, const CheckpointDescription& description);

/// A complete checkpoint, opened for reading. Not for several threads.
class ShardedCheckpoint {
  public:
    enum class State : std::uint8_t { master, first_moment, second_moment };

    /// Throws bad_data where the manifest does not describe a layout or a shard has another size.
    explicit ShardedCheckpoint(CheckpointInfo info);

    [[nodiscard]] const CheckpointInfo& info() const { return info_; }
    [[nodiscard]] const TrainingProgress& progress() const { return progress_; }
    [[nodiscard]] const CheckpointDescription& description() const { return description_; }
    [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
    [[nodiscard]] std::int64_t ranks() const { return ranks_; }

    /// Throws bad_data, naming the first difference, unless the checkpoint holds exactly these parameters.
    void check(const std::vector<Unit>& units) const;

    /// Elements [first, first + count) of a unit, across shards.
    void read(State state, std::int64_t unit, std::int64_t first, std::int64_t count, float* to);

    /// Parameters (masters, converted) by name.
    [[nodiscard]] ReadParameter parameters() { return reader(State::master); }

    /// Everything that `states` holds. `rounding_seed`: that of ShardedOptimizer::Options.
    void load(ModelStates& states, Ops& ops, std::optional<std::int64_t> rounding_seed = std::nullopt);

  private:
    /// Reads ranges of a state by the parameter's name.
    [[nodiscard]] ReadParameter reader(State state);
    void read_layout();
    void check_buckets() const;

    CheckpointInfo info_;
    TrainingProgress progress_;
    CheckpointDescription description_;
    std::vector<Unit> units_;
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> places_;  // by name: unit, offset
    std::int64_t ranks_ = 1;
    std::vector<Bucket> buckets_;
    std::int64_t shard_elements_ = 0;
    std::int64_t open_rank_ = -1;
    std::unique_ptr<ReadOnlyFile> reader_;  // of open_rank_
};

}  // namespace tessera
