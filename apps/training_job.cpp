#include "apps/training_job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "apps/console.h"
#include "apps/cores.h"
#include "apps/export.h"
#include "apps/hang_watch.h"
#include "apps/launch.h"
#include "apps/open_device.h"
#include "apps/run_directory.h"
#include "apps/step_phases.h"
#include "apps/training_setup.h"
#include "core/base/stopwatch.h"
#include "core/flops.h"
#include "core/schedule.h"
#include "core/transformer.h"
#include "io/metrics_file.h"
#include "zero/link_traffic.h"

namespace tessera {
namespace {

/// Everything a run keeps in memory, built once; one member function for each thing that happens in a step.
class TrainingRun {
  public:
    TrainingRun(const Communicator& communicator, TrainingSetup& setup, RunDirectory& directory, Console& console,
                const StopSignals& signals, Progress& life, PlannedMemory memory);
    TrainingRun(const TrainingRun&) = delete;
    TrainingRun& operator=(const TrainingRun&) = delete;
    ~TrainingRun() { queue_.close(); }

    /// Weights, moments and progress: from the checkpoint, or the first weights where there is none.
    void load(ShardedCheckpoint* checkpoint);
    [[nodiscard]] ExitCode run();
    /// Returns when all exchanges are done: before all ranks leave together.
    void settle() { queue_.settle(); }

  private:
    struct StepResult {
        double loss = 0;
        double norm = 0;
        double lr = 0;
        std::int64_t targets = 0;
        std::int64_t tokens = 0;
        bool skipped = false;
        double seconds = 0;
        StepPhases phases;
        ExchangeTotals exchanged;
    };
    struct Rate {
        double flops = 0;
        double seconds = 0;
    };
    struct EvalResult {
        double loss = 0;
        std::int64_t targets = 0;
    };

    [[nodiscard]] bool finished() const { return progress_.step >= last_step_; }
    [[nodiscard]] std::vector<MicroBatch> fetch();
    /// Nothing, and nothing done, where a signal to any rank ends the run before the step (stopped_by_).
    [[nodiscard]] std::optional<StepResult> step();
    void refuse_more_skipping(double loss, double norm);
    [[nodiscard]] std::string where_to_go_on() const;
    [[nodiscard]] EvalResult evaluate();
    void record(const StepResult& result, const std::optional<EvalResult>& eval);
    void print(const StepResult& result, const std::optional<EvalResult>& eval, bool logged);
    void report_exchanges();
    void report_rates();
    void save_if_due();
    void save();
    [[nodiscard]] ExitCode stop();
    void export_model(const std::string& name);
    [[nodiscard]] bool export_is_owed() const;
    [[nodiscard]] CheckpointDescription description() const;

