#include "apps/inspect.h"

#include "apps/path_kind.h"
#include "core/base/error.h"

namespace tessera {
namespace {

Report inspect_whole(const std::string& path, const FoundPath& found) {
    switch (found.kind) {
        case PathKind::model:
            return inspect_model(path);
        case PathKind::checkpoint:
            return inspect_checkpoint(path);
        case PathKind::run:
            return inspect_run(path);
        case PathKind::tokens:
            return inspect_tokens(path, found.token_format);
        case PathKind::log_probs:
            return inspect_log_probs(path);
        case PathKind::metrics:
            return inspect_metrics(path);
    }
    fail(ExitCode::internal, "{}: a kind without an inspection", path);
}

}  // namespace

void command_inspect(const InspectOptions& options) {
    if (options.row < 0 && !(options.config.empty() && options.model.empty())) {
        fail(ExitCode::usage, "--config and --model of inspect belong to --row N: add it");
    }
    const FoundPath found = find_kind(options.path);
    if (options.row >= 0 && found.kind != PathKind::tokens) {
        fail(ExitCode::usage, "--row shows a row of a token file, and {} is none", options.path);
    }
    const Report report =
        options.row >= 0 ? inspect_row(options, found.token_format) : inspect_whole(options.path, found);
    report.print(options.json);
}

}  // namespace tessera
