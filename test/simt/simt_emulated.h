// The words of simt.h for the host compiler. Each is a call into the emulator, which is compiled without
// instrumentation: what a word does to memory is checked there, and the kernel's own accesses are seen by the callbacks
// of -fsanitize=thread where a kernel is compiled with it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <typeinfo>

#include "test/simt/place.h"

// Always inlined, as by nvcc. That also lets -fsanitize=thread see where results go: GCC does not instrument the store
// of a structure that a call returns.
#define SIMT_DEVICE inline __attribute__((always_inline))
// The address of the constant tells one array from another; each instance of a template has its own, as in CUDA.
#define SIMT_SHARED(T, name, count)           \
    static const char simt_tag_of_##name = 0; \
    T(&name)                                  \
    [count] = *static_cast<T(*)[count]>(      \
        ::tessera::simt::emulated::shared_array(&simt_tag_of_##name, #name, sizeof(T) * (count), alignof(T)))

namespace tessera::simt {

namespace emulated {

enum class Word : std::uint8_t {
    none,
    sync_block,
    sync_named,
    sync_warp,
    shuffle,
    shuffle_xor,
    shuffle_down,
    any,
    all,
    ballot,
    load_matrix_x4,
    load_matrix_x4_transposed,
    mma_bfloat16,
    mma_float16,
};

struct ShuffleOperands {
    std::uint64_t value = 0;
    int argument = 0;  // lane, bits or lanes
    std::uint64_t result = 0;
};
struct VoteOperands {
    bool predicate = false;
    unsigned result = 0;
};
struct MatrixLoadOperands {
    const void* row = nullptr;
    std::uint32_t* r = nullptr;
};
struct MmaOperands {
    float* d = nullptr;
    const std::uint32_t* a = nullptr;
    const std::uint32_t* b = nullptr;
};

/// Returns when all lanes of the mask came with the same word, which then was done for all of them.
void meet_warp(Word word, unsigned mask, void* operands, const Place& place);
void meet_named(int id, int threads, const Place& place);
void wait_copies(int groups);
[[nodiscard]] void* shared_array(const void* tag, const char* name, std::size_t bytes, std::size_t alignment);
/// Moves 4, 8 or 16 aligned bytes between the kernel's memory and the thread's own.
void load(void* result, const void* from, int bytes, const Place& place);
void store(void* to, const void* value, int bytes, const Place& place);

struct KernelCall {
    const std::type_info* type;
    int threads;
    const void* parameters;  // copied by enqueue()
    std::int64_t parameter_bytes;
    void (*body)(const void* parameters);
    bool checked;  // compiled with the callbacks
    Grid grid;
    std::int64_t dynamic_shared_bytes;
};
void enqueue(Stream stream, const KernelCall& call);

template <typename T>
[[nodiscard]] T shuffle(Word word, T value, int argument, unsigned mask, const Place& place) {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    ShuffleOperands operands{.argument = argument};
    std::memcpy(&operands.value, &value, sizeof(T));
    meet_warp(word, mask, &operands, place);
    std::memcpy(&value, &operands.result, sizeof(T));
    return value;
}

[[nodiscard]] inline unsigned vote(Word word, bool predicate, unsigned mask, const Place& place) {
    VoteOperands operands{.predicate = predicate};
    meet_warp(word, mask, &operands, place);
    return operands.result;
}

}  // namespace emulated

// Constant within a thread, which is all that the compiler sees of one.
[[nodiscard, gnu::const]] int thread() noexcept;
[[nodiscard, gnu::const]] int lane() noexcept;
[[nodiscard, gnu::const]] int warp() noexcept;
[[nodiscard, gnu::const]] std::int64_t block_x() noexcept;
[[nodiscard, gnu::const]] std::int64_t block_y() noexcept;
[[nodiscard, gnu::const]] std::int64_t block_z() noexcept;
[[nodiscard, gnu::const]] std::int64_t grid_x() noexcept;
[[nodiscard, gnu::const]] std::int64_t grid_y() noexcept;
[[nodiscard, gnu::const]] std::int64_t grid_z() noexcept;

void sync_block(const Place& place = Place::current());
template <int id>
void sync_named(int threads, const Place& place = Place::current()) {
    static_assert(id >= 1 && id <= 15);
    emulated::meet_named(id, threads, place);
}
inline void sync_warp(unsigned mask = kAll, const Place& place = Place::current()) {
    emulated::meet_warp(emulated::Word::sync_warp, mask, nullptr, place);
}
template <typename T>
[[nodiscard]] T shuffle(T value, int from, unsigned mask = kAll, const Place& place = Place::current()) {
    return emulated::shuffle(emulated::Word::shuffle, value, from, mask, place);
}
template <typename T>
[[nodiscard]] T shuffle_xor(T value, int bits, unsigned mask = kAll, const Place& place = Place::current()) {
    return emulated::shuffle(emulated::Word::shuffle_xor, value, bits, mask, place);
}
template <typename T>
[[nodiscard]] T shuffle_down(T value, int lanes, unsigned mask = kAll, const Place& place = Place::current()) {
    return emulated::shuffle(emulated::Word::shuffle_down, value, lanes, mask, place);
}
[[nodiscard]] inline bool any(bool predicate, unsigned mask = kAll, const Place& place = Place::current()) {
    return emulated::vote(emulated::Word::any, predicate, mask, place) != 0;
}
[[nodiscard]] inline bool all(bool predicate, unsigned mask = kAll, const Place& place = Place::current()) {
    return emulated::vote(emulated::Word::all, predicate, mask, place) != 0;
}
[[nodiscard]] inline unsigned ballot(bool predicate, unsigned mask = kAll, const Place& place = Place::current()) {
    return emulated::vote(emulated::Word::ballot, predicate, mask, place);
}

[[nodiscard]] std::byte* dynamic_shared();
void copy_async16(void* to, const void* from, bool valid, const Place& place = Place::current());
void commit_copies();
template <int N>
void wait_copies() {
    static_assert(N >= 0);
    emulated::wait_copies(N);
}

inline void load_matrix_x4(std::uint32_t (&r)[4], const void* row, const Place& place = Place::current()) {
    emulated::MatrixLoadOperands operands{row, r};
    emulated::meet_warp(emulated::Word::load_matrix_x4, kAll, &operands, place);
}
inline void load_matrix_x4_transposed(std::uint32_t (&r)[4], const void* row, const Place& place = Place::current()) {
    emulated::MatrixLoadOperands operands{row, r};
    emulated::meet_warp(emulated::Word::load_matrix_x4_transposed, kAll, &operands, place);
}
template <typename H>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                 const Place& place = Place::current()) {
    static_assert(std::is_same_v<H, bfloat16> || std::is_same_v<H, float16>);
    emulated::MmaOperands operands{d, a, b};
    constexpr auto kWord = std::is_same_v<H, bfloat16> ? emulated::Word::mma_bfloat16 : emulated::Word::mma_float16;
    emulated::meet_warp(kWord, kAll, &operands, place);
}

template <int N, typename T>
[[nodiscard]] SIMT_DEVICE Vector<T, N> load_vector(const T* from, const Place& place = Place::current()) {
    static_assert(sizeof(T) * N == 4 || sizeof(T) * N == 8 || sizeof(T) * N == 16);
    Vector<T, N> result;
    emulated::load(&result, from, sizeof(result), place);
    return result;
}
template <typename T, int N>
void store_vector(T* to, const Vector<T, N>& value, const Place& place = Place::current()) {
    static_assert(sizeof(T) * N == 4 || sizeof(T) * N == 8 || sizeof(T) * N == 16);
    emulated::store(to, &value, sizeof(value), place);
}

inline float to_float(float x) {
    return x;
}
inline float to_float(bfloat16 x) {
    return static_cast<float>(x);
}
inline float to_float(float16 x) {
    return static_cast<float>(x);
}
template <typename T>
[[nodiscard]] SIMT_DEVICE T from_float(float x) {
    return T(x);
}
template <typename H>
[[nodiscard]] std::uint32_t pack2(float low, float high) {
    return std::uint32_t{H(low).bits} | (std::uint32_t{H(high).bits} << 16);
}

inline float exp(float x) {
    return std::exp(x);
}
inline float exp2(float x) {
    return std::exp2(x);
}
inline float exp2_approx(float x) {
    constexpr float kSmallestNormal = 0x1p-126F;
    const float result = std::exp2(std::fabs(x) < kSmallestNormal ? 0.0F : x);
    return result < kSmallestNormal ? 0.0F : result;
}
inline float log(float x) {
    return std::log(x);
}
inline float sqrt(float x) {
    return std::sqrt(x);
}
inline float rsqrt(float x) {
    return 1.0F / std::sqrt(x);
}
inline float fma(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline std::uint32_t bits_of(float x) {
    return std::bit_cast<std::uint32_t>(x);
}
inline float float_of(std::uint32_t bits) {
    return std::bit_cast<float>(bits);
}
template <typename T>
[[nodiscard]] T max(T a, T b) {
    return a < b ? b : a;
}
template <typename T>
[[nodiscard]] T min(T a, T b) {
    return b < a ? b : a;
}
inline float max(float a, float b) {
    return std::fmax(a, b);
}
inline float min(float a, float b) {
    return std::fmin(a, b);
}

template <typename Kernel>
void launch(Stream stream, Grid grid, const Kernel& kernel, std::int64_t dynamic_shared_bytes = 0) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    static_assert(sizeof(Kernel) <= 4096, "more parameters than a launch can carry");
    static_assert(Kernel::kMinBlocks >= 0);
#ifdef __SANITIZE_THREAD__
    constexpr bool kChecked = true;
#else
    constexpr bool kChecked = false;
#endif
    emulated::enqueue(stream, {&typeid(Kernel), Kernel::kThreads, &kernel, sizeof(Kernel),
                               [](const void* parameters) { (*static_cast<const Kernel*>(parameters))(); }, kChecked,
                               grid, dynamic_shared_bytes});
}

}  // namespace tessera::simt
