#include "kernels/cuda/elementwise.h"

#include <type_traits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda {

namespace {

template <typename To, typename From>
struct Convert {
    static constexpr int kGroup = 8;
    Rows<To> to;
    Rows<const From> from;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t row, std::int64_t col) const {
        float values[N];
        load_floats(values, from[row] + col);
        store_floats(to[row] + col, values);
    }
};

/// Word has the size of an element: its bits are moved as they are.
template <typename Word>
struct Gather {
    static constexpr int kGroup = 16 / static_cast<int>(sizeof(Word));
    Rows<Word> to;
    Rows<const Word> from;
    const std::int32_t* rows;  // or null: to[i] = from[i]

    template <int N>
    SIMT_DEVICE void visit(std::int64_t row, std::int64_t col) const {
        Word values[N];
        load_elements(values, from[rows == nullptr ? row : rows[row]] + col);
        store_elements(to[row] + col, values);
    }
};

template <typename S>
struct Add {
    static constexpr int kGroup = 8;
    Rows<S> y;
    Rows<const S> a;
    Rows<const S> b;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t row, std::int64_t col) const {
        float left[N];
        float right[N];
        load_floats(left, a[row] + col);
        load_floats(right, b[row] + col);
        for (int i = 0; i < N; ++i) {
            left[i] += right[i];
        }
        store_floats(y[row] + col, left);
    }
};

template <typename S>
struct Scale {
    static constexpr int kGroup = 8;
    Rows<S> x;
    float factor;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t row, std::int64_t col) const {
        float values[N];
        load_floats(values, x[row] + col);
        for (float& value : values) {
            value *= factor;
        }
        store_floats(x[row] + col, values);
    }
};

/// The thread at the first place of a row in the sorted order adds all that goes to that row; the others have nothing
/// to do. Four addends are under way at a time: a frequent row is a long chain.
template <typename To, typename From>
struct ScatterAdd {
    static constexpr int kGroup = 8;
    static constexpr int kAhead = 4;
    Rows<To> to;
    Rows<const From> from;
    const std::int32_t* order;
    const std::int32_t* sorted_rows;
    std::int64_t count;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t place, std::int64_t col) const {
        const std::int32_t row = sorted_rows[place];
        if (place > 0 && sorted_rows[place - 1] == row) {
            return;
        }
        float sum[N];
        load_floats(sum, to[row] + col);
        for (std::int64_t first = place; first < count && sorted_rows[first] == row; first += kAhead) {
            float addends[kAhead][N];
            bool valid[kAhead];
            for (int j = 0; j < kAhead; ++j) {
                valid[j] = first + j < count && sorted_rows[first + j] == row;
                if (valid[j]) {
                    load_floats(addends[j], from[order[first + j]] + col);
                }
            }
            for (int j = 0; j < kAhead; ++j) {
                for (int i = 0; i < N; ++i) {
                    sum[i] = valid[j] ? round_to<To>(sum[i] + addends[j][i]) : sum[i];
                }
            }
        }
        store_floats(to[row] + col, sum);
    }
};

template <typename Word>
void move_rows(simt::Stream stream, Matrix to, ConstMatrix from, const std::int32_t* rows) {
    const Gather<Word> body{
        {reinterpret_cast<Word*>(to.data), to.stride}, {reinterpret_cast<const Word*>(from.data), from.stride}, rows};
    for_elements(stream, to.rows, to.cols, all_aligned<Gather<Word>::kGroup>(to, from), body);
}

/// rows may be null: every row of `from` in turn.
void move_rows(simt::Stream stream, Matrix to, ConstMatrix from, const std::int32_t* rows) {
    if (size_of(to.dtype) == sizeof(std::uint32_t)) {
        move_rows<std::uint32_t>(stream, to, from, rows);
    } else if (size_of(to.dtype) == sizeof(std::uint16_t)) {
        move_rows<std::uint16_t>(stream, to, from, rows);
    } else {
        fail(ExitCode::internal, "no kernel moves {}", name_of(to.dtype));
    }
}

/// The matrix as one row where `flat`.
template <typename Byte>
BasicMatrix<Byte> as_row(BasicMatrix<Byte> m, bool flat) {
    return flat ? BasicMatrix<Byte>(m.data, m.dtype, 1, m.elements()) : m;
}

}  // namespace

void zero(simt::Stream stream, Matrix x) {
    if (x.empty()) {
        return;
    }
    const std::int64_t size = size_of(x.dtype);
    if (x.contiguous()) {
        simt::zero_async(x.data, x.elements() * size, stream);
    } else {
        simt::zero_rows_async(x.data, x.stride * size, x.cols * size, x.rows, stream);
    }
}

void copy(simt::Stream stream, Matrix to, ConstMatrix from) {
    const bool flat = all_contiguous(to, from);
    to = as_row(to, flat);
    from = as_row(from, flat);
    if (to.dtype == from.dtype) {
        return move_rows(stream, to, from, nullptr);
    }
    with_storage(to.dtype, [&](auto to_type) {
        with_storage(from.dtype, [&](auto from_type) {
            using To = decltype(to_type);
            using From = decltype(from_type);
            if constexpr (!std::is_same_v<To, From>) {
                const Convert<To, From> body{rows_of<To>(to), rows_of<From>(from)};
                for_elements(stream, to.rows, to.cols, all_aligned<8>(to, from), body);
            }
        });
    });
}

void add(simt::Stream stream, Matrix y, ConstMatrix a, ConstMatrix b) {
    const bool flat = all_contiguous(y, a, b);
    y = as_row(y, flat);
    a = as_row(a, flat);
    b = as_row(b, flat);
    with_storage(y.dtype, [&](auto type) {
        using S = decltype(type);
        const Add<S> body{rows_of<S>(y), rows_of<S>(a), rows_of<S>(b)};
        for_elements(stream, y.rows, y.cols, all_aligned<8>(y, a, b), body);
    });
}

void scale(simt::Stream stream, Matrix x, double factor) {
    x = as_row(x, x.contiguous());
    with_storage(x.dtype, [&](auto type) {
        using S = decltype(type);
        const Scale<S> body{rows_of<S>(x), static_cast<float>(factor)};
        for_elements(stream, x.rows, x.cols, aligned<8>(x), body);
    });
}

void gather_rows(simt::Stream stream, Matrix to, ConstMatrix from, const std::int32_t* rows) {
    move_rows(stream, to, from, rows);
}

void scatter_add_rows(simt::Stream stream, Matrix to, ConstMatrix from, const std::int32_t* order,
                      const std::int32_t* sorted_rows) {
    const auto run = [&](auto to_type, auto from_type) {
        using To = decltype(to_type);
        using From = decltype(from_type);
        const ScatterAdd<To, From> body{rows_of<To>(to), rows_of<From>(from), order, sorted_rows, from.rows};
        for_elements(stream, from.rows, from.cols, all_aligned<8>(to, from), body);
    };
    with_storage(from.dtype, [&](auto type) {
        if (to.dtype == DType::f32) {
            run(float{}, type);
        } else {
            run(type, type);
        }
    });
}

}  // namespace tessera::cuda
