// metrics.jsonl: one JSON object a line, one line a logged step, in order; a step never appears twice.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/durable_file.h"

namespace tessera {

/// One record: keys in the order of their adding. Numbers read back exactly; what is not finite is written as null.
class MetricsRecord {
  public:
    explicit MetricsRecord(std::int64_t step) { add("step", step); }

    template <std::integral T>
    requires(!std::same_as<T, bool>) void add(std::string_view key, T value) {
        add_text(key, fmt::format("{}", value));
    }
    void add(std::string_view key, std::same_as<bool> auto value) { add_text(key, value ? "true" : "false"); }
    void add(std::string_view key, double value);
    void add(std::string_view key, std::string_view value);
    void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }

    /// The object, without a line's end.
    [[nodiscard]] std::string line() const { return text_ + "}"; }

  private:
    void add_text(std::string_view key, std::string_view value);

    std::string text_;
};

/// The file of one run, for appending. Not for several threads at once.
class MetricsFile {
  public:
    /// Opens or creates the file. Records of steps after `keep_through_step`, which the run will make again, are
    /// removed, and so is a last line that a crash tore; what stays, stays as it is, byte for byte.
    MetricsFile(std::string path, std::int64_t keep_through_step);

    /// Lines in the midst of the file that were no records and were removed, in words; empty normally.
    [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

    /// Adds a line with one write. It survives the end of the process at once, that of the machine after sync().
    void append(const MetricsRecord& record);

    /// Makes all lines durable; before a checkpoint that counts on them.
    void sync();

  private:
    std::string path_;
    FileDescriptor file_;
    std::vector<std::string> warnings_;
};

/// Calls `visit` for every whole record of a metrics file, in order. Other lines are passed over.
void read_metrics(const std::string& path, const std::function<void(std::int64_t step, std::string_view line)>& visit);

}  // namespace tessera
