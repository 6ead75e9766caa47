#include "zero/communication_queue.h"

#include <utility>

#include "core/base/stopwatch.h"

namespace tessera {
CommunicationQueue::CommunicationQueue(const Communicator& communicator, Device& device, Progress& progress,
                                       bool overlapped, bool check)
    : communicator_(communicator.duplicate()),
      device_(device.connect({.rank = communicator.rank(),
                              .size = communicator.size(),
                              .broadcast = [this](const std::string& text) { return communicator_.broadcast(text); },
                              .host = &communicator_})),
      overlapped_(overlapped),
      progress_(progress),
      check_(check) {
    if (overlapped_ && !device_) {
        communicator_.set_patient(true);
        thread_ = std::thread([this] { run(); });
    }
}

void CommunicationQueue::close() noexcept {
    if (!thread_.joinable()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        waiting_.clear();
    }
    submitted_changed_.notify_one();
    communicator_.cancel();
    thread_.join();
}

CommunicationQueue::Ticket CommunicationQueue::submit(const Collective& collective, std::function<void()> work) {
    if (device_) {
        traffic_[collective.purpose] += {1, collective.bytes, 0, 0};
        device_->begin();
        untimed_exchanges_.push_back(collective.purpose);
        try {
            perform({collective, std::move(work)});
        } catch (...) {
            static_cast<void>(device_->end());
            throw;
        }
        done_ = submitted_ = device_->end();
        if (!overlapped_) {
            order_device(submitted_, collective.purpose);
        }
        return submitted_;
    }
    if (!thread_.joinable()) {
        traffic_[collective.purpose] += {1, collective.bytes, 0, 0};
        const Stopwatch watch;
        perform({collective, std::move(work)});
        traffic_[collective.purpose].waited += watch.seconds();
        done_ = ++submitted_;
        return submitted_;
    }
    Ticket ticket = 0;
    {
        const std::lock_guard lock(mutex_);
        traffic_[collective.purpose] += {1, collective.bytes, 0, 0};
        waiting_.push_back({collective, std::move(work)});
        ticket = ++submitted_;
    }
    submitted_changed_.notify_one();
    return ticket;
}

void CommunicationQueue::wait(Ticket ticket, Exchange purpose) {
    progress_.mark();
    if (device_) {
        order_device(ticket, purpose);
    }
    if (!thread_.joinable()) {
        return;
    }
    const Stopwatch watch;
    std::unique_lock lock(mutex_);
    const auto ended = [&] { return done_ >= ticket || error_; };
    if (!ended()) {
        communicator_.set_patient(false);  // nobody computes now
        done_changed_.wait(lock, ended);
        communicator_.set_patient(true);
    }
    traffic_[purpose].waited += watch.seconds();
    if (error_) {
        std::rethrow_exception(error_);
    }
}

void CommunicationQueue::settle() {
    drain(Exchange::publish_parameters);
    if (device_) {
        device_->finish();
    }
}

void CommunicationQueue::order_device(Ticket ticket, Exchange purpose) {
    if (device_->order_after(ticket)) {
        untimed_waits_.push_back(purpose);
    }
}

Traffic CommunicationQueue::traffic() {
    if (device_) {
        const auto [exchanges, waits] = device_->take_times();
        for (const double seconds : exchanges) {
            traffic_[untimed_exchanges_.front()].seconds += seconds;
            untimed_exchanges_.pop_front();
        }
        for (const double seconds : waits) {
            traffic_[untimed_waits_.front()].waited += seconds;
            untimed_waits_.pop_front();
        }
    }
    const std::lock_guard lock(mutex_);
    return traffic_;
}

void CommunicationQueue::perform(const Item& item) {
    progress_.begin_exchange(name_of(item.collective.purpose), item.collective.unit, item.collective.bytes);
    if (check_) {
        compare(item.collective);
    }
    const Stopwatch watch;
    item.work();
    const double seconds = device_ ? 0 : watch.seconds();  // a device is only asked here
    progress_.end_exchange();
    const std::lock_guard lock(mutex_);
    traffic_[item.collective.purpose].seconds += seconds;
}

void CommunicationQueue::compare(const Collective& collective) const {
    const std::string own = fmt::format("exchange {}: {}, unit {}, {} bytes", progress_.exchanges_begun(),
                                        name_of(collective.purpose), collective.unit, collective.bytes);
    const std::vector<std::string> all = communicator_.all_gather(own);
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
        if (all[rank] != all[0]) {
            throw AgreedError(ExitCode::disagree,
                              fmt::format("rank {} is at {}, rank 0 at {}", rank, all[rank], all[0]));
        }
    }
}

void CommunicationQueue::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        submitted_changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (stopping_) {
            return;
        }
        const Item item = std::move(waiting_.front());
        waiting_.pop_front();
        if (!error_) {
            lock.unlock();
            std::exception_ptr error;
            try {
                perform(item);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            error_ = error;
        }
        ++done_;
        done_changed_.notify_all();
    }
}

}  // namespace tessera
