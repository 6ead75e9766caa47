#include <atomic>
#include <thread>

#include "kernels/cpu/flash_attention.h"
#include "kernels/cpu/flash_attention_sizes.h"
#include "kernels/cpu/flash_attention_tiles.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

namespace {

/// A range of kSquare-sized squares.
struct Squares {
    std::int64_t begin;
    std::int64_t end;
};

template <typename S>
struct Backward {
    const AttentionShape& shape;
    std::int64_t group;
    S* dq;
    S* dk;
    S* dv;
    const S* dout;
    const S* q;
    const S* k;
    const S* v;
    const float* lse;
    const float* delta;  // [T, heads]: sum over the head of dout * out
    float* dq_sums;      // [T, heads * head_dim]: where S is float, dq itself
    std::int64_t dq_stride;
    std::int64_t dk_stride;
    std::int64_t dv_stride;
    std::int64_t dout_stride;
    std::int64_t q_stride;
    std::int64_t k_stride;
    std::int64_t v_stride;
    std::int64_t lse_stride;
    std::int64_t dq_sums_stride;
    std::span<const Tile> tiles;
    std::int32_t* contributions;  // [tile of queries, key-value head]: to dq so far
};

/// What one task computes: dk and dv of a tile of keys, and its contributions to dq of all queries that see it.
/// Contributions to a query are added in the order of the keys: a task waits for its turn. Tasks are begun in that
/// order, so the task that is waited for has always begun.
template <typename S>
class BackwardTask {
  public:
    BackwardTask(const Backward<S>& job, Scratch& scratch)
        : job_(job),
          dim_(job.shape.head_dim),
          padded_(padded_head(job.shape.head_dim)),
          buffers_(scratch, job.shape.head_dim) {}

    void run(std::int64_t tile_number, std::int64_t kv_head) {
        const Tile& keys = job_.tiles[static_cast<std::size_t>(tile_number)];
        const std::int64_t count = keys.end - keys.begin;
        load_rows(buffers_.k, padded_, job_.k + keys.begin * job_.k_stride + kv_head * dim_, job_.k_stride, count,
                  dim_);
        load_rows(buffers_.v, padded_, job_.v + keys.begin * job_.v_stride + kv_head * dim_, job_.v_stride, count,
                  dim_);
        transpose(buffers_.k_transposed, kTile, buffers_.k, padded_, count, dim_);
        transpose(buffers_.v_transposed, kTile, buffers_.v, padded_, count, dim_);
        std::fill_n(buffers_.dk, kTile * padded_, 0.0F);
        std::fill_n(buffers_.dv, kTile * padded_, 0.0F);
        const std::int64_t window = job_.shape.window;
        for (std::size_t n = static_cast<std::size_t>(tile_number); n < job_.tiles.size(); ++n) {
            const Tile& queries = job_.tiles[n];
            if (queries.segment_begin != keys.segment_begin ||
                (window > 0 && queries.begin - (keys.end - 1) >= window)) {
                break;
            }
            for (std::int64_t g = 0; g < job_.group; ++g) {
                const std::int64_t head = kv_head * job_.group + g;
                differentiate(queries, head, keys);
                const std::int64_t before = contributors_before(queries, keys);
                std::int32_t& turn = job_.contributions[static_cast<std::int64_t>(n) * job_.shape.kv_heads + kv_head];
                contribute(queries, head, before == 0, keys.begin == queries.begin,
                           static_cast<std::int32_t>(before * job_.group + g), turn);
            }
        }
        store_rows(job_.dk, job_.dk_stride, buffers_.dk, keys, kv_head);
        store_rows(job_.dv, job_.dv_stride, buffers_.dv, keys, kv_head);
    }

  private:
    /// Tiles of keys before `keys` that the queries see.
    [[nodiscard]] std::int64_t contributors_before(const Tile& queries, const Tile& keys) const {
        const std::int64_t window = job_.shape.window;
        const std::int64_t first =
            window == 0 ? 0 : std::max<std::int64_t>(0, queries.begin - queries.segment_begin - window + 1) / kTile;
        return (keys.begin - keys.segment_begin) / kTile - first;
    }

    /// Of a row of squares of queries, the squares of keys that it sees; `distance` is between the tiles' beginnings.
    [[nodiscard]] Squares keys_of(std::int64_t query_square, std::int64_t distance, std::int64_t keys) const {
        const std::int64_t first_query = distance + query_square * kSquare;
        const std::int64_t window = job_.shape.window;
        return {window == 0 ? 0 : std::max<std::int64_t>(0, first_query - window + 1) / kSquare,
                std::min(ceil_div(keys, kSquare), first_query / kSquare + 1)};
    }

    /// Of a column of squares of keys, the squares of queries that see it: the same squares as keys_of says.
    [[nodiscard]] Squares queries_of(std::int64_t key_square, std::int64_t distance, std::int64_t queries) const {
        const std::int64_t window = job_.shape.window;
        const std::int64_t all = ceil_div(queries, kSquare);
        const std::int64_t begin = std::max<std::int64_t>(0, key_square - distance / kSquare);
        const std::int64_t beyond = window + kSquare - 1 + key_square * kSquare - distance;
        return {begin, window == 0 ? all : std::min(all, ceil_div(std::max<std::int64_t>(0, beyond), kSquare))};
    }

