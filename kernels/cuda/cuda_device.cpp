#include "kernels/cuda/cuda_device.h"

#include <algorithm>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/stream_exchange.h"

namespace tessera::cuda {
namespace {

/// What NCCL, cuBLASLt and the driver take besides the plan; an estimate, on the safe side for a few ranks.
constexpr std::int64_t kForLibraries = 512 << 20;

class CudaDevice : public Device {
  public:
    [[nodiscard]] std::string kind() const override { return "cuda"; }
    [[nodiscard]] std::unique_ptr<Ops> make_ops(const OpsOptions& options) override {
        return make_cuda_ops(options, streams_);
    }
    [[nodiscard]] std::unique_ptr<DeviceExchange> connect(const ExchangeGroup& group) override {
        return make_exchange(streams_, group);
    }

  protected:
    [[nodiscard]] static std::int64_t without_libraries(std::int64_t bytes) {
        return std::max<std::int64_t>(0, bytes - kForLibraries);
    }
    [[nodiscard]] Streams& streams() { return streams_; }

  private:
    Streams streams_;
};

class OpenedCudaDevice final : public CudaDevice {
  public:
    explicit OpenedCudaDevice(simt::DeviceInfo info) : info_(std::move(info)) { probe(); }

    [[nodiscard]] std::string description() const override {
        return fmt::format("{} ({})", info_.name, info_.pci_bus_id);
    }
    [[nodiscard]] std::optional<std::int64_t> free_bytes() const override {
        return without_libraries(simt::free_device_bytes());
    }

    [[nodiscard]] Memory allocate(std::int64_t bytes) override {
        std::byte* memory = simt::allocate_device(bytes);
        Memory owned({memory, static_cast<std::size_t>(bytes)},
                     [](std::span<std::byte> block) { simt::free_device(block.data()); });
        simt::zero_async(memory, bytes, streams().compute());
        streams().wait(streams().compute());
        return owned;
    }

  private:
    /// The library may have been compiled for other architectures only, or the device be too old: a kernel shows it.
    void probe() {
        try {
            const Memory memory = allocate(kMemoryAlignment);
            scale(streams().compute(), Matrix(memory.span().data(), DType::f32, 1, 1), 1);
            streams().wait(streams().compute());
        } catch (const Error& error) {
            fail(ExitCode::usage, "{} (compute capability {}.{}) does not run this build's kernels: {}", info_.name,
                 info_.capability / 10, info_.capability % 10, error.what());
        }
    }

    simt::DeviceInfo info_;
};

class PlannedCudaDevice final : public CudaDevice {
  public:
    explicit PlannedCudaDevice(std::int64_t bytes) : bytes_(bytes) {}

    [[nodiscard]] std::string description() const override { return fmt::format("a GPU of {} bytes", bytes_); }
    [[nodiscard]] std::optional<std::int64_t> free_bytes() const override { return without_libraries(bytes_); }
    [[nodiscard]] Memory allocate(std::int64_t /*bytes*/) override {
        fail(ExitCode::internal, "a GPU that is only planned for has no memory");
    }

  private:
    std::int64_t bytes_;
};

std::string versions() {
    return fmt::format("{}\n{}\n{}\n{}", simt::runtime_versions(), products_version(), cudnn_version(),
                       exchange_version());
}

}  // namespace

std::unique_ptr<Device> open_cuda_device(std::int64_t local_rank) {
    const int devices = simt::device_count();
    if (devices == 0) {
        fail(ExitCode::usage, "this process sees no GPU");
    }
    // A scheduler shows each task its own GPU, or each task all of the node's.
    simt::use_device(static_cast<int>(local_rank % devices));
    return std::make_unique<OpenedCudaDevice>(simt::device_info());
}

std::unique_ptr<Device> plan_cuda_device(std::int64_t bytes) {
    return std::make_unique<PlannedCudaDevice>(bytes);
}

}  // namespace tessera::cuda

extern "C" const tessera::CudaBackend* tessera_cuda_backend() {
    static const tessera::CudaBackend backend{.open = tessera::cuda::open_cuda_device,
                                              .plan = tessera::cuda::plan_cuda_device,
                                              .versions = tessera::cuda::versions};
    return &backend;
}
