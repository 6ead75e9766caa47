// Products of the emulated device: those of the CPU library, in the order of the stream.
#include <omp.h>

#include <map>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cuda/products.h"
#include "test/simt/streams.h"

namespace tessera::cuda {
namespace {

/// A copy in which every float is rounded to the 10 bits of mantissa that TF32 keeps.
class AsTf32 {
  public:
    explicit AsTf32(ConstMatrix x) : rows_(x.rows), cols_(x.cols) {
        for (std::int64_t row = 0; row < x.rows; ++row) {
            const float* values = x.row_range(row, 1).as<float>();
            std::transform(values, values + x.cols, std::back_inserter(values_), [](float value) {
                const auto word = std::bit_cast<std::uint32_t>(value);
                const bool finite = (word & 0x7f800000u) != 0x7f800000u;
                return finite ? std::bit_cast<float>((word + 0x1000u) & ~0x1fffu) : value;
            });
        }
    }
    [[nodiscard]] ConstMatrix view() const {
        return {reinterpret_cast<const std::byte*>(values_.data()), DType::f32, rows_, cols_};
    }

  private:
    std::int64_t rows_;
    std::int64_t cols_;
    std::vector<float> values_;
};

class EmulatedProducts final : public Products {
  public:
    explicit EmulatedProducts(bool tf32) : tf32_(tf32) {}
    [[nodiscard]] std::int64_t workspace_bytes() const override { return 0; }
    void bind_workspace(std::span<std::byte> /*memory*/) override {}

    void forward(simt::Stream stream, Matrix y, ConstMatrix x, ConstMatrix w, ConstMatrix bias) override {
        enqueue(stream, x, w,
                [=](cpu::Products& products, ConstMatrix a, ConstMatrix b) { products.forward(y, a, b, bias); });
    }
    void backward_input(simt::Stream stream, Matrix dx, ConstMatrix dy, ConstMatrix w) override {
        enqueue(stream, dy, w,
                [=](cpu::Products& products, ConstMatrix a, ConstMatrix b) { products.backward_input(dx, a, b); });
    }
    void backward_weight(simt::Stream stream, Matrix dw, ConstMatrix dy, ConstMatrix x) override {
        enqueue(stream, dy, x,
                [=](cpu::Products& products, ConstMatrix a, ConstMatrix b) { products.backward_weight(dw, a, b); });
    }

  private:
    using Product = std::function<void(cpu::Products&, ConstMatrix a, ConstMatrix b)>;

    void enqueue(simt::Stream stream, ConstMatrix a, ConstMatrix b, const Product& product) {
        const std::int64_t columns = std::max({a.cols, b.cols, b.rows});
        const OpsLimits limits{.tokens = std::max(a.rows, b.rows),
                               .columns = columns,
                               .weight_elements = columns * columns,
                               .logits_rows = a.rows,
                               .vocabulary = columns};
        simt::emulated::enqueue(
            stream, {.work = [this, a, b, limits, product] {
                cpu::Products& products = products_of(a.dtype);
                std::vector<std::byte> workspace(static_cast<std::size_t>(products.workspace_bytes(limits)) + 64);
                void* start = workspace.data();
                std::size_t space = workspace.size();
                std::align(64, space - 64, start, space);
                products.bind_workspace({static_cast<std::byte*>(start), space});
                if (tf32_ && a.dtype == DType::f32) {
                    product(products, AsTf32(a).view(), AsTf32(b).view());
                } else {
                    product(products, a, b);
                }
            }});
    }
    [[nodiscard]] cpu::Products& products_of(DType dtype) {
        return products_.try_emplace(dtype, dtype, omp_get_max_threads()).first->second;
    }

    bool tf32_;
    std::map<DType, cpu::Products> products_;
};

}  // namespace

std::unique_ptr<Products> make_products(bool tf32) {
    return std::make_unique<EmulatedProducts>(tf32);
}

std::string products_version() {
    return "products of the CPU library";
}

}  // namespace tessera::cuda
