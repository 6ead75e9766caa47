#include "apps/job_file.h"

#include <filesystem>

#include "io/durable_file.h"

namespace tessera {

JobFile read_job(const std::string& path, const std::vector<std::string>& overrides) {
    constexpr std::int64_t kLargestJob = 16 << 20;
    JobFile file = parse_job(read_text_file(path, kLargestJob), path, overrides);
    make_paths_absolute(file.job, std::filesystem::current_path().string());
    return file;
}

}  // namespace tessera
