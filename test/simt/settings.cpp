#include "test/simt/settings.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "test/simt/shared_memory.h"
#include "test/simt/streams.h"

namespace tessera::simt {

namespace {

template <typename T>
T parse_number(std::string_view name, std::string_view text) {
    T value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
        throw EmulationError(fmt::format("TESSERA_EMULATION: {} is no number for {}", text, name));
    }
    return value;
}

void set_option(Emulation& emulation, std::string_view name, std::string_view value) {
    if (name == "order" && (value == "forward" || value == "reverse" || value == "random")) {
        emulation.order = value == "forward" ? Order::forward : value == "reverse" ? Order::reverse : Order::random;
    } else if (name == "seed") {
        emulation.seed = parse_number<std::uint64_t>(name, value);
    } else if (name == "capability") {
        emulation.capability = parse_number<int>(name, value);
        static_cast<void>(emulated::SharedMemory::limit(emulation.capability));  // throws where it is not known
    } else if (name == "truncate_mma") {
        emulation.truncate_mma = parse_number<int>(name, value) != 0;
    } else {
        throw EmulationError(fmt::format(
            "TESSERA_EMULATION: {}={} is none of order=forward|reverse|random, seed=N, capability=80|89|90, "
            "truncate_mma=0|1",
            name, value));
    }
}

Emulation read_environment() {
    Emulation emulation;
    const char* text = std::getenv("TESSERA_EMULATION");
    std::string_view rest = text != nullptr ? text : "";
    while (!rest.empty()) {
        const std::string_view option = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), option.size() + 1));
        const std::size_t equals = option.find('=');
        set_option(emulation, option.substr(0, equals),
                   equals == std::string_view::npos ? "" : option.substr(equals + 1));
    }
    return emulation;
}

Emulation& current_emulation() {
    static Emulation current = read_environment();
    return current;
}

}  // namespace

bool is_emulated() {
    return true;
}
void set_emulation(const Emulation& emulation) {
    const std::lock_guard lock(emulated::emulator_mutex());
    static_cast<void>(emulated::SharedMemory::limit(emulation.capability));
    current_emulation() = emulation;
    emulated::seed_streams(emulation.seed);
}
const Emulation& emulation() {
    return current_emulation();
}
const LaunchStatistics& statistics() {
    return emulated::counted_statistics();
}
void reset_statistics() {
    emulated::counted_statistics() = {};
}

namespace emulated {

std::recursive_mutex& emulator_mutex() {
    static std::recursive_mutex mutex;
    return mutex;
}
LaunchStatistics& counted_statistics() {
    static LaunchStatistics statistics;
    return statistics;
}

}  // namespace emulated

}  // namespace tessera::simt
