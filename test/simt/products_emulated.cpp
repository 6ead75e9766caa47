// Products of the emulated device: those of the CPU library, in the order of the stream.
#include <omp.h>

#include <map>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cuda/products.h"
#include "test/simt/streams.h"

namespace tessera::cuda {
namespace {

class EmulatedProducts final : public Products {
  public:
    [[nodiscard]] std::int64_t workspace_bytes() const override { return 0; }
    void bind_workspace(std::span<std::byte> /*memory*/) override {}

    void forward(simt::Stream stream, Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) override {
        enqueue(stream, x, w, [=](cpu::Products& products) { products.forward(y, x, w, bias); });
    }
    void backward_input(simt::Stream stream, Matrix dx, ConstMatrix dy, ConstMatrix w) override {
        enqueue(stream, dy, w, [=](cpu::Products& products) { products.backward_input(dx, dy, w); });
    }
    void backward_weight(simt::Stream stream, Matrix dw, ConstMatrix dy, ConstMatrix x) override {
        enqueue(stream, dy, x, [=](cpu::Products& products) { products.backward_weight(dw, dy, x); });
    }

  private:
    void enqueue(simt::Stream stream, ConstMatrix a, ConstMatrix b, std::function<void(cpu::Products&)> product) {
        const std::int64_t columns = std::max({a.cols, b.cols, b.rows});
        const OpsLimits limits{.tokens = std::max(a.rows, b.rows),
                               .columns = columns,
                               .weight_elements = columns * columns,
                               .logits_rows = a.rows,
                               .vocabulary = columns};
        simt::emulated::enqueue(
            stream, {.work = [this, dtype = a.dtype, limits, product] {
                cpu::Products& products = products_of(dtype);
                std::vector<std::byte> workspace(static_cast<std::size_t>(products.workspace_bytes(limits)) + 64);
                void* start = workspace.data();
                std::size_t space = workspace.size();
                std::align(64, space - 64, start, space);
                products.bind_workspace({static_cast<std::byte*>(start), space});
                product(products);
            }});
    }
    [[nodiscard]] cpu::Products& products_of(DType dtype) {
        return products_.try_emplace(dtype, dtype, omp_get_max_threads()).first->second;
    }

    std::map<DType, cpu::Products> products_;
};

}  // namespace

std::unique_ptr<Products> make_products(bool /*tf32*/) {
    return std::make_unique<EmulatedProducts>();
}

std::string products_version() {
    return "products of the CPU library";
}

}  // namespace tessera::cuda
