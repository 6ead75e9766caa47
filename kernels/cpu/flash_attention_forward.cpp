#include <atomic>
#include <cmath>

#include "kernels/cpu/flash_attention.h"
#include "kernels/cpu/flash_attention_sizes.h"
#include "kernels/cpu/flash_attention_tiles.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

namespace {

/// Running maxima start here rather than at minus infinity, so that the difference of two of them is a number.
constexpr float kLowest = -1e30F;

/// What one task computes: the queries of a tile of positions for some heads that share a key-value head. Queries
/// stand in panels of kPanel positions of one head; scores of a panel are [key, query], so that maxima and sums over
/// keys need no operations across lanes.
template <typename S>
class ForwardTask {
  public:
    ForwardTask(const AttentionShape& shape, Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                Scratch& scratch)
        : shape_(shape),
          dim_(shape.head_dim),
          padded_(padded_head(shape.head_dim)),
          out_(out.as<S>()),
          lse_(lse.as<float>()),
          q_(q.as<S>()),
          k_(k.as<S>()),
          v_(v.as<S>()),
          out_stride_(out.stride),
          lse_stride_(lse.stride),
          q_stride_(q.stride),
          k_stride_(k.stride),
          v_stride_(v.stride),
          buffers_(scratch, shape.head_dim) {}

    /// Heads [first_head, first_head + heads), all reading `kv_head`.
    void run(const Tile& tile, std::int64_t kv_head, std::int64_t first_head, std::int64_t heads) {
        std::int64_t panels = 0;
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t begin = tile.begin; begin < tile.end; begin += kPanel) {
                panels_[panels] = {first_head + h, begin, std::min(begin + kPanel, tile.end), true};
                load_queries(panels, panels_[panels]);
                ++panels;
            }
        }
        const std::int64_t first_key =
            shape_.window == 0 ? tile.segment_begin : std::max(tile.segment_begin, tile.begin - shape_.window + 1);
        for (std::int64_t key = first_key; key < tile.end; key += kForwardKeys) {
            const std::int64_t keys = std::min(kForwardKeys, tile.end - key);
            load_rows(buffers_.k, padded_, k_ + key * k_stride_ + kv_head * dim_, k_stride_, keys, dim_);
            load_rows(buffers_.v, padded_, v_ + key * v_stride_ + kv_head * dim_, v_stride_, keys, dim_);
            for (std::int64_t p = 0; p < panels; ++p) {
                visit(p, panels_[p], key, key + keys);
            }
        }
        for (std::int64_t p = 0; p < panels; ++p) {
            finish(p, panels_[p]);
        }
    }

  private:
    struct Panel {
        std::int64_t head;
        std::int64_t begin;
        std::int64_t end;
        bool fresh;  // has no output yet
    };

    /// Queries of a panel, transposed and scaled such that scores are logarithms to base 2.
    void load_queries(std::int64_t number, const Panel& panel) {
        const std::int64_t count = panel.end - panel.begin;
        float* rows = output(number);  // not in use yet
        load_rows(rows, padded_, q_ + panel.begin * q_stride_ + panel.head * dim_, q_stride_, count, dim_);
        const Vec factor = broadcast(static_cast<float>(shape_.scale * kLog2E));
        for (std::int64_t i = 0; i < count * padded_; i += kLanes) {
            store(rows + i, load(rows + i) * factor);
        }
        transpose(queries(number), kPanel, rows, padded_, count, dim_);
        std::fill_n(buffers_.largest + number * kPanel, kPanel, kLowest);
        std::fill_n(buffers_.sum + number * kPanel, kPanel, 0.0F);
    }

    /// Adds the keys [key_begin, key_end), which are loaded, to a panel.
    void visit(std::int64_t number, Panel& panel, std::int64_t key_begin, std::int64_t key_end) {
        const std::int64_t window = shape_.window;
        const std::int64_t first = window == 0 ? key_begin : std::max(key_begin, panel.begin - window + 1);
        const std::int64_t last = std::min(key_end, panel.end);
        if (first >= last) {
            return;
        }
        const std::int64_t keys = last - first;
        const std::int64_t offset = (first - key_begin) * padded_;
        tile_product<false, false>(buffers_.scores, kPanel, keys, kPanel, dim_, buffers_.k + offset, padded_,
                                   queries(number), kPanel);
        if (last - 1 > panel.begin || (window > 0 && panel.end - 1 - first >= window)) {
            hide(panel.begin - first, keys);
        }
        alignas(kAlignment) float factors[kPanel];
        soften(number, keys, factors);
        const std::int64_t rows = panel.end - panel.begin;
        if (panel.fresh) {
            panel.fresh = false;
            tile_product<true, false>(output(number), padded_, rows, padded_, keys, buffers_.scores, kPanel,
                                      buffers_.v + offset, padded_);
            return;
        }
        for (std::int64_t r = 0; r < rows; ++r) {
            if (factors[r] != 1.0F) {
                const Vec factor = broadcast(factors[r]);
                for (std::int64_t i = 0; i < padded_; i += kLanes) {
                    float* element = output(number) + r * padded_ + i;
                    store(element, load(element) * factor);
                }
            }
        }
        tile_product<true, true>(output(number), padded_, rows, padded_, keys, buffers_.scores, kPanel,
                                 buffers_.v + offset, padded_);
    }

    /// `distance`: of the first query from the first key.
    void hide(std::int64_t distance, std::int64_t keys) {
        const Vec hidden = broadcast(-__builtin_inff());
        const std::int32_t window = mask_window(shape_.window);
        for (std::int64_t j = 0; j < keys; ++j) {
            for (int v = 0; v < kPanelVecs; ++v) {
                float* scores = buffers_.scores + j * kPanel + v * kLanes;
                const IntVec distances = lane_numbers() + static_cast<std::int32_t>(distance + v * kLanes - j);
                store(scores, select_visible(distances, window, load(scores), hidden));
            }
        }
    }

    /// Turns scores into 2^(score - maximum), updates maxima and sums, and says by what the earlier output shrinks.
    void soften(std::int64_t number, std::int64_t keys, float* factors) {
        float* largest = buffers_.largest + number * kPanel;
        float* sum = buffers_.sum + number * kPanel;
        Vec top[kPanelVecs];
        for (int v = 0; v < kPanelVecs; ++v) {
            top[v] = load(largest + v * kLanes);
        }
        for (std::int64_t j = 0; j < keys; ++j) {
            for (int v = 0; v < kPanelVecs; ++v) {
                top[v] = max(top[v], load(buffers_.scores + j * kPanel + v * kLanes));
            }
        }
        Vec total[kPanelVecs];
        for (int v = 0; v < kPanelVecs; ++v) {
            const Vec factor = exp2(load(largest + v * kLanes) - top[v]);
            store(factors + v * kLanes, factor);
            store(largest + v * kLanes, top[v]);
            total[v] = load(sum + v * kLanes) * factor;
        }
        for (std::int64_t j = 0; j < keys; ++j) {
            for (int v = 0; v < kPanelVecs; ++v) {
                float* scores = buffers_.scores + j * kPanel + v * kLanes;
                const Vec probability = exp2(load(scores) - top[v]);
                total[v] = total[v] + probability;
                store(scores, probability);
            }
        }
        for (int v = 0; v < kPanelVecs; ++v) {
            store(sum + v * kLanes, total[v]);
        }
    }

    void finish(std::int64_t number, const Panel& panel) {
        for (std::int64_t r = 0; r < panel.end - panel.begin; ++r) {
            const float sum = buffers_.sum[number * kPanel + r];
            const float largest = buffers_.largest[number * kPanel + r];
            const Vec inverse = broadcast(1.0F / sum);
            S* to = out_ + (panel.begin + r) * out_stride_ + panel.head * dim_;
            const float* from = output(number) + r * padded_;
            for_vectors(dim_, [&](std::int64_t i, auto lanes) { store(to + i, load(from + i) * inverse, lanes); });
            lse_[(panel.begin + r) * lse_stride_ + panel.head] =
                static_cast<float>(static_cast<double>(largest) * kLn2 + static_cast<double>(std::log(sum)));
        }
    }

    float* queries(std::int64_t number) { return buffers_.queries + number * kPanel * dim_; }
    float* output(std::int64_t number) { return buffers_.output + number * kPanel * padded_; }

    const AttentionShape& shape_;
    std::int64_t dim_;
    std::int64_t padded_;
    S* out_;
    float* lse_;
    const S* q_;
    const S* k_;
    const S* v_;
    std::int64_t out_stride_;
    std::int64_t lse_stride_;
    std::int64_t q_stride_;
    std::int64_t k_stride_;
    std::int64_t v_stride_;
    ForwardBuffers buffers_;
    Panel panels_[kPanels];
};

}  // namespace

