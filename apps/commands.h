// The commands that run in one process, without a launcher. Each prints to standard output; `json` asks for one JSON
// object instead of words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// More ranks, or nodes, than anybody plans for.
inline constexpr std::int64_t kMostRanks = 1 << 20;

struct CheckOptions {
    std::string config;
    std::vector<std::string> overrides;
    long long ranks = 1;
    long long nodes = 1;
    std::string device;  // in place of the job's; empty: the job's
    /// Bytes of each GPU, which need not be here, and of a node; else those of this machine.
    std::optional<std::uint64_t> device_memory;
    std::optional<std::uint64_t> host_memory;
    bool json = false;
};
/// Validates job, model and data (every token) and prints the resolved job and the memory plan; runs nothing.
void command_check(const CheckOptions& options);

struct EstimateOptions {
    std::string model;  // directory; empty: that of the job, or the two numbers below instead of a model
    std::optional<long long> parameters;
    std::optional<long long> largest_layer;
    long long gpus_per_node = 0;
    long long nodes = 0;
    std::string config;       // job whose settings are planned with; empty: the defaults
    std::string device;       // cpu or cuda; empty: the job's, where that is "cuda", else cpu
    double compute_rate = 0;  // FLOP/s of a rank; 0: not known
    double link_rate = 0;     // bytes/s between nodes, each way; 0: not known
    bool json = false;
};
/// DeepSpeed's memory tables, and of a model our own plan at every stage: a rank's memory, what it sends in a step,
/// what goes over a node's link, and with the rates the seconds that a step takes at least and at most. Needs no
/// weights or data, and runs nothing.
void command_estimate(const EstimateOptions& options);

struct InspectOptions {
    std::string path;
    long long row = -1;  // a row of data with its targets marked; below 0: the whole in words
    std::string config;  // of the job that packs the rows; empty: documents as they are
    std::string model;   // whose tokenizer.json turns ids into text; empty: ids
    bool json = false;
};
/// A model, checkpoint, run, token or log-prob file in words.
void command_inspect(const InspectOptions& options);

struct CompareOptions {
    std::string first;
    std::string second;
    bool json = false;
};
/// The largest and mean differences between two models, checkpoints or log-prob files.
void command_compare(const CompareOptions& options);

struct ExportOptions {
    std::string checkpoint;  // or a run's directory: its newest one
    std::string out_directory;
    std::string dtype = "auto";
};
/// A checkpoint as a Hugging Face directory.
void command_export(const ExportOptions& options);

/// Versions of the program and of the libraries that it runs with.
[[nodiscard]] std::string version_text();

}  // namespace tessera