    /// dk, dv += and dq = what a tile of queries of one head brings.
    void differentiate(const Tile& queries, std::int64_t head, const Tile& keys) {
        const std::int64_t rows = queries.end - queries.begin;
        const std::int64_t cols = keys.end - keys.begin;
        const std::int64_t distance = queries.begin - keys.begin;
        const std::int64_t window = job_.shape.window;
        load_rows(buffers_.q, padded_, job_.q + queries.begin * job_.q_stride + head * dim_, job_.q_stride, rows, dim_);
        load_rows(buffers_.dout, padded_, job_.dout + queries.begin * job_.dout_stride + head * dim_, job_.dout_stride,
                  rows, dim_);
        const bool all_visible = distance >= cols - 1 && (window == 0 || distance + rows - 1 < window);
        if (all_visible) {
            query_rows(0, rows, 0, cols, queries.begin, head, distance, false);
            key_rows(0, cols, 0, rows);
            return;
        }
        for (std::int64_t square = 0; square * kSquare < rows; ++square) {
            const std::int64_t first = square * kSquare;
            const Squares visible = keys_of(square, distance, cols);
            query_rows(first, std::min(rows, first + kSquare), visible.begin * kSquare,
                       std::min(cols, visible.end * kSquare), queries.begin, head, distance, true);
        }
        for (std::int64_t square = 0; square * kSquare < cols; ++square) {
            const std::int64_t first = square * kSquare;
            const Squares visible = queries_of(square, distance, rows);
            key_rows(first, std::min(cols, first + kSquare), visible.begin * kSquare,
                     std::min(rows, visible.end * kSquare));
        }
    }

    /// Probabilities, gradients of scores, and dq of the queries [row, row_end) against the keys [col, col_end).
    void query_rows(std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t col_end,
                    std::int64_t first_position, std::int64_t head, std::int64_t distance, bool masked) {
        const std::int64_t rows = row_end - row;
        const std::int64_t cols = round_up(std::max<std::int64_t>(0, col_end - col), kLanes);
        float* p = buffers_.p + row * kTile + col;
        float* ds = buffers_.ds + row * kTile + col;
        tile_product<false, false>(p, kTile, rows, cols, dim_, buffers_.q + row * padded_, padded_,
                                   buffers_.k_transposed + col, kTile);
        tile_product<false, false>(ds, kTile, rows, cols, dim_, buffers_.dout + row * padded_, padded_,
                                   buffers_.v_transposed + col, kTile);
        const Vec scale = broadcast(static_cast<float>(job_.shape.scale));
        const Vec factor = broadcast(static_cast<float>(job_.shape.scale * kLog2E));
        const std::int32_t window = mask_window(job_.shape.window);
        const Vec zero{};
        for (std::int64_t i = 0; i < rows; ++i) {
            const std::int64_t position = first_position + row + i;
            const double lse = static_cast<double>(job_.lse[position * job_.lse_stride + head]);
            const Vec largest = broadcast(static_cast<float>(-lse * kLog2E));
            const Vec delta = broadcast(job_.delta[position * job_.shape.heads + head]);
            for (std::int64_t j = 0; j < cols; j += kLanes) {
                Vec probability = exp2(fma(load(p + i * kTile + j), factor, largest));
                if (masked) {
                    const IntVec distances = static_cast<std::int32_t>(distance + row + i - col - j) - lane_numbers();
                    probability = select_visible(distances, window, probability, zero);
                }
                const Vec gradient = (load(ds + i * kTile + j) - delta) * probability * scale;
                store(p + i * kTile + j, probability);
                store(ds + i * kTile + j, gradient);
            }
        }
        tile_product<false, false>(buffers_.dq + row * padded_, padded_, rows, padded_,
                                   std::max<std::int64_t>(0, col_end - col), ds, kTile, buffers_.k + col * padded_,
                                   padded_);
    }

    /// dk and dv of the keys [col, col_end) += what the queries [row, row_end) bring.
    void key_rows(std::int64_t col, std::int64_t col_end, std::int64_t row, std::int64_t row_end) {
        if (row >= row_end) {
            return;
        }
        tile_product<true, true>(buffers_.dv + col * padded_, padded_, col_end - col, padded_, row_end - row,
                                 buffers_.p + row * kTile + col, kTile, buffers_.dout + row * padded_, padded_);
        tile_product<true, true>(buffers_.dk + col * padded_, padded_, col_end - col, padded_, row_end - row,
                                 buffers_.ds + row * kTile + col, kTile, buffers_.q + row * padded_, padded_);
    }

