// The learning rate of each step.
#pragma once

#include <cstdint>

#include "core/job.h"

namespace tessera {

/// A function of the step's number alone: what a checkpoint needs to know of it is how many steps were not skipped.
class Schedule {
  public:
    /// `horizon`: the steps that the schedule spans, at least 1. Throws Error(usage) where the scheduler's convention
    /// has no such schedule.
    Schedule(const Job::Training::Scheduler& scheduler, double lr, std::int64_t horizon);

    /// Rate of step `step`, counted from 1, skipped steps left out. Any step: after the horizon the rate stays.
    [[nodiscard]] double rate(std::int64_t step) const;

    /// Steps of the warm-up.
    [[nodiscard]] std::int64_t warmup() const { return warmup_; }

  private:
    enum class Shape { constant, linear, cosine };

    [[nodiscard]] double standard_rate(std::int64_t step) const;
    [[nodiscard]] double deepspeed_rate(std::int64_t step) const;
    [[nodiscard]] double decayed(double progress) const;

    Shape shape_;
    bool deepspeed_;
    bool log_warmup_;
    double lr_;
    double min_ratio_;
    std::int64_t warmup_ = 0;
    std::int64_t horizon_;
};

}  // namespace tessera
