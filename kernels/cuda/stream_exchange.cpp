#include "kernels/cuda/stream_exchange.h"

#include <algorithm>

namespace tessera::cuda {

void StreamExchange::begin() {
    asked_.record(streams_.compute());
    asked_.make_wait(streams_.exchange());
    streams_.use(streams_.exchange());
    exchanges_.start(streams_.exchange());
}

DeviceExchange::Point StreamExchange::end() {
    streams_.use(streams_.compute());
    return exchanges_.stop(streams_.exchange());
}

bool StreamExchange::order_after(Point point) {
    if (point <= ordered_) {
        return false;
    }
    ordered_ = point;
    waits_.start(streams_.compute());
    exchanges_.end_of(point).make_wait(streams_.compute());
    waits_.stop(streams_.compute());
    return true;
}

DeviceExchange::Times StreamExchange::take_times() {
    return {exchanges_.take(), waits_.take()};
}

void StreamExchange::finish() {
    streams_.wait(streams_.exchange());
    streams_.wait(streams_.compute());
}

}  // namespace tessera::cuda
