#include "zero/sharded_checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zero/stochastic_weights.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::int64_t kSections = 3;

std::string shard_name(std::int64_t rank, std::int64_t ranks) {
    return fmt::format("shard-{:05}-of-{:05}.bin", rank, ranks);
}

json describe_units(const std::vector<Unit>& units) {
    json result = json::array();
    for (const Unit& unit : units) {
        json parameters = json::array();
        for (const Parameter& parameter : unit.parameters) {
            parameters.push_back({{"name", parameter.name}, {"shape", parameter.shape}, {"offset", parameter.offset}});
        }
        result.push_back({{"name", unit.name}, {"elements", unit.elements}, {"parameters", std::move(parameters)}});
    }
    return result;
}

json describe(const ModelStates& states, const TrainingProgress& progress, const CheckpointDescription& description) {
    json buckets = json::array();
    for (const Bucket& bucket : states.partition().buckets()) {
        buckets.push_back({bucket.unit, bucket.first, bucket.piece});
    }
    return {{"progress",
             {{"step", progress.step},
              {"updates", progress.updates},
              {"skipped_in_a_row", progress.skipped_in_a_row},
              {"rows", progress.rows},
              {"tokens", progress.tokens}}},
            {"model", description.model_directory},
            {"compute_dtype", description.compute_dtype},
            {"job", description.job},
            {"layout",
             {{"ranks", states.partition().ranks()},
              {"dtype", "f32"},
              {"sections", {"master", "first_moment", "second_moment"}},
              {"units", describe_units(states.units())},
              {"buckets", std::move(buckets)}}}};
}

/// Writes the own pieces of the three sections; padding is written too, as zeros.
FileRecord write_shard(const std::string& directory, const ModelStates& states, Ops& ops) {
    constexpr std::int64_t kChunk = 1 << 20;
    std::vector<std::byte> chunk(static_cast<std::size_t>(kChunk * size_of(DType::f32)));
    const Partition& partition = states.partition();
    const std::int64_t rank = states.options().rank;
    ShardWriter writer(directory, shard_name(rank, partition.ranks()));
    for (const ShardableVector* vector : {&states.masters(), &states.first_moments(), &states.second_moments()}) {
        for (const Bucket& bucket : partition.buckets()) {
            const std::int64_t first = bucket.first + rank * bucket.piece;
            const UnitRange piece{bucket.unit, first, bucket.piece, partition.flat(bucket.unit) + first, bucket.shard};
            for (std::int64_t done = 0; done < bucket.piece; done += kChunk) {
                const std::int64_t part = std::min(kChunk, bucket.piece - done);
                const std::int64_t bytes = part * size_of(DType::f32);
                ops.read(std::span(chunk).first(static_cast<std::size_t>(bytes)), vector->at(piece, done, part));
                writer.write(chunk.data(), bytes);
            }
        }
    }
    return writer.finish();
}

FileRecord parse_record(const std::string& text) {
    const json record = json::parse(text);
    return {record.at("name"), record.at("bytes"), record.at("xxh3")};
}

}  // namespace

void save_checkpoint(const std::string& root, const ModelStates& states, Ops& ops, const Communicator& communicator,
                     const TrainingProgress& progress, const CheckpointDescription& description) {
    CheckpointWriter writer(root, progress.step);
    communicator.agree([&] {
        if (communicator.rank() == 0) {
            writer.begin();
        }
    });
    FileRecord record;
    communicator.agree([&] { record = write_shard(writer.directory(), states, ops); });
    const json own = {{"name", record.name}, {"bytes", record.bytes}, {"xxh3", record.xxh3}};
    const std::vector<std::string> records = communicator.all_gather(own.dump());
    communicator.agree([&] {
        if (communicator.rank() == 0) {
            std::vector<FileRecord> files;
            std::ranges::transform(records, std::back_inserter(files), parse_record);
            writer.commit(describe(states, progress, description), files);
        }
    });
}

ShardedCheckpoint::ShardedCheckpoint(CheckpointInfo info) : info_(std::move(info)) {
    try {
        read_layout();
    } catch (const json::exception& error) {
        fail(ExitCode::bad_data, "{}/manifest.json is not the manifest of a training checkpoint: {}", info_.path,
             error.what());
    }
    check_buckets();
}

void ShardedCheckpoint::read_layout() {
    const json& manifest = *info_.manifest;
    const json& progress = manifest.at("progress");
    progress_ = {progress.at("step"), progress.at("updates"), progress.at("skipped_in_a_row"), progress.at("rows"),
                 progress.at("tokens")};
    description_ = {manifest.at("model"), manifest.at("compute_dtype"), manifest.at("job")};
    const json& layout = manifest.at("layout");
    ranks_ = layout.at("ranks");
    for (const json& unit : layout.at("units")) {
        Unit& added = units_.emplace_back();
        added.name = unit.at("name");
        added.elements = unit.at("elements");
        for (const json& parameter : unit.at("parameters")) {
            added.parameters.push_back({parameter.at("name"), parameter.at("shape"), parameter.at("offset")});
            places_[added.parameters.back().name] = {narrow<std::int64_t>(units_.size()) - 1,
                                                     added.parameters.back().offset};
        }
    }
    for (const json& bucket : layout.at("buckets")) {
        buckets_.push_back({bucket.at(0), bucket.at(1), bucket.at(2), shard_elements_});
        shard_elements_ = checked_add(shard_elements_, buckets_.back().piece, "elements of a checkpoint");
    }
}

