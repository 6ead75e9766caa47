// What a rank computes on: its memory, the operations on it, and the exchange of it with other ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/memory.h"
#include "kernels/bulk_exchange.h"
#include "kernels/ops.h"

namespace tessera {

/// The fused kernels of the backend; the composed reference, on the CPU; cuDNN's, on GPUs.
enum class AttentionKind { flash, eager, cudnn };

struct OpsOptions {
    DType storage = DType::f32;
    bool tf32 = false;  // products of f32 on a GPU may round their inputs to TF32
    bool fused = true;  // false: all but products, attention and moving memory as the composed reference does it
    AttentionKind attention = AttentionKind::flash;
};

/// The ranks that a device exchanges memory with, as its host reaches them.
struct ExchangeGroup {
    std::int64_t rank = 0;
    std::int64_t size = 1;
    std::function<std::string(const std::string&)> broadcast;  // rank 0's text; collective
    const BulkExchange* host = nullptr;                        // of the host's memory
};

/// Exchanges of a device's memory, on a stream of their own beside that of the operations. One thread uses it and the
/// operations.
class DeviceExchange : public BulkExchange {
  public:
    using Point = std::int64_t;

    /// Operations and exchanges that are asked for until end() belong together: they begin when all operations asked
    /// for before are done, and run beside those asked for afterwards.
    virtual void begin() = 0;
    /// Numbers what was begun, from 1.
    [[nodiscard]] virtual Point end() = 0;
    /// Operations that are asked for from now on begin when all up to `point` is done. Whether that is a wait, or they
    /// did so already.
    virtual bool order_after(Point point) = 0;

    /// Seconds on the device, in order, of what is over and was not told before.
    struct Times {
        std::vector<double> exchanges;  // from begin() to end()
        std::vector<double> waits;      // of operations, where order_after() was one
    };
    [[nodiscard]] virtual Times take_times() = 0;
    /// Returns when all is done; throws what went wrong.
    virtual void finish() = 0;
};

class Device {
  public:
    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    virtual ~Device() = default;

    /// "cpu" or "cuda", as job files say it.
    [[nodiscard]] virtual std::string kind() const = 0;
    /// In words, with what tells it from others of its kind.
    [[nodiscard]] virtual std::string description() const = 0;
    /// Bytes that may still be allocated on a device with memory of its own; nothing where that is the host's.
    [[nodiscard]] virtual std::optional<std::int64_t> free_bytes() const = 0;
    /// Zeroed memory, aligned to kMemoryAlignment. Throws Error(internal) with the bytes where they are not to be had.
    [[nodiscard]] virtual Memory allocate(std::int64_t bytes) = 0;
    /// Operations on this device's memory. Throws Error(usage) where the device has no such operations.
    [[nodiscard]] virtual std::unique_ptr<Ops> make_ops(const OpsOptions& options) = 0;
    /// Exchanges of the device's memory; null where that is the host's. Collective; the group's exchange of the host
    /// must outlive it.
    [[nodiscard]] virtual std::unique_ptr<DeviceExchange> connect(const ExchangeGroup& group) = 0;
};

}  // namespace tessera
