// What a run says: tables and lines on standard output, warnings on standard error, from rank 0 alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/memory.h"

namespace tessera {

/// "1,234,567"
[[nodiscard]] std::string with_separators(std::int64_t number);
/// "1,234,567 bytes (1.2 MiB)"
[[nodiscard]] std::string in_bytes(std::int64_t bytes);
/// "1h02m", "3m20s", "12s"
[[nodiscard]] std::string in_time(double seconds);

class Console {
  public:
    /// Speaks only if `speaks`; a progress line that overwrites itself is shown only on a terminal.
    explicit Console(bool speaks);
    ~Console();
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    void line(const std::string& text);
    void warn(const std::string& text);
    /// Rows of name and value, aligned, under a title.
    void table(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows);
    void memory_table(const MemoryPlan& plan);
    /// Keys of the job file that the job does not read, if there are any.
    void unused_keys(const std::vector<std::string>& keys);
    /// On a terminal: a line that the next one replaces. Elsewhere nothing.
    void progress(const std::string& text);

  private:
    void clear_progress();

    bool speaks_;
    bool terminal_;
    bool progress_shown_ = false;
};

}  // namespace tessera
