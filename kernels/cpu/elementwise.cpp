#include "kernels/cpu/elementwise.h"

#include <array>
#include <cstring>

#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"

namespace tessera::cpu {

namespace {

/// Columns that one thread takes where the rows must be visited in order: a few cache lines, so that threads do not
/// write into each other's.
constexpr std::int64_t kColumnPiece = 64;

std::size_t bytes_of(DType dtype, std::int64_t elements) {
    return static_cast<std::size_t>(size_of(dtype) * elements);
}

template <typename To, typename From>
void convert_row(To* to, const From* from, std::int64_t count) {
    for_vectors(count, [&](std::int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}

void convert_piece(Matrix to, ConstMatrix from, std::int64_t row, std::int64_t first, std::int64_t count) {
    std::byte* target = to.data + (row * to.stride + first) * size_of(to.dtype);
    const std::byte* source = from.data + (row * from.stride + first) * size_of(from.dtype);
    if (to.dtype == from.dtype) {
        std::memmove(target, source, bytes_of(to.dtype, count));
    } else if (to.dtype == DType::bf16 && from.dtype == DType::f32) {
        convert_row(reinterpret_cast<bfloat16*>(target), reinterpret_cast<const float*>(source), count);
    } else if (to.dtype == DType::f32 && from.dtype == DType::bf16) {
        convert_row(reinterpret_cast<float*>(target), reinterpret_cast<const bfloat16*>(source), count);
    } else {
        convert(to.dtype, target, from.dtype, source, count);
    }
}

// A thread owns a piece of the columns and visits all rows in order: rows that are hit often need no locks, and every
// sum has one order.
template <typename To, typename From>
void accumulate_columns(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows, int threads) {
    To* sums = to.as<To>();
    const From* addends = from.as<From>();
    parallel_for(threads, ceil_div(to.cols, kColumnPiece), from.elements(), [&](std::int64_t piece) {
        const std::int64_t first = piece * kColumnPiece;
        const std::int64_t width = std::min(kColumnPiece, to.cols - first);
        for (std::int64_t i = 0; i < from.rows; ++i) {
            To* sum = sums + rows[static_cast<std::size_t>(i)] * to.stride + first;
            const From* addend = addends + i * from.stride + first;
            for_vectors(width, [&](std::int64_t c, auto lanes) {
                store(sum + c, load(sum + c, lanes) + load(addend + c, lanes), lanes);
            });
        }
    });
}

}  // namespace

void zero(Matrix x, int threads) {
    if (x.empty()) {
        return;
    }
    const Matrix flat = x.contiguous() ? Matrix(x.data, x.dtype, 1, x.elements()) : x;
    parallel_pieces(threads, flat.rows, flat.cols, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
        std::memset(flat.data + (row * flat.stride + first) * size_of(flat.dtype), 0, bytes_of(flat.dtype, count));
    });
}

void copy(Matrix to, ConstMatrix from, int threads) {
    if (all_contiguous(to, from)) {
        to = Matrix(to.data, to.dtype, 1, to.elements());
        from = ConstMatrix(from.data, from.dtype, 1, from.elements());
    }
    parallel_pieces(threads, to.rows, to.cols, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
        convert_piece(to, from, row, first, count);
    });
}

void add(Matrix y, ConstMatrix a, ConstMatrix b, DType storage, int threads) {
    std::int64_t rows = y.rows;
    std::int64_t cols = y.cols;
    if (all_contiguous(y, a, b)) {
        cols = y.elements();
        rows = 1;
    }
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_pieces(threads, rows, cols, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
            S* sum = y.as<S>() + row * y.stride + first;
            const S* left = a.as<S>() + row * a.stride + first;
            const S* right = b.as<S>() + row * b.stride + first;
            for_vectors(count, [&](std::int64_t i, auto lanes) {
                store(sum + i, load(left + i, lanes) + load(right + i, lanes), lanes);
            });
        });
    });
}

void gather_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows, DType storage, int threads) {
    const std::int64_t count = static_cast<std::int64_t>(rows.size());
    const std::int64_t element = size_of(storage);
    parallel_for(threads, count, to.elements(), [&](std::int64_t i) {
        std::memcpy(to.data + i * to.stride * element,
                    from.data + rows[static_cast<std::size_t>(i)] * from.stride * element, bytes_of(storage, to.cols));
    });
}