void ShardedCheckpoint::check_buckets() const {
    const auto require = [&](bool holds, const char* what) {
        if (!holds) {
            fail(ExitCode::bad_data, "{}/manifest.json: {}; the checkpoint is damaged, use another", info_.path, what);
        }
    };
    require(ranks_ >= 1 && narrow<std::int64_t>(info_.files.size()) == ranks_, "there is not one shard for each rank");
    std::int64_t unit = -1;
    std::int64_t end = 0;
    for (const Bucket& bucket : buckets_) {
        if (bucket.unit != unit) {
            require(unit < 0 || end >= units_[static_cast<std::size_t>(unit)].elements,
                    "buckets leave out a part of a unit");
            require(bucket.unit == unit + 1 && bucket.unit < narrow<std::int64_t>(units_.size()),
                    "buckets are out of order");
            unit = bucket.unit;
            end = 0;
        }
        require(bucket.first == end && bucket.piece > 0, "buckets overlap or leave a hole");
        end = checked_add(end, checked_mul(bucket.piece, ranks_, "elements of a bucket"), "elements of a unit");
    }
    require(unit + 1 == narrow<std::int64_t>(units_.size()) && unit >= 0 &&
                end >= units_[static_cast<std::size_t>(unit)].elements,
            "buckets leave out a part of the model");
    for (const Unit& one : units_) {
        for (const Parameter& parameter : one.parameters) {
            require(!parameter.shape.empty() && parameter.shape.size() <= 2 &&
                        std::ranges::all_of(parameter.shape, [](std::int64_t size) { return size > 0; }),
                    "a parameter has no shape");
            const std::int64_t elements = checked_mul(parameter.rows(), parameter.cols(), "elements of a parameter");
            require(parameter.offset >= 0 && checked_add(parameter.offset, elements, "elements") <= one.elements,
                    "a parameter lies outside its unit");
        }
    }
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
        const FileRecord& file = info_.files[static_cast<std::size_t>(rank)];
        require(file.name == shard_name(rank, ranks_), "a shard has another name");
        require(file.bytes == checked_mul(shard_elements_, kSections * size_of(DType::f32), "bytes of a shard"),
                "a shard has another size than its buckets");
    }
}

void ShardedCheckpoint::check(const std::vector<Unit>& units) const {
    std::vector<const Parameter*> want;
    std::vector<const Parameter*> have;
    for (const Unit& unit : units) {
        std::ranges::transform(unit.parameters, std::back_inserter(want), [](const Parameter& p) { return &p; });
    }
    for (const Unit& unit : units_) {
        std::ranges::transform(unit.parameters, std::back_inserter(have), [](const Parameter& p) { return &p; });
    }
    // Their order within a unit depends on what stays resident.
    std::ranges::sort(want, {}, &Parameter::name);
    std::ranges::sort(have, {}, &Parameter::name);
    for (std::size_t i = 0; i < std::max(want.size(), have.size()); ++i) {
        if (i >= want.size() || i >= have.size() || want[i]->name != have[i]->name ||
            want[i]->shape != have[i]->shape) {
            const std::string name = i < want.size() ? want[i]->name : have[i]->name;
            fail(ExitCode::bad_data,
                 "the checkpoint {} is of another model than this job's: they differ at {}; set checkpoint.resume = "
                 "\"never\" to start anew, or another output_dir",
                 info_.path, name);
        }
    }
}

void ShardedCheckpoint::read(State state, std::int64_t unit, std::int64_t first, std::int64_t count, float* to) {
    const std::int64_t section = static_cast<std::int64_t>(state) * shard_elements_;
    // The last bucket of the unit that starts at or before `first`.
    auto bucket = std::ranges::upper_bound(buckets_, std::pair(unit, first), {},
                                           [](const Bucket& b) { return std::pair(b.unit, b.first); });
    --bucket;
    while (count > 0) {
        const std::int64_t within = first - bucket->first;
        const std::int64_t rank = within / bucket->piece;
        if (rank >= ranks_) {
            ++bucket;
            continue;
        }
        const std::int64_t in_piece = within % bucket->piece;
        const std::int64_t part = std::min(count, bucket->piece - in_piece);
        if (rank != open_rank_) {
            reader_ = std::make_unique<ReadOnlyFile>(info_.path + "/" + shard_name(rank, ranks_));
            open_rank_ = rank;
        }
        reader_->read((section + bucket->shard + in_piece) * size_of(DType::f32), to, part * size_of(DType::f32));
        first += part;
        count -= part;
        to += part;
    }
}

ReadParameter ShardedCheckpoint::reader(State state) {
    return [this, state](const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) {
        const auto& [unit, offset] = places_.at(parameter.name);
        constexpr std::int64_t kChunk = 1 << 18;
        std::vector<float> chunk(static_cast<std::size_t>(std::min(count, kChunk)));
        for (std::int64_t done = 0; done < count; done += kChunk) {
            const std::int64_t part = std::min(kChunk, count - done);
            read(state, unit, offset + first + done, part, chunk.data());
            convert(dtype, static_cast<std::byte*>(to) + done * size_of(dtype), DType::f32, chunk.data(), part);
        }
    };
}

void ShardedCheckpoint::load(ModelStates& states, Ops& ops, std::optional<std::int64_t> rounding_seed) {
    check(states.units());
    const bool rounded = rounding_seed && progress_.updates > 0;
    states.load(rounded ? rounded_at_random(parameters(), *rounding_seed, progress_.updates) : parameters(), ops);
    for (const auto& [state, vector] : {std::pair(State::first_moment, &states.first_moments()),
                                        std::pair(State::second_moment, &states.second_moments())}) {
        const ReadParameter read_state = reader(state);
        for (const UnitRange& range : states.ranges()) {
            states.load_range(read_state, range, *vector, ops);
        }
    }
}

}  // namespace tessera
