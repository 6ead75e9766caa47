// Ends a job whose ranks wait for each other in vain, and says for whom.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/communicator.h"
#include "core/progress.h"

namespace tessera {

/// A thread that watches the Progress of its rank. Where there is no sign of life for so many seconds, the rank reports
/// into <directory>/.hang, waits a little for the reports of the others, and the lowest that reported says which ranks
/// are silent or elsewhere than the rest. Then all processes end with code 124. Reports are files because MPI cannot be
/// relied on any more.
class HangWatch {
  public:
    /// Collective. `progress` must outlive it.
    HangWatch(const Communicator& communicator, std::string directory, double seconds, const Progress& progress);
    HangWatch(const HangWatch&) = delete;
    HangWatch& operator=(const HangWatch&) = delete;
    ~HangWatch();

    /// Where a rank was when it reported.
    struct Report {
        std::int64_t step = 0;
        std::int64_t exchange = 0;  // number of the one it is in, or was in last
        bool exchanging = false;
        std::string what;  // that exchange

        bool operator==(const Report&) const = default;
    };
    /// The message. `reports`: of each rank, nothing where there is none; `names`: of the ranks.
    [[nodiscard]] static std::string explain(double seconds, const std::vector<std::optional<Report>>& reports,
                                             const std::vector<std::string>& names);

  private:
    void run();
    void report_and_end();
    [[nodiscard]] std::string file_of(std::int64_t rank) const;
    [[nodiscard]] std::vector<std::optional<Report>> read_reports() const;

    const Communicator& communicator_;
    std::string directory_;
    double seconds_;
    const Progress& progress_;
    std::vector<std::string> names_;  // "rank 2 on node7, process 4711"
    std::mutex mutex_;
    std::condition_variable stopped_changed_;
    bool stopped_ = false;
    std::thread thread_;
};

}  // namespace tessera
