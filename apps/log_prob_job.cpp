#include "apps/log_prob_job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "apps/console.h"
#include "apps/cores.h"
#include "apps/hang_watch.h"
#include "apps/launch.h"
#include "apps/log_prob_setup.h"
#include "apps/open_device.h"
#include "apps/run_directory.h"
#include "core/base/stopwatch.h"
#include "core/transformer.h"
#include "io/log_prob_file.h"

namespace tessera {
namespace {

constexpr double kFlushSeconds = 30;  // how much work a kill may cost
constexpr double kReportSeconds = 10;

/// What a rank computed of one micro-batch, as bytes for rank 0: for each piece the sum over its tokens that the loss
/// mask keeps (double), then all log-probs, then all entropies (float).
class BatchResult {
  public:
    BatchResult(std::int64_t pieces, std::int64_t values, bool entropy)
        : pieces_(pieces), values_(values), bytes_(static_cast<std::size_t>(pieces * 8 + values * (entropy ? 8 : 4))) {}
    /// From the bytes of another rank.
    BatchResult(std::int64_t pieces, std::int64_t values, const std::string& bytes)
        : pieces_(pieces), values_(values), bytes_(bytes.size()) {
        std::memcpy(bytes_.data(), bytes.data(), bytes.size());
    }
    [[nodiscard]] std::span<double> sums() {
        return {reinterpret_cast<double*>(bytes_.data()), static_cast<std::size_t>(pieces_)};
    }
    [[nodiscard]] std::span<float> log_probs() { return floats(0); }
    [[nodiscard]] std::span<float> entropies() { return floats(values_); }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  private:
    [[nodiscard]] std::span<float> floats(std::int64_t first) {
        return {reinterpret_cast<float*>(bytes_.data() + pieces_ * 8) + first, static_cast<std::size_t>(values_)};
    }
    std::int64_t pieces_;
    std::int64_t values_;
    std::vector<std::byte> bytes_;
};

class LogProbRun {
  public:
    LogProbRun(const Communicator& communicator, LogProbSetup& setup, Console& console, const StopSignals& signals,
               Progress& progress, PlannedMemory memory);
    LogProbRun(const LogProbRun&) = delete;
    LogProbRun& operator=(const LogProbRun&) = delete;
    ~LogProbRun() { queue_.close(); }
    void load() {
        const Progress::Pause pause(progress_);
        states_.load(initial_parameters(setup_.job(), setup_.model()), setup_.ops());
    }
    [[nodiscard]] ExitCode run(const std::string& path, const LogProbAttributes& attributes);
    /// Returns when all exchanges are done: before all ranks leave together.
    void settle() { queue_.settle(); }

  private:
    [[nodiscard]] std::int64_t values_of(std::int64_t batch) const;
    [[nodiscard]] std::vector<std::int64_t> pending(const std::vector<bool>& done) const;
    /// This rank's tokens of a round; nothing where a signal to any rank ends the run before it (stopped_by_).
    [[nodiscard]] std::optional<MicroBatch> fetch(std::optional<std::int64_t> batch);
    [[nodiscard]] BatchResult compute(std::int64_t batch, const MicroBatch& tokens);
    void write(std::int64_t batch, BatchResult result);
    void report(std::int64_t batches_left);
    [[nodiscard]] ExitCode stop(const std::string& path);

    const Communicator& communicator_;
    LogProbSetup& setup_;
    Console& console_;
    const StopSignals& signals_;
    Progress& progress_;
    bool entropy_;
    PlannedMemory memory_;
    CommunicationQueue queue_;
    ModelStates states_;
    std::unique_ptr<PublishedParameters> parameters_;
    Transformer transformer_;
    std::string stopped_by_;

