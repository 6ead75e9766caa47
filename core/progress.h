// How far this process has come, for whoever watches from another thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera {

/// Written by the threads that work, read by the one that watches. Every mark() is a sign of life.
class Progress {
  public:
    Progress() { mark(); }

    void mark() { last_ = now(); }
    void set_step(std::int64_t step) {
        step_ = step;
        mark();
    }
    /// An exchange with the other ranks begins; they are numbered from 1. `what` is a literal.
    void begin_exchange(const char* what, std::int64_t unit, std::int64_t bytes) {
        what_ = what;
        unit_ = unit;
        bytes_ = bytes;
        ++begun_;
        mark();
    }
    void end_exchange() {
        ended_ = begun_.load();
        mark();
    }

    /// As long as it lives, nobody takes the silence of this process amiss: for work on files, which takes its time.
    class Pause {
      public:
        explicit Pause(Progress& progress) : progress_(progress) { ++progress_.pauses_; }
        Pause(const Pause&) = delete;
        Pause& operator=(const Pause&) = delete;
        ~Pause() {
            progress_.mark();
            --progress_.pauses_;
        }

      private:
        Progress& progress_;
    };

    /// 0 during a pause.
    [[nodiscard]] double seconds_since_mark() const {
        return pauses_ > 0 ? 0 : static_cast<double>(now() - last_) * 1e-9;
    }
    [[nodiscard]] std::int64_t step() const { return step_; }
    [[nodiscard]] std::int64_t exchanges_begun() const { return begun_; }
    [[nodiscard]] bool exchanging() const { return begun_ != ended_; }
    [[nodiscard]] const char* what() const { return what_; }
    [[nodiscard]] std::int64_t unit() const { return unit_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    static std::int64_t now() {
        return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }

    std::atomic<std::int64_t> last_ = 0;  // nanoseconds of the steady clock
    std::atomic<std::int64_t> pauses_ = 0;
    std::atomic<std::int64_t> step_ = 0;
    std::atomic<std::int64_t> begun_ = 0;
    std::atomic<std::int64_t> ended_ = 0;
    std::atomic<const char*> what_ = "nothing";
    std::atomic<std::int64_t> unit_ = -1;
    std::atomic<std::int64_t> bytes_ = 0;
};

}  // namespace tessera
