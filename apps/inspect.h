// The parts of `train inspect`, by what is looked at.
#pragma once

#include <string>

#include "apps/commands.h"
#include "apps/report.h"

namespace tessera {

[[nodiscard]] Report inspect_model(const std::string& path);
/// Compares all checksums first.
[[nodiscard]] Report inspect_checkpoint(const std::string& path);
/// The output directory of a job.
[[nodiscard]] Report inspect_run(const std::string& path);
[[nodiscard]] Report inspect_metrics(const std::string& path);
/// Reads all tokens and the mask.
[[nodiscard]] Report inspect_tokens(const std::string& path, const std::string& format);
[[nodiscard]] Report inspect_log_probs(const std::string& path);
/// Row options.row of a token file: a document, or what the job in options.config packs.
[[nodiscard]] Report inspect_row(const InspectOptions& options, const std::string& format);

}  // namespace tessera
