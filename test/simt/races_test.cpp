// Accesses to memory: kernels that must not be reported, and one for each thing that must.
#include <catch2/catch.hpp>

#include "test/simt/reports.h"

using Catch::Matchers::Contains;

namespace tessera::simt {
namespace {

template <typename Kernel>
void expect_none(const Kernel& kernel, Grid grid = {}, std::int64_t dynamic_shared_bytes = 0) {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK(report_of(kernel, grid, dynamic_shared_bytes) == "");
    }
    set_emulation({});
}

// Within a block.

template <bool barrier>
struct Neighbour : OfThreads<64> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 64);
        values[thread()] = static_cast<float>(thread());
        if constexpr (barrier) {
            sync_block();
        }
        out[thread()] = values[(thread() + 33) % 64];
    }
};

/// Sums of neighbours, again and again in place: a barrier after the writes and one after the reads.
template <bool second_barrier>
struct Diffusion : OfThreads<64> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 64);
        float value = static_cast<float>(thread());
        for (int step = 0; step < 3; ++step) {
            values[thread()] = value;
            sync_block();
            value += values[(thread() + 1) % 64];
            if constexpr (second_barrier) {
                sync_block();
            }
        }
        out[thread()] = value;
    }
};

template <bool synced>
struct WarpNeighbour : OfThreads<64> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 64);
        float sum = 0;
        for (int step = 0; step < 2; ++step) {
            values[thread()] = static_cast<float>(thread());
            if constexpr (synced) {
                sync_warp();
            } else {
                sum += static_cast<float>(ballot(true));  // brings lanes together, but orders nothing
            }
            sum += values[warp() * kWarp + (lane() + 1) % kWarp];
            if constexpr (synced) {
                sync_warp();
            }
        }
        out[thread()] = sum;
    }
};

struct HalfWarpNeighbour : OfThreads<32> {
    float* out;
    int distance;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 32);
        values[thread()] = 1.0F;
        sync_warp(lane() < 16 ? 0x0000ffffU : 0xffff0000U);
        out[thread()] = values[thread() ^ distance];
    }
};

template <bool all_write>
struct WriteWrite : OfThreads<64> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, value, 1);
        if (all_write || thread() == 0) {
            value[0] = 1.0F;
        }
        sync_block();
        out[thread()] = value[0];
    }
};

/// bf16 elements that share a word, each written by a thread of its own.
struct Halves : OfThreads<64> {
    bfloat16* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(bfloat16, values, 64);
        values[thread()] = from_float<bfloat16>(static_cast<float>(thread()));
        sync_block();
        const bfloat16 other = values[63 - thread()];
        sync_block();
        values[thread()] = other;
        out[block_x() * 64 + thread()] = values[thread()];
    }
};

/// Each thread updates its own half of a word of device memory; blocks meet in the middle of one.
struct HalvesInPlace : OfThreads<32> {
    bfloat16* x;
    std::int64_t each;
    SIMT_DEVICE void operator()() const {
        for (std::int64_t i = thread(); i < each; i += kThreads) {
            bfloat16& element = x[block_x() * each + i];
            element = from_float<bfloat16>(to_float(element) + 1);
        }
    }
};

template <bool right>
struct NamedExchange : OfThreads<96> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 96);
        values[thread()] = 1.0F;
        if (warp() < 2) {
            sync_named<1>(64);
        }
        const int from = right ? thread() : thread() + 32;  // of warp 2, which is not at the barrier
        out[thread()] = warp() == 2 ? 0.0F : values[warp() == 1 ? from : thread() + (right ? 32 : 0)];
    }
};

struct Broadcast : OfThreads<128> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, value, 1);
        for (int step = 0; step < 3; ++step) {
            if (thread() == step * 33) {
                value[0] = static_cast<float>(step);
            }
            sync_block();
            out[step * kThreads + thread()] = value[0];
            sync_block();
        }
    }
};

struct WriteAfterBroadcast : OfThreads<128> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, value, 1);
        if (thread() == 0) {
            value[0] = 1.0F;
        }
        sync_block();
        out[thread()] = value[0];
        sync_warp();
        if (thread() == 0) {
            value[0] = 2.0F;
        }
    }
};

