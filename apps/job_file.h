// A job file on disk.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"

namespace tessera {

/// Reads and parses a job file; its paths are made absolute with respect to the working directory.
[[nodiscard]] JobFile read_job(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace tessera
