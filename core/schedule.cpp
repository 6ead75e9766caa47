#include "core/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace tessera {

Schedule::Schedule(const Job::Training::Scheduler& scheduler, double lr, std::int64_t horizon)
    : shape_(scheduler.type == "cosine"   ? Shape::cosine
             : scheduler.type == "linear" ? Shape::linear
                                          : Shape::constant),
      deepspeed_(scheduler.convention == "deepspeed"),
      log_warmup_(scheduler.warmup_type == "log"),
      lr_(lr),
      min_ratio_(scheduler.min_lr_ratio),
      horizon_(horizon) {
    // nearbyint takes a half to the even step, as Python's round, with which such ratios are mostly computed.
    warmup_ = scheduler.warmup_steps > 0
                  ? scheduler.warmup_steps
                  : static_cast<std::int64_t>(std::nearbyint(scheduler.warmup_ratio * static_cast<double>(horizon)));
    if (!deepspeed_) {
        return;
    }
    if (shape_ == Shape::cosine && warmup_ == 0) {
        fail(ExitCode::usage,
             "training.lr_scheduler: convention = \"deepspeed\" with type = \"cosine\" needs a warm-up, and "
             "warmup_ratio = "
             "{} of a horizon of {} steps is none",
             scheduler.warmup_ratio, horizon);
    }
    warmup_ = std::max<std::int64_t>(warmup_, 2);  // as DeepSpeed's classes do
}

double Schedule::rate(std::int64_t step) const {
    return deepspeed_ ? deepspeed_rate(step) : standard_rate(step);
}

double Schedule::decayed(double progress) const {
    switch (shape_) {
        case Shape::constant:
            return lr_;
        case Shape::linear:
            return lr_ * (1 - (1 - min_ratio_) * progress);
        case Shape::cosine:
            return lr_ * (min_ratio_ + (1 - min_ratio_) * (1 + std::cos(std::numbers::pi * progress)) / 2);
    }
    return lr_;
}

double Schedule::standard_rate(std::int64_t step) const {
    const auto n = static_cast<double>(step);
    const auto w = static_cast<double>(warmup_);
    if (step <= warmup_) {
        return log_warmup_ ? lr_ * std::log(n + 1) / std::log(w + 1) : lr_ * n / w;
    }
    return decayed(horizon_ <= warmup_ ? 1.0 : std::min(1.0, (n - w) / static_cast<double>(horizon_ - warmup_)));
}

double Schedule::deepspeed_rate(std::int64_t step) const {
    // DeepSpeed advances its schedule after each step, from -1: step n sees the state n - 2, and states below 1 are
    // rate 0.
    const std::int64_t state = step - 2;
    if (state <= 0) {
        return 0;
    }
    const auto i = static_cast<double>(state);
    const auto w = static_cast<double>(warmup_);
    if (state < warmup_) {
        return lr_ * (log_warmup_ ? std::log(i + 1) / std::log(w) : i / w);
    }
    const auto span = static_cast<double>(std::max<std::int64_t>(horizon_ - warmup_, 1));
    if (shape_ == Shape::linear) {  // not 1 - (i - w) / span: where the warm-up exceeds the horizon the two differ
        return lr_ * std::max(0.0, (static_cast<double>(horizon_) - i) / span);
    }
    return decayed(std::min(1.0, (i - w + 1) / span));
}

}  // namespace tessera
