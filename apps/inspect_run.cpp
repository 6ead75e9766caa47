// `train inspect` of what a job leaves in its output directory, and of metrics.jsonl alone.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/console.h"
#include "apps/export.h"
#include "apps/inspect.h"
#include "core/job.h"
#include "io/checkpoint_directory.h"
#include "io/durable_file.h"
#include "io/json.h"
#include "io/log_prob_file.h"
#include "io/metrics_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Metrics {
    std::int64_t records = 0;
    json first;
    json last;
    json last_eval;  // the last record that evaluated
    std::int64_t skipped = 0;
};

Metrics read_all(const std::string& path) {
    Metrics metrics;
    read_metrics(path, [&](std::int64_t /*step*/, std::string_view line) {
        json record = parse_json(line, path);
        metrics.skipped += record.contains("skipped") ? 1 : 0;
        if (record.contains("eval_loss")) {
            metrics.last_eval = record;
        }
        if (metrics.records++ == 0) {
            metrics.first = record;
        }
        metrics.last = std::move(record);
    });
    return metrics;
}

/// null where the record has no number of that name.
json number(const json& record, const char* key) {
    return record.is_object() && record.contains(key) && record[key].is_number() ? record[key] : json();
}

std::string number_text(const json& value) {
    return value.is_number() ? in_digits(value.get<double>()) : "none";
}

void add_metrics(Report& report, const Metrics& metrics) {
    report.add_count("records", metrics.records);
    if (metrics.records == 0) {
        return;
    }
    const auto at_step = [](const json& record, const json& value) {
        return fmt::format("{} at step {}", number_text(value), record.at("step").dump());
    };
    const auto add = [&](const char* name, const json& record, const char* key) {
        report.add(name, number(record, key), at_step(record, number(record, key)));
    };
    add("first loss", metrics.first, "loss");
    add("last loss", metrics.last, "loss");
    if (metrics.last_eval.is_object()) {
        add("last eval loss", metrics.last_eval, "eval_loss");
    }
    report.add_count("records of skipped steps", metrics.skipped);
    report.add("last record", Report::Json::parse(metrics.last.dump(-1, ' ', false, json::error_handler_t::replace)),
               metrics.last.dump(-1, ' ', true, json::error_handler_t::replace));
}

/// Whether a training job is done, in words and as JSON (null: it cannot be told).
void add_training_end(Report& report, const std::string& path, const Job& job,
                      const std::optional<CheckpointInfo>& checkpoint, const Metrics& metrics) {
    const std::int64_t saved = checkpoint ? checkpoint->step : 0;
    bool steps_done = false;
    std::string text;
    if (job.training.max_steps > 0) {
        steps_done = saved >= job.training.max_steps;
        text = fmt::format("{} of {} steps are saved", with_separators(saved), with_separators(job.training.max_steps));
    } else {
        // How many steps the epochs are only the data says; the last step's record says how far it came.
        const json epoch = number(metrics.last, "epoch");
        const json step = number(metrics.last, "step");
        steps_done = checkpoint && epoch.is_number() && step.is_number_integer() &&
                     epoch.get<double>() >= static_cast<double>(job.training.num_epochs) &&
                     saved >= step.get<std::int64_t>();
        text = fmt::format("{} steps are saved, {} of {} epochs are recorded", with_separators(saved),
                           number_text(epoch), job.training.num_epochs);
    }
    const bool exported = !makes_exports(job) || fs::exists(path + "/hf");
    if (steps_done && !exported) {
        text += ", but the model is not exported yet";
    }
    const bool finished = steps_done && exported;
    report.add("finished", finished, fmt::format("{}: {}", finished ? "yes" : "no", text));
}

void add_log_prob_end(Report& report, const std::string& path, const Job& job) {
    const std::string output = path + "/" + job.log_prob.output;
    const bool whole = fs::exists(output);
    if (!whole && !fs::exists(output + ".partial")) {
        report.add("finished", false, "no: nothing is written yet");
        return;
    }
    const LogProbFile file(whole ? output : output + ".partial");
    const std::vector<bool> done = file.done();
    const auto count = std::count(done.begin(), done.end(), true);
    const bool finished = whole && file.complete();
    report.add_text("log-probs", file.path());
    report.add("finished", finished,
               fmt::format("{}: {} of {} sequences are done", finished ? "yes" : "no", with_separators(count),
                           with_separators(file.sequences())));
}

std::optional<CheckpointInfo> add_checkpoint(Report& report, const std::string& path) {
    std::vector<std::string> warnings;
    std::optional<CheckpointInfo> newest = find_newest_checkpoint(path + "/checkpoints", warnings);
    report.add("newest checkpoint", newest ? Report::Json(newest->path) : Report::Json(),
               newest ? newest->path : "none");
    for (const std::string& warning : warnings) {
        report.add_note(warning);
    }
    return newest;
}

}  // namespace

Report inspect_metrics(const std::string& path) {
    const Metrics metrics = read_all(path);
    if (metrics.records == 0) {
        fail(ExitCode::bad_data, "{} holds no metrics record: no line is a JSON object with a step", path);
    }
    Report report("metrics", path, fmt::format("metrics {}", path));
    add_metrics(report, metrics);
    return report;
}

Report inspect_run(const std::string& path) {
    Report report("run", path, fmt::format("run {}", path));
    const std::string job_path = path + "/job.resolved.toml";
    const std::string metrics_path = path + "/metrics.jsonl";
    std::optional<Job> job;
    if (fs::exists(job_path)) {
        job = parse_job(read_text_file(job_path, 16 << 20), job_path, {}).job;
        report.add_text("job type", job->job_type);
        report.add_text("model", job->model_name);
        report.add_member("job", job_to_toml(*job));
    } else {
        report.add_note(fmt::format("{} is not there, so that it cannot be told what the run was to do", job_path));
    }
    const bool scores = job && job->job_type == "log_prob";
    Metrics metrics;
    if (fs::exists(metrics_path)) {
        metrics = read_all(metrics_path);
        add_metrics(report, metrics);
    } else if (!scores) {
        report.add("records", 0, "none yet");
    }
    if (scores) {
        add_log_prob_end(report, path, *job);
        return report;
    }
    const std::optional<CheckpointInfo> newest = add_checkpoint(report, path);
    if (job) {
        add_training_end(report, path, *job, newest, metrics);
    } else {
        report.add("finished", nullptr, "unknown");
    }
    return report;
}

}  // namespace tessera
