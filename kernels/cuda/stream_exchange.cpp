#include "kernels/cuda/stream_exchange.h"

#include <algorithm>

namespace tessera::cuda {

void StreamExchange::begin() {
    asked_.record(streams_.compute());
    asked_.make_wait(streams_.exchange());
    streams_.use(streams_.exchange());
}

DeviceExchange::Point StreamExchange::end() {
    ++last_;
    ended_[static_cast<std::size_t>(last_) % ended_.size()].record(streams_.exchange());
    streams_.use(streams_.compute());
    return last_;
}

void StreamExchange::order_after(Point point) {
    if (point <= ordered_) {
        return;
    }
    const Point oldest = last_ - static_cast<Point>(ended_.size()) + 1;
    ordered_ = std::max(point, oldest);
    ended_[static_cast<std::size_t>(ordered_) % ended_.size()].make_wait(streams_.compute());
}

void StreamExchange::finish() {
    streams_.wait(streams_.exchange());
    streams_.wait(streams_.compute());
}

}  // namespace tessera::cuda