    // Rank 0 only.
    std::unique_ptr<LogProbWriter> writer_;
    std::vector<std::int64_t> pieces_left_;  // of each sequence
    std::vector<double> sums_;               // of each sequence so far
    std::int64_t tokens_done_ = 0;
    std::int64_t tokens_to_do_ = 0;
    double total_ = 0;  // of the log-probs computed in this run
    std::int64_t values_ = 0;
    Stopwatch since_start_;
    Stopwatch since_flush_;
    double last_report_ = 0;
};

LogProbRun::LogProbRun(const Communicator& communicator, LogProbSetup& setup, Console& console,
                       const StopSignals& signals, Progress& progress, PlannedMemory memory)
    : communicator_(communicator),
      setup_(setup),
      console_(console),
      signals_(signals),
      progress_(progress),
      entropy_(setup.job().log_prob.entropy),
      memory_(std::move(memory)),
      queue_(communicator, setup.device(), progress_,
             setup.job().zero_optimization.overlap_comm && communicator.size() > 1, kCheckExchanges),
      states_(setup.model().units, setup.partition(), setup.states_options(communicator.rank()), memory_.carver()),
      parameters_(make_parameter_source(states_, queue_, setup.ops(), setup.gather_plans(),
                                        *setup.job().zero_optimization.allgather_bucket_size, memory_.carver())),
      transformer_(setup.model().config(), setup.model().units, setup.ops(), setup.limits(),
                   bind_workspace(memory_, setup.model(), setup.limits())) {}

std::int64_t LogProbRun::values_of(std::int64_t batch) const {
    std::int64_t values = 0;
    for (std::int64_t p = setup_.scoring().first_piece(batch); p < setup_.scoring().end_piece(batch); ++p) {
        values += setup_.scoring().pieces()[static_cast<std::size_t>(p)].values;
    }
    return values;
}

std::vector<std::int64_t> LogProbRun::pending(const std::vector<bool>& done) const {
    // Batches keep their members, so that a resumed run computes what an undisturbed one does.
    std::vector<std::int64_t> batches;
    for (std::int64_t b = 0; b < setup_.scoring().batches(); ++b) {
        for (std::int64_t p = setup_.scoring().first_piece(b); p < setup_.scoring().end_piece(b); ++p) {
            const auto sequence =
                static_cast<std::size_t>(setup_.scoring().pieces()[static_cast<std::size_t>(p)].sequence);
            if (!done[sequence]) {
                batches.push_back(b);
                break;
            }
        }
    }
    return batches;
}

std::optional<MicroBatch> LogProbRun::fetch(std::optional<std::int64_t> batch) {
    MicroBatch tokens;
    std::exception_ptr error;
    try {
        if (batch) {
            tokens = setup_.scoring().fetch(*batch, setup_.data());
        }
    } catch (...) {
        error = std::current_exception();
    }
    std::array<std::int64_t, 2> sums{error ? 1 : 0, signals_.received()};
    communicator_.all_reduce_sum(sums);
    if (sums[0] > 0) {
        communicator_.agree(error);
    }
    if (sums[1] > 0) {
        stopped_by_ = StopSignals::name_of(sums[1]);
        return std::nullopt;
    }
    return tokens;
}

BatchResult LogProbRun::compute(std::int64_t batch, const MicroBatch& tokens) {
    const LogProbPlan& plan = setup_.scoring();
    BatchResult result(plan.end_piece(batch) - plan.first_piece(batch), tokens.target_count(), entropy_);
    std::vector<double> log_probs(tokens.target_rows.size());
    std::vector<double> entropies(entropy_ ? log_probs.size() : 0);
    transformer_.score(tokens, setup_.job().log_prob.temperature, *parameters_, log_probs, entropies);
    std::ranges::transform(log_probs, result.log_probs().begin(), [](double x) { return static_cast<float>(x); });
    if (entropy_) {
        std::ranges::transform(entropies, result.entropies().begin(), [](double x) { return static_cast<float>(x); });
    }
    std::size_t at = 0;
    std::vector<std::uint8_t> mask;
    for (std::int64_t p = plan.first_piece(batch); p < plan.end_piece(batch); ++p) {
        const ScoredPiece& piece = plan.pieces()[static_cast<std::size_t>(p)];
        mask.resize(static_cast<std::size_t>(piece.values));
        // The mask belongs to the token that is scored: the one behind the input.
        const std::int64_t first = setup_.data().document_range(piece.sequence).first + piece.first_value + 1;
        setup_.data().read_mask(first, piece.values, mask.data());
        double sum = 0;
        for (const std::uint8_t kept : mask) {
            sum += kept != 0 ? static_cast<double>(result.log_probs()[at]) : 0;
            ++at;
        }
        result.sums()[static_cast<std::size_t>(p - plan.first_piece(batch))] = sum;
    }
    return result;
}

void LogProbRun::write(std::int64_t batch, BatchResult result) {
    const LogProbPlan& plan = setup_.scoring();
    std::size_t at = 0;
    for (std::int64_t p = plan.first_piece(batch); p < plan.end_piece(batch); ++p) {
        const ScoredPiece& piece = plan.pieces()[static_cast<std::size_t>(p)];
        const auto sequence = static_cast<std::size_t>(piece.sequence);
        const auto count = static_cast<std::size_t>(piece.values);
        tokens_done_ += piece.inputs;
        if (!writer_->done()[sequence]) {
            const std::span<float> values = result.log_probs().subspan(at, count);
            writer_->write(piece.sequence, piece.first_value, values,
                           entropy_ ? result.entropies().subspan(at, count) : std::span<float>{});
            for (const float value : values) {
                total_ += static_cast<double>(value);
            }
            values_ += piece.values;
            // Micro-batches arrive in one order whatever the ranks, so that the sum has the same bits.
            sums_[sequence] += result.sums()[static_cast<std::size_t>(p - plan.first_piece(batch))];
            if (--pieces_left_[sequence] == 0) {
                writer_->mark_done(piece.sequence, sums_[sequence]);
            }
        }
        at += count;
    }
}

void LogProbRun::report(std::int64_t batches_left) {
    const double seconds = since_start_.seconds();
    const double rate = static_cast<double>(tokens_done_) / std::max(seconds, 1e-9);
    const std::string text = fmt::format(
        "scored {} of {} tokens  {:.0f} tokens/s  mean log-prob {:.4f}  left {}", with_separators(tokens_done_),
        with_separators(tokens_to_do_), rate, values_ > 0 ? total_ / static_cast<double>(values_) : 0.0,
        in_time(static_cast<double>(tokens_to_do_ - tokens_done_) / std::max(rate, 1e-9)));
    if (seconds - last_report_ >= kReportSeconds || batches_left == 0) {
        console_.line(text);
        last_report_ = seconds;
    } else {
        console_.progress(text);
    }
}

ExitCode LogProbRun::stop(const std::string& path) {
    communicator_.agree([&] {
        if (writer_) {
            writer_->flush();
        }
    });
    console_.line(fmt::format("stopped by {} with {} of {} tokens scored; {}", stopped_by_,
                              with_separators(tokens_done_), with_separators(tokens_to_do_),
                              setup_.job().checkpoint.resume == "never"
                                  ? std::string("checkpoint.resume = \"never\" starts anew when the job is run again")
                                  : fmt::format("{}.partial keeps them: run the same job again to go on", path)));
    return ExitCode::stopped_early;
}

ExitCode LogProbRun::run(const std::string& path, const LogProbAttributes& attributes) {
    const LogProbPlan& plan = setup_.scoring();
    std::string done_text;
    communicator_.agree([&] {
        if (communicator_.rank() != 0) {
            return;
        }
        if (setup_.job().checkpoint.resume == "never") {
            std::filesystem::remove(path + ".partial");
        }
        writer_ = std::make_unique<LogProbWriter>(path, plan.offsets(), entropy_, attributes);
        if (!writer_->discarded().empty()) {
            console_.warn(writer_->discarded());
        }
        for (const bool done : writer_->done()) {
            done_text += done ? '1' : '0';
        }
        sums_.assign(writer_->done().size(), 0);
        pieces_left_.assign(writer_->done().size(), 0);
        for (const ScoredPiece& piece : plan.pieces()) {
            ++pieces_left_[static_cast<std::size_t>(piece.sequence)];
        }
    });
    done_text = communicator_.broadcast(done_text);
    std::vector<bool> done;
    std::ranges::transform(done_text, std::back_inserter(done), [](char c) { return c == '1'; });
    const std::vector<std::int64_t> batches = pending(done);
    for (const std::int64_t b : batches) {
        for (std::int64_t p = plan.first_piece(b); p < plan.end_piece(b); ++p) {
            tokens_to_do_ += plan.pieces()[static_cast<std::size_t>(p)].inputs;
        }
    }
    if (static_cast<std::int64_t>(batches.size()) < plan.batches()) {
        console_.line(fmt::format("{} of {} micro-batches were scored by an earlier run",
                                  plan.batches() - static_cast<std::int64_t>(batches.size()), plan.batches()));
    }
    since_start_ = Stopwatch();
    const auto ranks = static_cast<std::size_t>(communicator_.size());
    for (std::size_t round = 0; round < batches.size(); round += ranks) {
        const std::size_t own = round + static_cast<std::size_t>(communicator_.rank());
        progress_.mark();
        const std::optional<MicroBatch> tokens =
            fetch(own < batches.size() ? std::optional(batches[own]) : std::nullopt);
        if (!tokens) {
            return stop(path);
        }
        BatchResult result(0, 0, false);
        if (own < batches.size()) {
            result = compute(batches[own], *tokens);
        } else {
            parameters_->idle();
        }
        const std::vector<std::string> results = communicator_.gather(result.bytes());
        communicator_.agree([&] {
            for (std::size_t r = 0; r < results.size() && round + r < batches.size(); ++r) {
                const std::int64_t batch = batches[round + r];
                write(batch,
                      BatchResult(plan.end_piece(batch) - plan.first_piece(batch), values_of(batch), results[r]));
            }
            if (writer_ && since_flush_.seconds() > kFlushSeconds) {
                writer_->flush();
                since_flush_ = Stopwatch();
            }
        });
        report(static_cast<std::int64_t>(batches.size()) -
               static_cast<std::int64_t>(std::min(round + ranks, batches.size())));
    }
    communicator_.agree([&] {
        if (writer_) {
            writer_->flush();
            writer_->finish();
        }
    });
    console_.line(fmt::format("wrote {}", path));
    return ExitCode::ok;
}

/// Whether an earlier run of this very job wrote the file. What is there and is no log-prob file is not replaced.
bool is_finished(const std::string& path, const LogProbAttributes& attributes, const std::vector<std::int64_t>& offsets,
                 const Job& job) {
    if (!std::filesystem::exists(std::filesystem::symlink_status(path))) {
        return false;
    }
    const LogProbFile earlier(path);
    return job.checkpoint.resume != "never" && earlier.complete() && earlier.attributes() == attributes &&
           earlier.offsets() == offsets && earlier.has_entropy() == job.log_prob.entropy;
}

}  // namespace

ExitCode run_log_prob(const Communicator& communicator, const JobFile& file, const StopSignals& signals) {
    Console console(communicator.rank() == 0);
    const Cores cores = take_cores(communicator.local());
    const OpenedDevice opened = open_devices(file.job.device, communicator, console);
    const FreeMemory free = least_free_memory(*opened.device, communicator);
    std::unique_ptr<LogProbSetup> setup;
    communicator.agree([&] {
        setup = std::make_unique<LogProbSetup>(file.job, *opened.device, communicator.size(), communicator.rank() == 0,
                                               free);
    });
    for (const std::string& warning : setup->warnings()) {
        console.warn(warning);
    }
    const Job& job = setup->job();
    const RunDirectory directory(communicator, job, console);
    const std::string path = directory.file(job.log_prob.output);

    auto summary = setup->summary();
    summary.emplace_back("device", opened.words());
    summary.emplace_back("threads", fmt::format("{} a rank: {}", cores.threads, cores.description));
    summary.emplace_back("output", path);
    console.table("log_prob", summary);
    console.memory_table(setup->plan());
    console.unused_keys(file.unused);
    directory.write_resolved_job(job);

    LogProbAttributes attributes;
    std::string finished;
    communicator.agree([&] {
        if (communicator.rank() == 0) {
            attributes = {.model = job.model_name,
                          .model_hash = setup->model().random ? fmt::format("random, seed {}", job.seed)
                                                              : setup->model().model.model_hash(),
                          .data = fmt::format("{}", fmt::join(job.log_prob.data, " ")),
                          .temperature = job.log_prob.temperature,
                          .compute_dtype = setup->model().compute_dtype(),
                          .job = job_to_toml(job)};
            if (is_finished(path, attributes, setup->scoring().offsets(), job)) {
                finished = "finished";
            }
        }
    });
    if (!communicator.broadcast(finished).empty()) {
        console.line(
            fmt::format("{} is there already, from this job: nothing to do (checkpoint.resume = \"never\" "
                        "computes it anew)",
                        path));
        return ExitCode::ok;
    }
    Progress progress;
    const HangWatch watch(communicator, job.output_dir, static_cast<double>(job.limits.hang_seconds), progress);
    std::optional<PlannedMemory> memory;
    communicator.agree([&] { memory.emplace(*opened.device, setup->plan()); });
    std::unique_ptr<LogProbRun> run;
    return together(communicator, [&] {
        run = std::make_unique<LogProbRun>(communicator, *setup, console, signals, progress, std::move(*memory));
        communicator.agree([&] { run->load(); });
        const ExitCode code = run->run(path, attributes);
        run->settle();
        return code;
    });
}

}  // namespace tessera
