// The program `train`: reads the command line and runs a job or a command.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apps/commands.h"
#include "apps/launch.h"
#include "apps/log_prob_job.h"
#include "apps/stop_signals.h"
#include "apps/training_job.h"

namespace {

using namespace tessera;

struct Arguments {
    std::string config;
    std::vector<std::string> overrides;
    CheckOptions check;
    EstimateOptions estimate;
    InspectOptions inspect;
    CompareOptions compare;
    ExportOptions export_model;
    std::string keys_pattern;
    bool keys_json = false;
    bool keys_markdown = false;
};

void add_check(CLI::App& app, Arguments& arguments) {
    CLI::App* command = app.add_subcommand("check", "Validate job, model and data; print the plan; run nothing");
    command->add_option("--config", arguments.check.config, "Job file")->required();
    command->add_option("--set", arguments.check.overrides, "Override one key: key=value (repeatable)")
        ->expected(1)
        ->take_all();
    command->add_option("--ranks", arguments.check.ranks, "Number of ranks to plan for")
        ->check(CLI::Range(std::int64_t{1}, kMostRanks));
    command->add_option("--nodes", arguments.check.nodes, "Number of nodes that the ranks are spread over")
        ->check(CLI::Range(std::int64_t{1}, kMostRanks));
    command->add_option("--device", arguments.check.device, "auto, cpu or cuda, in place of the job's")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    command
        ->add_option("--device-memory", arguments.check.device_memory,
                     "Plan for GPUs of so much memory each, as 80GiB, which need not be here")
        ->transform(CLI::AsSizeValue(false));
    command
        ->add_option("--host-memory", arguments.check.host_memory, "Memory of a node, as 64GiB; else that of this one")
        ->transform(CLI::AsSizeValue(false));
    command->add_flag("--json", arguments.check.json, "One JSON object");
}

void add_estimate(CLI::App& app, Arguments& arguments) {
    EstimateOptions& estimate = arguments.estimate;
    CLI::App* command =
        app.add_subcommand("estimate", "Memory, traffic and time of every ZeRO stage; DeepSpeed's tables");
    command->add_option("--model", estimate.model, "Model directory; its config.json is enough");
    command->add_option("--params", estimate.parameters, "Number of parameters, in place of a model");
    command->add_option("--largest-layer", estimate.largest_layer, "Parameters of the largest layer, with --params");
    command->add_option("--gpus-per-node", estimate.gpus_per_node, "Ranks of a node")
        ->required()
        ->check(CLI::Range(std::int64_t{1}, kMostRanks));
    command->add_option("--nodes", estimate.nodes, "Nodes")->required()->check(CLI::Range(std::int64_t{1}, kMostRanks));
    command->add_option("--config", estimate.config, "Job file: its model and settings, and the activations of a rank");
    command->add_option("--device", estimate.device, "auto, cpu or cuda, in place of the job's")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    command
        ->add_option("--compute-rate", estimate.compute_rate,
                     "FLOP/s that a rank reached (a run says it at its end): gives the time of a step")
        ->check(CLI::PositiveNumber);
    command
        ->add_option("--link-rate", estimate.link_rate,
                     "Bytes/s that a node sends to others; of one node, that a rank sends to the next")
        ->check(CLI::PositiveNumber);
    command->add_flag("--json", estimate.json, "One JSON object");
}

void add_inspect(CLI::App& app, Arguments& arguments) {
    CLI::App* command = app.add_subcommand("inspect", "A model, checkpoint, run, token or log-prob file in words");
    command->add_option("path", arguments.inspect.path, "File or directory")->required();
    command->add_option("--row", arguments.inspect.row, "Print this row of the data with its targets marked")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 53));
    command->add_option("--config", arguments.inspect.config, "Job file whose [data] packs the rows");
    command->add_option("--model", arguments.inspect.model, "Model directory whose tokenizer turns ids into text");
    command->add_flag("--json", arguments.inspect.json, "One JSON object");
}