TEST_CASE("races within a block") {
    if (!kChecked) {
        return;
    }
    const DeviceArray<float> out(1024);
    const DeviceArray<bfloat16> halves(256);
    expect_none(Neighbour<true>{{}, out.data()});
    expect_report(Neighbour<false>{{}, out.data()}, "shared memory `values`");
    expect_none(Diffusion<true>{{}, out.data()});
    expect_report(Diffusion<false>{{}, out.data()}, "races with the", "no barrier or sync_warp orders them");
    expect_none(WarpNeighbour<true>{{}, out.data()});
    expect_report(WarpNeighbour<false>{{}, out.data()}, "races with the", "no barrier or sync_warp orders them");
    expect_none(HalfWarpNeighbour{{}, out.data(), 8});
    expect_report(HalfWarpNeighbour{{}, out.data(), 16}, "shared memory `values`");
    expect_none(WriteWrite<false>{{}, out.data()});
    expect_report(WriteWrite<true>{{}, out.data()}, "write of 4 bytes", "races with the write by thread");
    expect_none(Halves{{}, halves.data()}, {.x = 3});
    expect_none(NamedExchange<true>{{}, out.data()});
    expect_report(NamedExchange<false>{{}, out.data()}, "shared memory `values`");
    expect_none(Broadcast{{}, out.data()});
    expect_report(WriteAfterBroadcast{{}, out.data()}, "shared memory `value`", "races with the");
}

// Between blocks.

struct LastBlockWins : OfThreads<32> {
    float* out;
    SIMT_DEVICE void operator()() const { out[thread()] = static_cast<float>(block_x()); }
};
struct ReadsOtherBlock : OfThreads<32> {
    float* x;
    SIMT_DEVICE void operator()() const {
        x[block_x() * 32 + thread()] = x[(block_x() * 32 + thread() + 1) % (grid_x() * 32)];
    }
};
struct AllReadOneWrites : OfThreads<32> {
    float* x;
    float* out;
    SIMT_DEVICE void operator()() const {
        if (block_x() == 2 && thread() == 0) {
            x[0] = 1.0F;
        } else {
            out[block_x() * 32 + thread()] = x[0];
        }
    }
};

TEST_CASE("races between blocks") {
    if (!kChecked) {
        return;
    }
    const DeviceArray<float> x(1024);
    const DeviceArray<float> out(1024);
    expect_report(LastBlockWins{{}, x.data()}, "races with the write by block", "nothing orders blocks", {.x = 2});
    expect_none(LastBlockWins{{}, x.data()}, {.x = 1});
    expect_report(ReadsOtherBlock{{}, x.data()}, "races with the", "", {.x = 3});
    expect_report(AllReadOneWrites{{}, x.data(), out.data()}, "races with the", "", {.x = 5});
    const DeviceArray<bfloat16> halves(99);
    expect_none(HalvesInPlace{{}, halves.data(), 33}, {.x = 3});
}

// Bounds.

struct Touch : OfThreads<32> {
    float* x;
    const float* in;
    std::int64_t at;
    bool write;
    SIMT_DEVICE void operator()() const {
        if (thread() == 7) {
            if (write) {
                x[at] = 1.0F;
            } else {
                x[0] = in[at];
            }
        }
    }
};
struct TouchShared : OfThreads<32> {
    float* out;
    int at;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, before, 5);
        SIMT_SHARED(float, values, 33);
        before[thread() % 5 == thread() ? thread() : 0] = 0.0F;
        values[thread() + at] = 1.0F;
        out[thread()] = values[thread() + at];
    }
};
struct TouchDynamic : OfThreads<32> {
    float* out;
    int at;
    SIMT_DEVICE void operator()() const {
        float* values = reinterpret_cast<float*>(dynamic_shared());
        values[thread() + at] = 1.0F;
        out[thread()] = values[thread() + at];
    }
};
struct WriteOnly : OfThreads<32> {
    float* out;
    int at;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 33);
        values[thread() + at] = 1.0F;
        out[thread()] = values[thread() + at];
    }
};
struct Uninitialised : OfThreads<32> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 33);
        if (block_x() == 0 || thread() > 0) {
            values[thread()] = 1.0F;
        }
        out[block_x() * 32 + thread()] = values[thread()];
    }
};
struct WritesParameter : OfThreads<32> {
    float value;
    SIMT_DEVICE void operator()() const { const_cast<float&>(value) = 1.0F; }
};

constexpr float kTable[] = {1, 2, 3, 4, 5, 6, 7, 8};

struct ReadsConstants : OfThreads<32> {
    float* out;
    SIMT_DEVICE void operator()() const { out[thread()] = kTable[thread() % 8]; }
};

