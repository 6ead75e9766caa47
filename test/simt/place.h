// Where in a kernel a word stands.
#pragma once

namespace tessera::simt {

/// As std::source_location, which the oldest compiler that reads these files lacks.
struct Place {
    const char* file = "";
    unsigned line = 0;

    [[nodiscard]] static constexpr Place current(const char* in_file = __builtin_FILE(),
                                                 unsigned at_line = __builtin_LINE()) {
        return {in_file, at_line};
    }
};

}  // namespace tessera::simt