void add_compare(CLI::App& app, Arguments& arguments) {
    CLI::App* command =
        app.add_subcommand("compare", "Largest and mean differences of two models, checkpoints or log-prob files");
    command->add_option("first", arguments.compare.first, "File or directory")->required();
    command->add_option("second", arguments.compare.second, "File or directory")->required();
    command->add_flag("--json", arguments.compare.json, "One JSON object");
}

void add_export(CLI::App& app, Arguments& arguments) {
    CLI::App* command = app.add_subcommand("export", "A checkpoint as a Hugging Face directory");
    command->add_option("checkpoint", arguments.export_model.checkpoint, "Checkpoint directory")->required();
    command->add_option("out", arguments.export_model.out_directory, "Directory to write")->required();
    command->add_option("--dtype", arguments.export_model.dtype, "auto, fp32, bf16 or fp16")
        ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
}

void add_keys(CLI::App& app, Arguments& arguments) {
    CLI::App* command = app.add_subcommand("keys", "Every key of the job file");
    command->add_option("pattern", arguments.keys_pattern, "Only keys whose name contains this");
    command->add_flag("--json", arguments.keys_json, "One JSON array");
    command->add_flag("--markdown", arguments.keys_markdown, "The tables of docs/job.md");
}

ExitCode run_command(CLI::App& app, const Arguments& arguments) {
    if (app.got_subcommand("check")) {
        command_check(arguments.check);
    } else if (app.got_subcommand("estimate")) {
        command_estimate(arguments.estimate);
    } else if (app.got_subcommand("inspect")) {
        command_inspect(arguments.inspect);
    } else if (app.got_subcommand("compare")) {
        command_compare(arguments.compare);
    } else if (app.got_subcommand("export")) {
        command_export(arguments.export_model);
    } else {
        const KeyFormat format = arguments.keys_json       ? KeyFormat::json
                                 : arguments.keys_markdown ? KeyFormat::markdown
                                                           : KeyFormat::text;
        const std::string keys = describe_keys(arguments.keys_pattern, format);
        if (keys.empty()) {
            fail(ExitCode::usage, "no key of the job file contains {}", arguments.keys_pattern);
        }
        fmt::print("{}", keys);
    }
    return ExitCode::ok;
}

int run_job(const Arguments& arguments) {
    const StopSignals signals;  // before MPI starts, which takes a while: a signal must not be lost then either
    return launch([&](const Communicator& communicator) {
        const JobFile file = agree_on_job(communicator, arguments.config, arguments.overrides);
        return file.job.job_type == "training" ? run_training(communicator, file, signals)
                                               : run_log_prob(communicator, file, signals);
    });
}

int run(int argc, char** argv) {
    CLI::App app("Trains and scores Hugging Face decoder models: mpirun -np N train --config job.toml", "train");
    Arguments arguments;
    app.set_version_flag("--version", version_text);
    app.require_subcommand(0, 1);
    app.add_option("--config", arguments.config, "Job file to run");
    app.add_option("--set", arguments.overrides, "Override one key: key=value (repeatable)")->expected(1)->take_all();
    add_check(app, arguments);
    add_estimate(app, arguments);
    add_inspect(app, arguments);
    add_compare(app, arguments);
    add_export(app, arguments);
    add_keys(app, arguments);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {
            return app.exit(error);  // --help, --version
        }
        fail(ExitCode::usage, "{} (a job file is given as --config job.toml; train --help lists everything)",
             error.what());
    }
    if (!app.get_subcommands().empty()) {
        return static_cast<int>(run_command(app, arguments));
    }
    if (arguments.config.empty()) {
        fail(ExitCode::usage, "a job is needed: train --config job.toml, or one of the commands in train --help");
    }
    return run_job(arguments);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const Error& error) {
        fmt::print(stderr, "train: error: {}\n", error.what());
        return static_cast<int>(error.code());
    } catch (const std::exception& error) {
        fmt::print(stderr, "train: error: {}\n", error.what());
        return static_cast<int>(ExitCode::internal);
    }
}