TEST_CASE("memory that a kernel may not touch") {
    if (!kChecked) {
        return;
    }
    const DeviceArray<float> x(31);
    const DeviceArray<float> in(31);
    expect_none(Touch{{}, x.data(), in.data(), 30, false});
    expect_none(Touch{{}, x.data(), in.data(), 30, true});
    expect_report(Touch{{}, x.data(), in.data(), 31, false}, "read of 4 bytes at 0 bytes past the end of 124 bytes of",
                  "thread 7");
    expect_report(Touch{{}, x.data(), in.data(), 31, true}, "write of 4 bytes at 0 bytes past the end of 124 bytes of");
    expect_report(Touch{{}, x.data(), in.data(), -1, false}, "read of 4 bytes at 4 bytes before 124 bytes of device");

    const DeviceArray<float> out(64);
    expect_none(WriteOnly{{}, out.data(), 1});
    expect_report(WriteOnly{{}, out.data(), 2}, "0 bytes past the end of the 132 bytes of shared memory `values`");
    expect_report(WriteOnly{{}, out.data(), -1}, "out of bounds");
    expect_none(TouchDynamic{{}, out.data(), 1}, {}, 33 * 4);
    expect_report(TouchDynamic{{}, out.data(), 2}, "past the end of the 132 bytes of shared memory `dynamic_shared`",
                  "", {}, 33 * 4);
    expect_report(TouchDynamic{{}, out.data(), -1}, "4 bytes before the 132 bytes of shared memory", "", {}, 33 * 4);
    expect_report(Uninitialised{{}, out.data()}, "shared memory that nobody wrote", "", {.x = 2});

    float host = 0;
    expect_report(Touch{{}, x.data(), &host, 0, false}, "a pointer of the host?");
    expect_report(Touch{{}, &host, in.data(), 0, true}, "a pointer of the host?");
    expect_report(Touch{{}, x.data(), nullptr, 0, false}, "which is no memory of the device");
    expect_report(WritesParameter{{}, 0.0F}, "the parameters of the kernel");
    expect_none(ReadsConstants{{}, out.data()});

    const float* freed = DeviceArray<float>(5).data();
    expect_report(Touch{{}, x.data(), freed, 0, false}, "byte 0 of 20 bytes of freed device memory");
    std::byte* pinned = allocate_pinned(64);
    expect_none(Touch{{}, reinterpret_cast<float*>(pinned), in.data(), 0, true});
    free_pinned(pinned);
}

// Words that move several elements.

struct Vectors : OfThreads<32> {
    float* out;
    const float* in;
    std::int64_t at;
    SIMT_DEVICE void operator()() const { store_vector(out + 4 * thread(), load_vector<4>(in + at + 4 * thread())); }
};
struct MisalignedShared : OfThreads<32> {
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, values, 128);  // aligned to its elements, and to no more
        store_vector(values + 4 * thread(), load_vector<4>(out + 4 * thread()));
    }
};

TEST_CASE("vectors are aligned and within bounds, in kernels that are not instrumented too") {
    const DeviceArray<float> out(128);
    const DeviceArray<float> in(128);
    expect_none(Vectors{{}, out.data(), in.data(), 0});
    expect_report(Vectors{{}, out.data(), in.data(), 1}, "misaligned", "no multiple of 16");
    expect_report(Vectors{{}, out.data(), in.data(), 4}, "read of 16 bytes at 0 bytes past the end of 512 bytes");
    expect_report(Vectors{{}, out.data() + 4, in.data(), 0}, "write of 16 bytes at 0 bytes past the end of 512 bytes");
    expect_report(MisalignedShared{{}, out.data()}, "misaligned", "`values`");
}

enum class Mistake {
    none,
    no_wait,
    no_barrier,
    too_few_waits,
    overwritten,
    source_written,
    misaligned,
    out_of_bounds,
    never_waited
};

