// Exchanges between ranks, done in the order of their submission: at once, on a thread of their own beside computation,
// or on a device's stream of exchanges. Each is counted, timed, and visible to whoever watches for hangs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/communicator.h"
#include "core/progress.h"
#include "kernels/device.h"
#include "zero/traffic.h"

namespace tessera {

/// Whether jobs compare what their ranks exchange: in debug builds, as it costs a small collective each time.
#ifdef NDEBUG
inline constexpr bool kCheckExchanges = false;
#else
inline constexpr bool kCheckExchanges = true;
#endif

/// Every rank submits the same exchanges in the same order. They are on a communicator of the queue's own.
class CommunicationQueue {
  public:
    using Ticket = std::int64_t;

    /// What is exchanged.
    struct Collective {
        Exchange purpose = Exchange::reduce_gradients;
        std::int64_t unit = -1;
        std::int64_t bytes = 0;  // that this rank sends to the others
    };

    /// `device`: where the memory is that is exchanged. `overlapped`: false does each exchange before what is computed
    /// after its submission. `check`: the ranks compare the description of each
    /// exchange before it, and one that disagrees is named: Error(disagree).
    CommunicationQueue(const Communicator& communicator, Device& device, Progress& progress, bool overlapped,
                       bool check);
    CommunicationQueue(const CommunicationQueue&) = delete;
    CommunicationQueue& operator=(const CommunicationQueue&) = delete;
    ~CommunicationQueue() { close(); }

    [[nodiscard]] const Communicator& communicator() const { return communicator_; }
    /// For the work that is submitted.
    [[nodiscard]] const BulkExchange& bulk() const {
        return device_ ? static_cast<const BulkExchange&>(*device_) : communicator_;
    }

    [[nodiscard]] Ticket submit(const Collective& collective, std::function<void()> work);
    /// What is computed from now on finds the exchange of the ticket, and with it all before it, done; throws what it
    /// threw. The time that this takes is counted as waiting for `purpose`.
    void wait(Ticket ticket, Exchange purpose);
    /// Waits for everything.
    void drain(Exchange purpose) { wait(submitted_, purpose); }
    /// Returns when everything is done, on a device too.
    void settle();
    /// Drops what is not done and ends the thread; before the memory goes that the exchanges use. Whoever goes on
    /// afterwards drains first.
    void close() noexcept;

    /// Calls and bytes count when they are submitted, seconds when they are over.
    [[nodiscard]] Traffic traffic();

  private:
    struct Item {
        Collective collective;
        std::function<void()> work;
    };
    void perform(const Item& item);
    /// What is computed from now on on the device begins after the ticket.
    void order_device(Ticket ticket, Exchange purpose);
    void compare(const Collective& collective) const;
    void run();

    Communicator communicator_;
    std::unique_ptr<DeviceExchange> device_;  // null: the memory is the host's
    std::deque<Exchange> untimed_exchanges_;  // of the device, and its waits for them
    std::deque<Exchange> untimed_waits_;
    bool overlapped_;
    Progress& progress_;
    bool check_;
    mutable std::mutex mutex_;
    std::condition_variable submitted_changed_;
    std::condition_variable done_changed_;
    std::deque<Item> waiting_;
    Ticket submitted_ = 0;  // number of the newest, from 1
    Ticket done_ = 0;
    bool stopping_ = false;
    std::exception_ptr error_;  // the first; nothing is done after it
    Traffic traffic_;
    std::thread thread_;
};

}  // namespace tessera
