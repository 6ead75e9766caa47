#include "kernels/cpu/cpu_device.h"

#include "kernels/cpu/cpu_ops.h"

namespace tessera {
namespace {

class CpuDevice final : public Device {
  public:
    [[nodiscard]] std::string kind() const override { return "cpu"; }
    [[nodiscard]] std::string description() const override { return "CPU"; }
    [[nodiscard]] std::optional<std::int64_t> free_bytes() const override { return std::nullopt; }
    [[nodiscard]] Memory allocate(std::int64_t bytes) override { return Memory(bytes); }
    [[nodiscard]] std::unique_ptr<Ops> make_ops(const OpsOptions& options) override { return make_cpu_ops(options); }
    [[nodiscard]] std::unique_ptr<DeviceExchange> connect(const ExchangeGroup& /*group*/) override { return nullptr; }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
    return std::make_unique<CpuDevice>();
}

}  // namespace tessera