void accumulate_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows, DType storage, int threads) {
    with_storage(storage, [&](auto from_type) {
        with_storage(to.dtype, [&](auto to_type) {
            accumulate_columns<decltype(to_type), decltype(from_type)>(to, from, rows, threads);
        });
    });
}

void sum_rows(Matrix y, ConstMatrix pieces, bool add, int threads) {
    auto* sum = y.as<float>();
    with_storage(pieces.dtype, [&](auto type) {
        const auto* rows = pieces.as<decltype(type)>();
        parallel_pieces(threads, 1, y.cols, [&](std::int64_t /*row*/, std::int64_t first, std::int64_t count) {
            for_vectors(count, [&](std::int64_t i, auto lanes) {
                Vec total = load(rows + first + i, lanes);
                if (add) {
                    total = load(sum + first + i, lanes) + total;
                }
                for (std::int64_t row = 1; row < pieces.rows; ++row) {
                    total = total + load(rows + row * pieces.stride + first + i, lanes);
                }
                store(sum + first + i, total, lanes);
            });
        });
    });
}

void bias_backward(Matrix db, ConstMatrix dy, DType storage, int threads) {
    // Rows are summed in runs, and the sums of the runs: the error grows with the length of a run and their number.
    constexpr std::int64_t kRun = 128;
    auto* sums = db.as<float>();
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        const auto* gradient = dy.as<S>();
        parallel_for(threads, ceil_div(dy.cols, kColumnPiece), dy.elements(), [&](std::int64_t piece) {
            const std::int64_t first = piece * kColumnPiece;
            const std::int64_t width = std::min(kColumnPiece, dy.cols - first);
            std::array<float, kColumnPiece> total{};
            for (std::int64_t begin = 0; begin < dy.rows; begin += kRun) {
                std::array<float, kColumnPiece> run{};
                for (std::int64_t row = begin; row < std::min(begin + kRun, dy.rows); ++row) {
                    const S* from = gradient + row * dy.stride + first;
                    for_vectors(width, [&](std::int64_t c, auto lanes) {
                        store(run.data() + c, load(run.data() + c, lanes) + load(from + c, lanes), lanes);
                    });
                }
                for_vectors(width, [&](std::int64_t c, auto lanes) {
                    store(total.data() + c, load(total.data() + c, lanes) + load(run.data() + c, lanes), lanes);
                });
            }
            for_vectors(width, [&](std::int64_t c, auto lanes) {
                store(sums + first + c, load(sums + first + c, lanes) + load(total.data() + c, lanes), lanes);
            });
        });
    });
}

double squared_norm(ConstMatrix x, int threads) {
    // 64 chunks whose borders depend on the number of elements only, and in each 16 interleaved sums.
    constexpr std::int64_t kChunks = 64;
    constexpr std::int64_t kSums = 16;
    const std::int64_t count = x.elements();
    const std::int64_t chunk = round_up(ceil_div(count, kChunks), kSums);
    const auto* values = x.as<float>();
    std::array<double, kChunks> chunk_sums{};
    parallel_for(threads, kChunks, count, [&](std::int64_t c) {
        std::array<double, kSums> sums{};
        const auto add = [&](std::int64_t j, float value) {
            sums[static_cast<std::size_t>(j)] += static_cast<double>(value) * static_cast<double>(value);
        };
        const std::int64_t end = std::min((c + 1) * chunk, count);
        std::int64_t i = c * chunk;
        for (; i + kSums <= end; i += kSums) {
            for (std::int64_t j = 0; j < kSums; ++j) {
                add(j, values[i + j]);
            }
        }
        for (std::int64_t j = 0; i + j < end; ++j) {
            add(j, values[i + j]);
        }
        double total = 0;
        for (const double sum : sums) {
            total += sum;
        }
        chunk_sums[static_cast<std::size_t>(c)] = total;
    });
    double total = 0;
    for (const double sum : chunk_sums) {
        total += sum;
    }
    return total;
}

}  // namespace tessera::cpu
