#include "apps/console.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>

namespace tessera {

std::string with_separators(std::int64_t number) {
    std::string text = fmt::format("{}", number);
    for (std::int64_t at = static_cast<std::int64_t>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
        text.insert(static_cast<std::size_t>(at), 1, ',');
    }
    return text;
}

std::string in_bytes(std::int64_t bytes) {
    constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} bytes", bytes)
                     : fmt::format("{} bytes ({:.1f} {})", with_separators(bytes), value, kUnits[unit]);
}

std::string in_time(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
    if (whole >= 3600) {
        return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
    }
    return whole >= 60 ? fmt::format("{}m{:02}s", whole / 60, whole % 60) : fmt::format("{}s", whole);
}

namespace {

/// Open MPI gives its processes a pseudo-terminal without a size, also where its own output is a file.
bool is_terminal(int descriptor) {
    winsize size{};
    return isatty(descriptor) == 1 && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
}

}  // namespace

Console::Console(bool speaks) : speaks_(speaks), terminal_(speaks && is_terminal(STDOUT_FILENO)) {}

Console::~Console() {
    if (progress_shown_) {
        std::fputs("\n", stdout);
    }
}

void Console::clear_progress() {
    if (progress_shown_) {
        std::fputs("\r\033[K", stdout);
        progress_shown_ = false;
    }
}

void Console::line(const std::string& text) {
    if (speaks_) {
        clear_progress();
        fmt::print("{}\n", text);
        std::fflush(stdout);
    }
}

void Console::warn(const std::string& text) {
    if (speaks_) {
        clear_progress();
        std::fflush(stdout);
        fmt::print(stderr, "train: warning: {}\n", text);
    }
}

void Console::table(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows) {
    std::size_t width = 0;
    for (const auto& row : rows) {
        width = std::max(width, row.first.size());
    }
    line(title);
    for (const auto& row : rows) {
        line(fmt::format("  {:<{}}  {}", row.first, width, row.second));
    }
}

void Console::memory_table(const MemoryPlan& plan) {
    std::vector<std::pair<std::string, std::string>> rows;
    std::int64_t total = 0;
    for (const MemoryUse& use : plan) {
        rows.emplace_back(use.purpose, fmt::format("{:>20}", with_separators(use.bytes)));
        total += use.bytes;
    }
    rows.emplace_back(
        "all", fmt::format("{:>20}  {:.1f} MiB", with_separators(total), static_cast<double>(total) / (1 << 20)));
    table("memory of a rank, bytes", rows);
}

void Console::unused_keys(const std::vector<std::string>& keys) {
    if (!keys.empty()) {
        line(fmt::format("keys that this job does not use: {}", fmt::join(keys, ", ")));
    }
}

void Console::progress(const std::string& text) {
    if (terminal_) {
        fmt::print("\r\033[K{}", text);
        std::fflush(stdout);
        progress_shown_ = true;
    }
}

}  // namespace tessera
