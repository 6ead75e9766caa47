// `train inspect` of weights: a model directory or a checkpoint.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/console.h"
#include "apps/inspect.h"
#include "apps/named_weights.h"

namespace tessera {
namespace {

void add_weights(Report& report, const WeightSummary& summary) {
    report.add_count("parameters", summary.parameters);
    report.add("largest parameter", {{"name", summary.largest_parameter}, {"elements", summary.largest_count}},
               fmt::format("{}, {} elements", summary.largest_parameter, with_separators(summary.largest_count)));
    report.add("weight norm", summary.norm,
               in_digits(summary.norm) + (summary.non_finite > 0 ? " (of the finite values)" : ""));
    report.add("largest value",
               {{"absolute", summary.largest_value},
                {"name", summary.largest_place.name},
                {"index", summary.largest_place.index}},
               summary.largest_place.name.empty()
                   ? "0"
                   : fmt::format("{} at {}", in_digits(summary.largest_value), summary.largest_place.text()));
    report.add("not finite", summary.non_finite,
               summary.non_finite == 0 ? "none"
                                       : fmt::format("{}, the first at {}", with_separators(summary.non_finite),
                                                     summary.first_non_finite.text()));
    if (summary.non_finite > 0) {
        report.add_member("first_not_finite",
                          {{"name", summary.first_non_finite.name}, {"index", summary.first_non_finite.index}});
    }
}

void add_architecture(Report& report, const ModelConfig& config) {
    report.add_text("family", config.family);
    report.add_count("layers", config.num_layers);
    report.add_count("hidden size", config.hidden_size);
    report.add_count("intermediate size", config.intermediate_size);
    report.add_count("heads", config.num_heads);
    report.add_count("key-value heads", config.num_kv_heads);
    report.add_count("head size", config.head_dim);
    report.add_count("vocabulary", config.vocab_size);
    report.add_count("positions", config.max_position_embeddings);
    report.add_truth("tied", config.tied);
    const auto sliding = std::ranges::count_if(config.window, [](std::int64_t window) { return window > 0; });
    report.add_count("layers with a window", sliding);
}

/// Files of a directory with their sizes, sorted by name.
void add_files(Report& report, const std::string& directory) {
    std::vector<std::pair<std::string, std::int64_t>> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
        std::error_code error;
        const auto bytes = entry.is_regular_file(error) ? entry.file_size(error) : 0;
        if (!error && entry.is_regular_file(error)) {
            files.emplace_back(entry.path().filename().string(), static_cast<std::int64_t>(bytes));
        }
    }
    std::ranges::sort(files);
    Report::Json list = Report::Json::array();
    std::int64_t total = 0;
    for (const auto& [name, bytes] : files) {
        list.push_back({{"name", name}, {"bytes", bytes}});
        total += bytes;
        report.add_line(fmt::format("  {:>15}  {}", with_separators(bytes), name));
    }
    report.add("files", std::move(list), fmt::format("{}, {}", files.size(), in_bytes(total)));
}

}  // namespace

Report inspect_model(const std::string& path) {
    const auto model = std::make_shared<const HfModel>(HfModel::open(path));
    Report report("model", path, fmt::format("model {}", path));
    add_architecture(report, model->config());
    if (model->has_weights()) {
        report.add_text("dtype", std::string(name_of(model->weights_dtype())));
        add_weights(report, summarize(weights_of(model)));
    } else {
        report.add("parameters", count_parameters(make_units(model->config())),
                   with_separators(count_parameters(make_units(model->config()))));
        report.add("dtype", nullptr, "none: there are no weights in safetensors");
    }
    add_files(report, path);
    for (const std::string& warning : model->warnings()) {
        report.add_note(warning);
    }
    return report;
}

Report inspect_checkpoint(const std::string& path) {
    const auto checkpoint = std::make_shared<ShardedCheckpoint>(open_checkpoint(path));
    verify_checkpoint(checkpoint->info());
    Report report("checkpoint", path, fmt::format("checkpoint {}, whole: all checksums hold", path));
    const TrainingProgress& progress = checkpoint->progress();
    report.add_count("step", progress.step);
    report.add_count("updates", progress.updates);
    report.add_count("skipped in a row", progress.skipped_in_a_row);
    report.add_count("rows", progress.rows);
    report.add_count("tokens", progress.tokens);
    report.add_text("model", checkpoint->description().model_directory);
    report.add_text("compute dtype", checkpoint->description().compute_dtype);
    report.add("layout", {{"ranks", checkpoint->ranks()}, {"units", checkpoint->units().size()}},
               fmt::format("{} units over {} rank{}: fp32 masters, first and second moments",
                           checkpoint->units().size(), checkpoint->ranks(), checkpoint->ranks() == 1 ? "" : "s"));
    add_weights(report, summarize(weights_of(checkpoint)));
    report.add_member("job", checkpoint->description().job);
    add_files(report, path);
    return report;
}

}  // namespace tessera