void flash_attention_forward(Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                             const AttentionShape& shape, DType storage, std::span<std::byte> workspace, int threads) {
    const std::int64_t tokens = q.rows;
    // Heads that share keys and values share their tiles too; the fewer there are, the more positions a tile has.
    const std::int64_t group = shape.heads / shape.kv_heads;
    const std::int64_t heads_per_task = std::min(group, kPanels);
    const std::int64_t tasks_per_group = ceil_div(group, heads_per_task);
    const std::int64_t tasks_per_tile = shape.kv_heads * tasks_per_group;
    const std::int64_t positions = kPanels / heads_per_task * kPanel;

    Scratch shared(workspace);
    const std::span<const Tile> tiles = cut_segments(shared.take<Tile>(tokens), shape.starts, positions);
    const std::int64_t slice = ForwardBuffers::bytes(shape.head_dim);
    std::byte* slices = shared.take<std::byte>(slice * threads);
    const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * tasks_per_tile;
    std::atomic<std::int64_t> next = 0;
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
#pragma omp parallel num_threads(threads)
        {
            Scratch own({slices + omp_get_thread_num() * slice, static_cast<std::size_t>(slice)});
            ForwardTask<S> task(shape, out, lse, q, k, v, own);
            // The last tiles of a segment, which see the most keys, come first: the end of the work is evenly shared.
            for (std::int64_t i = tasks - 1 - next.fetch_add(1); i >= 0; i = tasks - 1 - next.fetch_add(1)) {
                const Tile& tile = tiles[static_cast<std::size_t>(i / tasks_per_tile)];
                const std::int64_t kv_head = i % tasks_per_tile / tasks_per_group;
                const std::int64_t first = i % tasks_per_group * heads_per_task;
                task.run(tile, kv_head, kv_head * group + first, std::min(heads_per_task, group - first));
            }
        }
    });
}

}  // namespace tessera::cpu
