// The two streams of a device: one computes, one exchanges.
#pragma once

#include <functional>

#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// Operations and exchanges of a device share it. One thread at a time. Each is made when it is first used: a plan
/// needs neither, nor a GPU.
class Streams {
  public:
    Streams() = default;
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;
    ~Streams() {
        for (simt::Stream stream : {exchange_, compute_}) {
            if (stream != nullptr) {
                simt::destroy_stream(stream);
            }
        }
    }

    /// Where operations go now.
    [[nodiscard]] simt::Stream current() { return current_ == nullptr ? compute() : current_; }
    [[nodiscard]] simt::Stream compute() { return made(compute_); }
    [[nodiscard]] simt::Stream exchange() { return made(exchange_); }
    void use(simt::Stream stream) { current_ = stream; }

    /// Called again and again while the host waits; throws where waiting is in vain.
    void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }
    /// Returns when the point is passed.
    void wait(const simt::Event& point) const;
    /// Returns when all that `stream` was given is done.
    void wait(simt::Stream stream) const;

  private:
    [[nodiscard]] static simt::Stream made(simt::Stream& stream) {
        if (stream == nullptr) {
            stream = simt::make_stream();
        }
        return stream;
    }

    simt::Stream compute_ = nullptr;
    simt::Stream exchange_ = nullptr;
    simt::Stream current_ = nullptr;  // the computing one
    std::function<void()> watch_;
};

}  // namespace tessera::cuda