    const Communicator& communicator_;
    TrainingSetup& setup_;
    const Job& job_;
    RunDirectory& directory_;
    Console& console_;
    const StopSignals& signals_;
    Progress& life_;  // for the watch over hangs
    PlannedMemory memory_;
    CommunicationQueue queue_;
    ModelStates states_;
    Gradients gradients_;
    std::unique_ptr<PublishedParameters> parameters_;
    ShardedOptimizer optimizer_;
    Transformer transformer_;
    Schedule schedule_;
    TrainingProgress progress_;
    std::int64_t first_step_ = 0;
    std::int64_t first_update_ = 0;
    std::int64_t last_step_ = 0;
    std::int64_t saved_step_ = -1;
    std::string stopped_by_;
    std::int64_t tokens_since_line_ = 0;  // of the console
    double seconds_since_line_ = 0;
    Rate computing_;  // of this rank, without data and waiting for others; as if every token were a target
    bool exports_;
    std::optional<MetricsFile> metrics_;  // rank 0
    Stopwatch since_start_;
    Stopwatch since_save_;
};

/// Keys with another value in one resolved job than in the other, those left out that only say how long or where a run
/// goes on. Both have every key, a line each.
std::vector<std::string> different_keys(const std::string& before, const std::string& now) {
    std::vector<std::string> keys;
    std::string section;
    std::istringstream old_lines(before);
    std::istringstream new_lines(now);
    std::string line;
    for (std::string old_line; std::getline(old_lines, old_line) && std::getline(new_lines, line);) {
        if (line.starts_with('[')) {
            section = line.substr(1, line.find(']') - 1) + ".";
        }
        const std::string key = section + line.substr(0, line.find_first_of(" ="));
        const bool about_going_on = section == "checkpoint." || section == "logging." || key == "output_dir" ||
                                    key == "training.max_steps" || key == "training.num_epochs";
        if (line != old_line && !about_going_on) {
            keys.push_back(key);
        }
    }
    return keys;
}

/// A number in words; the sign of a NaN says nothing.
std::string shown(double value) {
    return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

TrainingRun::TrainingRun(const Communicator& communicator, TrainingSetup& setup, RunDirectory& directory,
                         Console& console, const StopSignals& signals, Progress& life, PlannedMemory memory)
    : communicator_(communicator),
      setup_(setup),
      job_(setup.job()),
      directory_(directory),
      console_(console),
      signals_(signals),
      life_(life),
      memory_(std::move(memory)),
      queue_(communicator, setup.device(), life_, job_.zero_optimization.overlap_comm && communicator.size() > 1,
             kCheckExchanges),
      states_(setup.units(), setup.partition(), setup.states_options(communicator.rank()), memory_.carver()),
      gradients_(setup.partition(), setup.gradient_uses(), gradient_options(job_), setup.ops(), queue_,
                 memory_.carver()),
      parameters_(make_parameter_source(states_, queue_, setup.ops(), setup.gather_plans(),
                                        *job_.zero_optimization.allgather_bucket_size, memory_.carver())),
      optimizer_(states_, gradients_, setup.ops(), communicator_, setup.optimizer_options()),
      transformer_(setup.model().config(), setup.units(), setup.ops(), setup.limits(),
                   bind_workspace(memory_, setup.model(), setup.limits())),
      schedule_(job_.training.lr_scheduler, job_.training.optimizer.lr, setup.horizon()),
      exports_(makes_exports(job_)) {}

void TrainingRun::load(ShardedCheckpoint* checkpoint) {
    const Progress::Pause pause(life_);
    communicator_.agree([&] {
        if (checkpoint != nullptr) {
            checkpoint->load(states_, setup_.ops(), setup_.optimizer_options().rounding_seed);
            progress_ = checkpoint->progress();
            progress_.skipped_in_a_row = 0;  // whoever starts the run again may have removed the cause
        } else {
            states_.load(initial_parameters(job_, setup_.model()), setup_.ops());
        }
    });
    first_step_ = progress_.step;
    first_update_ = progress_.updates;
    const std::int64_t batch = setup_.batch().batch();
    last_step_ = setup_.total_steps();
    if (job_.training.max_steps == 0 && progress_.step > 0) {
        // By epochs the data decides, also where the batch has another size than before.
        const std::int64_t wanted = checked_mul(job_.training.num_epochs, setup_.order().rows(), "rows of all epochs");
        last_step_ = progress_.step + std::max<std::int64_t>(0, ceil_div(wanted - progress_.rows, batch));
    }
    saved_step_ = checkpoint != nullptr ? progress_.step : -1;
}

std::vector<MicroBatch> TrainingRun::fetch() {
    const BatchShape& shape = setup_.batch();
    std::vector<MicroBatch> batches(static_cast<std::size_t>(shape.accumulation));
    for (std::int64_t m = 0; m < shape.accumulation; ++m) {
        const std::int64_t first = progress_.rows + first_position(shape, 0, m, communicator_.rank());
        for (std::int64_t i = 0; i < shape.micro; ++i) {
            setup_.train().rows->append(setup_.order().row_at(first + i), batches[static_cast<std::size_t>(m)]);
        }
    }
    return batches;
}

std::optional<TrainingRun::StepResult> TrainingRun::step() {
    const Stopwatch watch;
    life_.set_step(progress_.step + 1);
    const Traffic before = queue_.traffic();
    std::vector<MicroBatch> batches;
    std::exception_ptr error;
    try {
        batches = fetch();
    } catch (...) {
        error = std::current_exception();
    }
    StepResult result;
    result.phases.data = watch.seconds();
    std::array<std::int64_t, 4> sums{0, 0, error ? 1 : 0, signals_.received()};
    for (const MicroBatch& batch : batches) {
        sums[0] += batch.target_count();
        sums[1] += batch.token_count();
    }
    // Agreed before the step, so that gradients carry their final scale from the start.
    Stopwatch others;
    communicator_.all_reduce_sum(sums);
    double waited_for_others = others.seconds();
    if (sums[2] > 0) {
        communicator_.agree(error);
    }
    if (sums[3] > 0) {
        stopped_by_ = StopSignals::name_of(sums[3]);
        return std::nullopt;
    }
    result.targets = sums[0];
    result.tokens = sums[1];
    const double scale = result.targets > 0 ? 1 / static_cast<double>(result.targets) : 0;

    gradients_.start(narrow<std::int64_t>(batches.size()));
    double sum = 0;
    double flops = 0;
    for (const MicroBatch& batch : batches) {
        const Stopwatch both;
        sum += transformer_.forward_backward(batch, scale, *parameters_, gradients_);
        const double backward = gradients_.seconds_since_first_begin();
        for (std::size_t s = 0; s + 1 < batch.starts.size(); ++s) {
            flops += flops_of_step(setup_.model().config(),
                                   {1, batch.starts[s + 1] - batch.starts[s], setup_.limits().checkpointing});
        }
        result.phases.forward += both.seconds() - backward;
        result.phases.backward += backward;
    }
    gradients_.finish();
    others = Stopwatch();
    result.loss = communicator_.ordered_sum(sum) * scale;
    waited_for_others += others.seconds();
    result.norm = optimizer_.norm();
    result.lr = schedule_.rate(progress_.updates + 1);
    result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.norm);

    const Traffic passes = queue_.traffic();
    const Stopwatch optimizer_watch;
    progress_.step += 1;
    progress_.rows += setup_.batch().batch();
    progress_.tokens += result.tokens;
    if (result.skipped) {
        refuse_more_skipping(result.loss, result.norm);
    } else {
        progress_.updates += 1;
        progress_.skipped_in_a_row = 0;
        optimizer_.step(result.lr, result.norm, progress_.updates);
        parameters_->publish();
    }
    result.phases.optimizer = optimizer_watch.seconds();
    const Traffic after = queue_.traffic();
    const auto waited = [&](Exchange purpose) { return passes[purpose].waited - before[purpose].waited; };
    result.phases.gather = waited(Exchange::gather_parameters) + waited(Exchange::publish_parameters);
    result.phases.reduce = waited(Exchange::reduce_gradients);
    result.exchanged = after.all() - before.all();
    result.seconds = watch.seconds();
    if (progress_.step == first_step_ + 2) {
        computing_ = {};  // the first step touches memory for the first time: it counts only where there is no other
    }
    computing_.flops += flops;
    computing_.seconds += result.seconds - result.phases.data - result.exchanged.waited - waited_for_others;
    return result;
}

void TrainingRun::refuse_more_skipping(double loss, double norm) {
    progress_.skipped_in_a_row += 1;
    std::string first;
    for (const std::string& name : communicator_.all_gather(optimizer_.first_non_finite())) {
        first = first.empty() ? name : first;
    }
    const std::string what =
        fmt::format("step {}: loss {} and gradient norm {} are not both finite{}", progress_.step, shown(loss),
                    shown(norm), first.empty() ? "" : fmt::format("; the gradient of {} is the first", first));
    console_.warn(what + "; the step changes nothing");
    if (progress_.skipped_in_a_row >= job_.training.max_skipped_steps) {
        throw AgreedError(ExitCode::numerical,
                          fmt::format("{}; {} such steps in a row (training.max_skipped_steps): lower "
                                      "training.optimizer.lr or look at the data{}",
                                      what, progress_.skipped_in_a_row, where_to_go_on()));
    }
}

std::string TrainingRun::where_to_go_on() const {
    if (saved_step_ < 0) {
        return ", and start anew: nothing is saved yet";
    }
    return fmt::format("; checkpoint.resume = a path goes on from an older one of the checkpoints in {}",
                       directory_.checkpoints());
}

TrainingRun::EvalResult TrainingRun::evaluate() {
    RowSet& set = *setup_.eval();
    const std::int64_t micro = setup_.batch().micro;
    const std::int64_t rows = set.rows->count();
    double sum = 0;
    std::int64_t targets = 0;
    const std::int64_t batches = ceil_div(rows, micro);
    // In rounds of one micro-batch a rank.
    for (std::int64_t round = 0; round < batches; round += communicator_.size()) {
        const std::int64_t b = round + communicator_.rank();
        life_.mark();
        MicroBatch batch;
        communicator_.agree([&] {
            for (std::int64_t row = b * micro; row < std::min(rows, (b + 1) * micro); ++row) {
                set.rows->append(row, batch);
            }
        });
        if (b < batches) {
            targets += batch.target_count();
            sum += transformer_.loss(batch, *parameters_);
        } else {
            parameters_->idle();
        }
        console_.progress(fmt::format("evaluating: {} of {} micro-batches", round + 1, batches));
    }
    communicator_.all_reduce_sum({&targets, 1});
    sum = communicator_.ordered_sum(sum);
    return {targets > 0 ? sum / static_cast<double>(targets) : 0, targets};
}

void TrainingRun::record(const StepResult& result, const std::optional<EvalResult>& eval) {
    MetricsRecord record(progress_.step);
    record.add("tokens", progress_.tokens);
    record.add("targets", result.targets);
    record.add("loss", result.loss);
    record.add("lr", result.lr);
    record.add("grad_norm", result.norm);
    if (result.skipped) {
        record.add("skipped", true);
    }
    if (eval) {
        record.add("eval_loss", eval->loss);
        record.add("eval_targets", eval->targets);
    }
    record.add("time", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
    record.add("epoch", static_cast<double>(progress_.rows) / static_cast<double>(setup_.order().rows()));
    record.add("tokens_per_second", static_cast<double>(result.tokens) / result.seconds);
    record.add("step_seconds", result.seconds);
    record.add("memory", resident_bytes());
    if (communicator_.size() > 1) {
        record.add("exchanged_bytes", result.exchanged.bytes);
        record.add("exchange_seconds", result.exchanged.seconds);
        record.add("exchange_waited_seconds", result.exchanged.waited);
    }
    if (job_.wall_clock_breakdown) {
        for (const auto& [name, seconds] : result.phases.named()) {
            record.add(fmt::format("{}_seconds", name), seconds);
        }
    }
    metrics_->append(record);
}

void TrainingRun::print(const StepResult& result, const std::optional<EvalResult>& eval, bool logged) {
    const double per_step = since_start_.seconds() / static_cast<double>(progress_.step - first_step_);
    tokens_since_line_ += result.tokens;
    seconds_since_line_ += result.seconds;
    const std::string text =
        fmt::format("step {:>{}}/{}  loss {:.4f}  lr {:.3e}  grad norm {:.3f}  {:.0f} tokens/s  left {}",
                    progress_.step, fmt::formatted_size("{}", last_step_), last_step_, result.loss, result.lr,
                    result.norm, static_cast<double>(tokens_since_line_) / seconds_since_line_,
                    in_time(per_step * static_cast<double>(last_step_ - progress_.step)));
    if (logged && job_.wall_clock_breakdown) {
        console_.line(fmt::format("  {}", result.phases.in_words()));
    }
    if (logged) {
        tokens_since_line_ = 0;
        seconds_since_line_ = 0;
    }
    if (eval) {
        console_.line(
            fmt::format("{}  eval loss {:.4f} over {} targets", text, eval->loss, with_separators(eval->targets)));
    } else if (logged) {
        console_.line(text);
    } else {
        console_.progress(text);
    }
}

void TrainingRun::report_exchanges() {
    if (communicator_.size() == 1) {
        return;
    }
    const Traffic traffic = queue_.traffic();
    std::vector<std::pair<std::string, std::string>> rows;
    for (const Exchange exchange : kExchanges) {
        const ExchangeTotals& total = traffic[exchange];
        if (total.calls > 0) {
            const std::string times =
                total.seconds > 0 ? fmt::format(", {:.2f} s, waited {:.2f} s", total.seconds, total.waited) : "";
            rows.emplace_back(name_of(exchange), fmt::format("{} calls, {} bytes sent{}", with_separators(total.calls),
                                                             with_separators(total.bytes), times));
        }
    }
    console_.table("exchanged by rank 0", rows);
}

/// What `train estimate` takes to foretell the step of another cluster.
void TrainingRun::report_rates() {
    std::string text =
        fmt::format("rates for train estimate: --compute-rate {:.3e}", computing_.flops / computing_.seconds);
    const ExchangeTotals all = queue_.traffic().all();
    const std::int64_t here = communicator_.local().size;
    const std::vector<std::string> everywhere = communicator_.all_gather(fmt::format("{}", here));
    const bool alike = std::ranges::all_of(everywhere, [&](const std::string& one) { return one == everywhere[0]; });
    if (communicator_.size() > 1 && all.seconds > 0 && alike) {
        // Evaluation, too, has sent its part: what goes over a link is the plan's share of all that was sent.
        const double share = static_cast<double>(bytes_of_link(setup_.traffic(), {communicator_.size() / here, here})) /
                             static_cast<double>(total_bytes(setup_.traffic()));
        text += fmt::format(" --link-rate {:.3e}", static_cast<double>(all.bytes) * share / all.seconds);
    }
    console_.line(text);
}

CheckpointDescription TrainingRun::description() const {
    return {setup_.model().model.directory(), setup_.model().compute_dtype(), job_to_toml(job_)};
}

void TrainingRun::save() {
    const Progress::Pause pause(life_);
    communicator_.agree([&] {
        if (metrics_) {
            metrics_->sync();
        }
    });
    save_checkpoint(directory_.checkpoints(), states_, setup_.ops(), communicator_, progress_, description());
    communicator_.agree([&] {
        if (communicator_.rank() == 0) {
            prune_checkpoints(directory_.checkpoints(), job_.checkpoint.keep_last, job_.checkpoint.keep_every,
                              progress_.step);
        }
    });
    saved_step_ = progress_.step;
    since_save_ = Stopwatch();
}

void TrainingRun::save_if_due() {
    const Job::Checkpoint& checkpoint = job_.checkpoint;
    const auto due = [&](std::int64_t interval) { return interval > 0 && progress_.step % interval == 0; };
    const bool exports = exports_ && due(checkpoint.export_interval);
    // Only rank 0's clock counts.
    std::int64_t late = communicator_.rank() == 0 && checkpoint.save_minutes > 0 &&
                                since_save_.seconds() >= 60 * checkpoint.save_minutes
                            ? 1
                            : 0;
    if (checkpoint.save_minutes > 0) {
        communicator_.all_reduce_sum({&late, 1});
    }
    // Skipped steps change nothing: saving them would only push out the checkpoints from before.
    const bool skipping = progress_.skipped_in_a_row > 0;
    if (finished() || (!skipping && (due(checkpoint.save_interval) || late > 0 || exports))) {
        save();
    }
    if (exports && saved_step_ == progress_.step) {
        export_model(fmt::format("hf-step-{}", progress_.step));
    }
}

ExitCode TrainingRun::stop() {
    const bool skipping = progress_.skipped_in_a_row > 0;
    if (progress_.step > first_step_ && saved_step_ != progress_.step && !skipping) {
        save();
    }
    const std::string after = fmt::format("stopped by {} after step {}{}", stopped_by_, progress_.step,
                                          skipping ? ", which was skipped like those just before it" : "");
    if (saved_step_ < 0) {
        console_.line(after + "; nothing is saved yet: run the same job again to start anew");
        return ExitCode::stopped_early;
    }
    console_.line(fmt::format("{}; {}: run {}", after,
                              saved_step_ == progress_.step
                                  ? "the checkpoint is saved"
                                  : fmt::format("the checkpoint of step {} stays", saved_step_),
                              job_.checkpoint.resume == "auto" ? "the same job again to go on"
                                                               : "it with checkpoint.resume = \"auto\" to go on"));
    return ExitCode::stopped_early;
}

void TrainingRun::export_model(const std::string& name) {
    const Progress::Pause pause(life_);
    communicator_.agree([&] {
        if (communicator_.rank() == 0) {
            ShardedCheckpoint checkpoint(
                open_checkpoint(directory_.checkpoints() + "/" + checkpoint_name(progress_.step)));
            export_checkpoint(checkpoint, directory_.file(name), export_dtype(job_.checkpoint.export_dtype));
            console_.line(fmt::format("wrote {}", directory_.file(name)));
        }
    });
}

bool TrainingRun::export_is_owed() const {
    // A run that was stopped between its last checkpoint and its export still owes the export.
    std::string verdict;
    communicator_.agree([&] {
        if (communicator_.rank() == 0) {
            namespace fs = std::filesystem;
            const fs::path hf = directory_.file("hf");
            const fs::path saved = directory_.checkpoints() + "/" + checkpoint_name(progress_.step);
            const bool owed =
                fs::exists(saved) &&
                (!fs::exists(hf) || fs::last_write_time(hf) < fs::last_write_time(saved / "manifest.json"));
            verdict = owed ? "owed" : "";
        }
    });
    return !communicator_.broadcast(verdict).empty();
}

ExitCode TrainingRun::run() {
    communicator_.agree([&] {
        if (communicator_.rank() == 0) {
            metrics_.emplace(directory_.file("metrics.jsonl"), progress_.step);
            for (const std::string& warning : metrics_->warnings()) {
                console_.warn(warning);
            }
        }
    });
    const bool nothing_to_do = finished();
    since_start_ = Stopwatch();
    since_save_ = Stopwatch();
    while (!finished()) {
        const std::optional<StepResult> stepped = step();
        if (!stepped) {
            return stop();
        }
        const StepResult& result = *stepped;
        std::optional<EvalResult> eval;
        const std::int64_t interval = job_.training.eval_interval;
        if (setup_.eval() && (finished() || (interval > 0 && progress_.step % interval == 0))) {
            eval = evaluate();
        }
        const bool logged = progress_.step % job_.logging.interval == 0 || progress_.step == 1 || eval || finished();
        communicator_.agree([&] {
            if (metrics_ && logged) {
                record(result, eval);
            }
        });
        print(result, eval, logged);
        if (finished() && progress_.updates == first_update_) {
            throw AgreedError(ExitCode::numerical,
                              fmt::format("no step of this run had a finite loss and gradient: nothing was learned, "
                                          "nothing is saved{}",
                                          where_to_go_on()));
        }
        save_if_due();
    }
    if (progress_.skipped_in_a_row > 0) {
        console_.warn(
            fmt::format("the last {} steps were skipped: the weights are those of before", progress_.skipped_in_a_row));
    }
    if (exports_ && (!nothing_to_do || export_is_owed())) {
        export_model("hf");
    }
    if (nothing_to_do) {
        console_.line(
            fmt::format("the run in {} is finished: {} steps are done; raise training.max_steps or num_epochs "
                        "to go on, or set checkpoint.resume = \"never\" to start anew",
                        job_.output_dir, progress_.step));
    } else {
        console_.line(
            fmt::format("done: {} steps in {}", progress_.step - first_step_, in_time(since_start_.seconds())));
        settle();
        report_exchanges();
        report_rates();
    }
    return ExitCode::ok;
}

}  // namespace

ExitCode run_training(const Communicator& communicator, const JobFile& file, const StopSignals& signals) {
    Console console(communicator.rank() == 0);
    const Cores cores = take_cores(communicator.local());
    const OpenedDevice opened = open_devices(file.job.device, communicator, console);
    const FreeMemory free = least_free_memory(*opened.device, communicator);
    std::unique_ptr<TrainingSetup> setup;
    communicator.agree([&] {
        setup = std::make_unique<TrainingSetup>(file.job, *opened.device, communicator.size(), communicator.rank() == 0,
                                                free);
    });
    for (const std::string& warning : setup->warnings()) {
        console.warn(warning);
    }
    RunDirectory directory(communicator, setup->job(), console);
    const std::unique_ptr<ShardedCheckpoint> checkpoint = directory.find_checkpoint(setup->job(), console);

    auto summary = setup->summary();
    summary.emplace_back("device", opened.words());
    summary.emplace_back("threads", fmt::format("{} a rank: {}", cores.threads, cores.description));
    summary.emplace_back("output", setup->job().output_dir);
    if (checkpoint) {
        summary.emplace_back("goes on from", checkpoint->info().path);
    }
    console.table("training", summary);
    console.memory_table(setup->plan());
    console.unused_keys(file.unused);
    if (checkpoint) {
        const std::string changed = fmt::format(
            "{}", fmt::join(different_keys(checkpoint->description().job, job_to_toml(setup->job())), ", "));
        if (!changed.empty()) {
            console.warn(fmt::format("this job differs from the one that wrote the checkpoint in {}", changed));
        }
    }
    directory.write_resolved_job(setup->job());

    Progress life;
    const HangWatch watch(communicator, setup->job().output_dir, static_cast<double>(setup->job().limits.hang_seconds),
                          life);
    std::optional<PlannedMemory> memory;
    communicator.agree([&] {
        if (checkpoint) {
            checkpoint->check(setup->units());
        }
        memory.emplace(*opened.device, setup->plan());
    });
    std::unique_ptr<TrainingRun> run;
    return together(communicator, [&] {
        run =
            std::make_unique<TrainingRun>(communicator, *setup, directory, console, signals, life, std::move(*memory));
        try {
            run->load(checkpoint.get());
            const ExitCode code = run->run();
            run->settle();
            return code;
        } catch (const AgreedError&) {
            try {
                run->settle();
            } catch (const std::exception&) {
                // An exchange that failed is what is thrown already, or came after it.
            }
            throw;
        }
    });
}

}  // namespace tessera
