#include "kernels/cuda/streams.h"

#include <thread>

namespace tessera::cuda {

void Streams::wait(const simt::Event& point) const {
    while (!point.passed()) {
        if (watch_) {
            watch_();
        }
        std::this_thread::yield();
    }
}

void Streams::wait(simt::Stream stream) const {
    if (!watch_) {
        return simt::synchronize(stream);
    }
    simt::Event end;
    end.record(stream);
    wait(end);
}

}  // namespace tessera::cuda
