#include "apps/decode_tokens.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "io/durable_file.h"
#include "io/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostOutput = std::size_t{64} << 20;

/// The script, which lies beside the program or in the tree that it was built in; empty where it is not found.
std::string find_script() {
    std::error_code error;
    fs::path directory = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (int up = 0; !error && up < 3; ++up, directory = directory.parent_path()) {
        const fs::path script = directory / "scripts" / "decode_tokens.py";
        if (fs::is_regular_file(script, error)) {
            return script.string();
        }
        error.clear();
    }
    return "";
}

[[noreturn]] void fail_system(const char* what) {
    fail(ExitCode::internal, "{}: {}", what, std::strerror(errno));
}

/// A file in memory that holds `text`, at its beginning: unlike a pipe it needs nobody who empties it.
FileDescriptor memory_file(const std::string& text) {
    FileDescriptor file(::memfd_create("tokens", MFD_CLOEXEC));
    if (!file.is_open()) {
        fail_system("memfd_create");
    }
    write_all(file.get(), text.data(), static_cast<std::int64_t>(text.size()), "a file in memory");
    if (::lseek(file.get(), 0, SEEK_SET) != 0) {
        fail_system("lseek");
    }
    return file;
}

/// What to do to the files of a new process.
class FileActions {
  public:
    FileActions() { posix_spawn_file_actions_init(&actions_); }
    FileActions(const FileActions&) = delete;
    FileActions& operator=(const FileActions&) = delete;
    ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
    void duplicate(int from, int to) { posix_spawn_file_actions_adddup2(&actions_, from, to); }
    void discard(int file) { posix_spawn_file_actions_addopen(&actions_, file, "/dev/null", O_WRONLY, 0); }
    [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

  private:
    posix_spawn_file_actions_t actions_{};
};

std::string read_to_end(int file) {
    std::string text;
    std::array<char, 1 << 16> buffer;
    for (;;) {
        const ssize_t count = ::read(file, buffer.data(), buffer.size());
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0 || text.size() > kMostOutput) {
            return text;
        }
        text.append(buffer.data(), static_cast<std::size_t>(count));
    }
}

struct Ended {
    int status = 0;  // as waitpid gives it
    std::string output;
};

/// Runs a program of PATH without a shell. `status` is 127 << 8 where there is none.
Ended run_program(std::vector<std::string> arguments, const std::string& input) {
    const FileDescriptor in = memory_file(input);
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
        fail_system("pipe2");
    }
    FileDescriptor from(pipe[0]);
    FileDescriptor to(pipe[1]);
    FileActions actions;
    actions.duplicate(in.get(), STDIN_FILENO);
    actions.duplicate(to.get(), STDOUT_FILENO);
    actions.discard(STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
        argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    pid_t process = 0;
    if (::posix_spawnp(&process, argv[0], actions.get(), nullptr, argv.data(), environ) != 0) {
        return {127 << 8, ""};
    }
    to = FileDescriptor();
    Ended ended;
    ended.output = read_to_end(from.get());
    from = FileDescriptor();
    while (::waitpid(process, &ended.status, 0) < 0 && errno == EINTR) {
    }
    return ended;
}

}  // namespace

DecodedTokens decode_tokens(const std::string& tokenizer_path, const std::vector<std::vector<Span>>& sequences) {
    const std::string script = find_script();
    if (script.empty()) {
        return {{}, "scripts/decode_tokens.py is not beside the program"};
    }
    const Ended ended = run_program({"python3", script, tokenizer_path}, json(sequences).dump());
    if (ended.status != 0) {
        // The script says why in one line; Python itself, where it cannot even start, says nothing here.
        const std::string said = ended.output.substr(0, ended.output.find('\n'));
        return {{}, said.empty() ? "python3 cannot run scripts/decode_tokens.py" : in_quotes(said)};
    }
    const json result = parse_json(ended.output, script);
    DecodedTokens decoded;
    bool fits = result.is_array() && result.size() == sequences.size();
    for (std::size_t s = 0; fits && s < sequences.size(); ++s) {
        fits = result[s].is_array() && result[s].size() == sequences[s].size() &&
               std::ranges::all_of(result[s], [](const json& text) { return text.is_string(); });
    }
    if (!fits) {
        fail(ExitCode::internal, "{} did not give a text for each span", script);
    }
    decoded.texts = result.get<std::vector<std::vector<std::string>>>();
    return decoded;
}

}  // namespace tessera