/// A pipeline of two stages: the next tile is copied while this one is used.
template <Mistake mistake>
struct Pipeline : OfThreads<64> {
    float* out;
    float* in;
    int tiles;
    SIMT_DEVICE void copy(int tile) const {
        float* stage = reinterpret_cast<float*>(dynamic_shared()) + tile % 2 * 256;
        const int shift = mistake == Mistake::misaligned ? 2 : mistake == Mistake::out_of_bounds ? 4 : 0;
        copy_async16(stage + 4 * thread(), in + (tile < tiles ? tile : 0) * 256 + 4 * thread() + shift, tile < tiles);
        commit_copies();
    }
    SIMT_DEVICE void operator()() const {
        const float* stages = reinterpret_cast<const float*>(dynamic_shared());
        float sum = 0;
        copy(0);
        for (int tile = 0; tile < tiles; ++tile) {
            copy(tile + 1);
            if constexpr (mistake == Mistake::overwritten) {
                copy(tile + 1);
            }
            if constexpr (mistake == Mistake::source_written) {
                in[tile * 256 + 4 * thread() + 256 * (tile + 1 < tiles ? 1 : 0)] = 1.0F;
            }
            if constexpr (mistake == Mistake::too_few_waits) {
                wait_copies<2>();
            } else if constexpr (mistake != Mistake::no_wait) {
                wait_copies<1>();
            }
            if constexpr (mistake != Mistake::no_barrier) {
                sync_block();
            }
            sum += stages[tile % 2 * 256 + thread()] + stages[tile % 2 * 256 + 255 - thread()];
            sync_block();
        }
        if constexpr (mistake != Mistake::never_waited) {
            wait_copies<0>();
        }
        out[thread()] = sum;
    }
};

template <Mistake mistake>
void expect_of_pipeline(const std::string& first, const std::string& second = "") {
    const DeviceArray<float> in(std::vector<float>(3 * 256, 1.0F));
    const DeviceArray<float> out(64);
    expect_report(Pipeline<mistake>{{}, out.data(), in.data(), 3}, first, second, {}, 2 * 256 * 4);
}

TEST_CASE("asynchronous copies") {
    const DeviceArray<float> in(std::vector<float>(3 * 256, 1.0F));
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const DeviceArray<float> out(64);
        CHECK(report_of(Pipeline<Mistake::none>{{}, out.data(), in.data(), 3}, {}, 2 * 256 * 4) == "");
        CHECK(out.read() == std::vector<float>(64, 6.0F));
    }
    expect_of_pipeline<Mistake::misaligned>("misaligned", "no multiple of 16");
    expect_of_pipeline<Mistake::out_of_bounds>("read of 16 bytes at 0 bytes past the end of 3072 bytes");
    expect_of_pipeline<Mistake::never_waited>("ended with 1 copies of copy_async16 that it never waited for");
    if (kChecked) {
        expect_of_pipeline<Mistake::no_wait>("is copying into: wait_copies comes first");
        expect_of_pipeline<Mistake::too_few_waits>("is copying into: wait_copies comes first");
        expect_of_pipeline<Mistake::overwritten>("is copying into: wait_copies comes first");
        expect_of_pipeline<Mistake::source_written>("is copying from: wait_copies comes first");
        expect_of_pipeline<Mistake::no_barrier>("shared memory `dynamic_shared`");
    }
}

template <int bytes>
struct Static : OfThreads<32> {
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(std::byte, first, 1024);
        SIMT_SHARED(std::byte, second, bytes - 1024);
        first[thread()] = second[thread()] = std::byte{0};
    }
};

TEST_CASE("more shared memory than there is") {
    expect_none(Static<48 << 10>{});
    expect_report(Static<(48 << 10) + 1>{}, "the static shared memory comes to 49153 bytes with `second`");
    expect_none(Static<40 << 10>{}, {}, 8 << 10);
    expect_report(Static<40 << 10>{}, "shared memory come to 49153", "asks for more only where", {}, (8 << 10) + 1);
    expect_none(Static<40 << 10>{}, {}, 123 << 10);
    expect_report(Static<40 << 10>{}, "shared memory come to", "166912 at most", {}, (123 << 10) + 1);
}

#ifndef __SANITIZE_ADDRESS__  // which ends the process at a fault

struct Deep : OfThreads<32> {
    float* out;
    int depth;
    [[gnu::noinline]] static float descend(int depth, float sum) {
        volatile float local[1024];
        local[depth % 1024] = sum;
        return depth == 0 ? sum : descend(depth - 1, sum + 1) + local[depth % 1024];
    }
    SIMT_DEVICE void operator()() const { out[thread()] = descend(depth, 0.0F); }
};

TEST_CASE("faults of the processor end the launch") {
    const DeviceArray<float> out(32);
    expect_none(Deep{{}, out.data(), 10});
    expect_report(Deep{{}, out.data(), 100}, "its local variables overflow the stack");
    if (!kChecked) {
        expect_report(Touch{{}, out.data(), nullptr, 0, false}, "a fault at");
    }
}

#endif

}  // namespace
}  // namespace tessera::simt