    /// Adds buffers_.dq to the queries' dq when `turn` is reached.
    void contribute(const Tile& queries, std::int64_t head, bool first, bool last, std::int32_t my_turn,
                    std::int32_t& turn) {
        const std::atomic_ref<std::int32_t> now(turn);
        for (int spins = 0; now.load(std::memory_order_acquire) != my_turn; ++spins) {
            if (spins > 64) {
                std::this_thread::yield();
            }
        }
        for (std::int64_t r = 0; r < queries.end - queries.begin; ++r) {
            float* sums = job_.dq_sums + (queries.begin + r) * job_.dq_sums_stride + head * dim_;
            const float* addends = buffers_.dq + r * padded_;
            S* result = job_.dq + (queries.begin + r) * job_.dq_stride + head * dim_;
            for_vectors(dim_, [&](std::int64_t i, auto lanes) {
                const Vec sum = first ? load(addends + i) : load(sums + i, lanes) + load(addends + i);
                store(sums + i, sum, lanes);
                if constexpr (!std::is_same_v<S, float>) {
                    if (last) {
                        store(result + i, sum, lanes);
                    }
                }
            });
        }
        now.store(my_turn + 1, std::memory_order_release);
    }

    void store_rows(S* to, std::int64_t stride, const float* from, const Tile& tile, std::int64_t kv_head) {
        for (std::int64_t r = 0; r < tile.end - tile.begin; ++r) {
            S* row = to + (tile.begin + r) * stride + kv_head * dim_;
            for_vectors(dim_, [&](std::int64_t i, auto lanes) { store(row + i, load(from + r * padded_ + i), lanes); });
        }
    }

    const Backward<S>& job_;
    std::int64_t dim_;
    std::int64_t padded_;
    BackwardBuffers buffers_;
};

/// delta[t, h] = sum over the head of dout * out.
template <typename S>
void sum_products(float* delta, ConstMatrix dout, ConstMatrix out, std::int64_t heads, int threads) {
    const std::int64_t dim = out.cols / heads;
    parallel_for(threads, out.rows, out.elements(), [&](std::int64_t t) {
        for (std::int64_t h = 0; h < heads; ++h) {
            const S* a = dout.as<S>() + t * dout.stride + h * dim;
            const S* b = out.as<S>() + t * out.stride + h * dim;
            Vec sum{};
            for_vectors(dim,
                        [&](std::int64_t i, auto lanes) { sum = fma(load(a + i, lanes), load(b + i, lanes), sum); });
            delta[t * heads + h] = static_cast<float>(sum_lanes(sum));
        }
    });
}

}  // namespace

void flash_attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                              ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape,
                              DType storage, std::span<std::byte> workspace, int threads) {
    const std::int64_t tokens = q.rows;
    Scratch shared(workspace);
    const std::span<const Tile> tiles = cut_segments(shared.take<Tile>(tokens), shape.starts, kTile);
    const std::int64_t tasks = static_cast<std::int64_t>(tiles.size()) * shape.kv_heads;
    auto* contributions = shared.take<std::int32_t>(tasks);
    std::fill_n(contributions, tasks, 0);
    auto* delta = shared.take<float>(tokens * shape.heads);
    const bool direct = storage == DType::f32;
    float* dq_sums = direct ? dq.as<float>() : shared.take<float>(dq.elements());
    const std::int64_t slice = BackwardBuffers::bytes(shape.head_dim);
    std::byte* slices = shared.take<std::byte>(slice * threads);

    std::atomic<std::int64_t> next = 0;
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        sum_products<S>(delta, dout, out, shape.heads, threads);
        const Backward<S> job{shape,
                              shape.heads / shape.kv_heads,
                              dq.as<S>(),
                              dk.as<S>(),
                              dv.as<S>(),
                              dout.as<S>(),
                              q.as<S>(),
                              k.as<S>(),
                              v.as<S>(),
                              lse.as<float>(),
                              delta,
                              dq_sums,
                              dq.stride,
                              dk.stride,
                              dv.stride,
                              dout.stride,
                              q.stride,
                              k.stride,
                              v.stride,
                              lse.stride,
                              direct ? dq.stride : dq.cols,
                              tiles,
                              contributions};
#pragma omp parallel num_threads(threads)
        {
            Scratch own({slices + omp_get_thread_num() * slice, static_cast<std::size_t>(slice)});
            BackwardTask<S> task(job, own);
            for (std::int64_t i = next.fetch_add(1); i < tasks; i = next.fetch_add(1)) {
                task.run(i / shape.kv_heads, i % shape.kv_heads);
            }
        }
    });
}

std::int64_t flash_attention_workspace(const OpsLimits& limits, DType storage, int threads) {
    const std::int64_t query_columns = checked_mul(limits.heads, limits.head_dim, "heads");
    const std::int64_t lists = workspace_of<Tile>(limits.tokens);
    const std::int64_t forward = ForwardBuffers::bytes(limits.head_dim) * threads;
    std::int64_t backward = BackwardBuffers::bytes(limits.head_dim) * threads;
    backward += workspace_of<std::int32_t>(checked_mul(limits.tokens, limits.kv_heads, "tokens"));
    backward += workspace_of<float>(checked_mul(limits.tokens, limits.heads, "tokens"));
    if (storage != DType::f32) {
        backward += workspace_of<float>(checked_mul(limits.tokens, query_columns, "tokens"));
    }
    return lists + std::max(forward, backward);
}

}  // namespace tessera::cpu
