#include "kernels/cuda/timed_spans.h"

#include <algorithm>
#include <utility>

namespace tessera::cuda {

void TimedSpans::start(simt::Stream stream) {
    if (last_ - measured_ == kKept) {
        streams_.wait(spans_[place_of(measured_ + 1)].end);
        measure_next();
    }
    spans_[place_of(last_ + 1)].begin.record(stream);
}

std::int64_t TimedSpans::stop(simt::Stream stream) {
    spans_[place_of(++last_)].end.record(stream);
    return last_;
}

const simt::Event& TimedSpans::end_of(std::int64_t number) const {
    return spans_[place_of(std::max(number, last_ - kKept + 1))].end;
}

std::vector<double> TimedSpans::take() {
    while (measured_ < last_ && spans_[place_of(measured_ + 1)].end.passed()) {
        measure_next();
    }
    return std::exchange(seconds_, {});
}

void TimedSpans::measure_next() {
    const Span& span = spans_[place_of(++measured_)];
    seconds_.push_back(span.end.seconds_since(span.begin));
}

}  // namespace tessera::cuda
