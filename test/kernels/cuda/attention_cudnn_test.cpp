// cuDNN's attention against the reference in double, where it is built in and the device is a GPU that it takes; the
// reason where not.
#include "kernels/cuda/attention_cudnn.h"

#include <catch2/catch.hpp>

#include "test/kernels/cuda/attention_on_device.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// cuDNN's attention with a workspace for one case.
class Cudnn {
  public:
    Cudnn(DType storage, const OpsLimits& limits)
        : largest_(limits.tokens * 24),
          index_memory_(cuda::IndexCache::workspace_bytes(largest_)),
          indices_(streams_),
          attention_(cuda::make_cudnn_attention(storage, indices_)),
          workspace_(attention_->workspace_bytes(limits)) {
        indices_.bind(bytes(index_memory_), largest_);
        attention_->bind_workspace(bytes(workspace_), limits);
    }

    Results run(const Case& c, const Inputs& inputs) {
        const AttentionOnDevice on(c, inputs);
        attention_->forward(streams_.compute(), on.out, on.lse, on.q, on.k, on.v, c.shape());
        attention_->backward(streams_.compute(), on.dq, on.dk, on.dv, on.dout, on.q, on.k, on.v, on.out, on.lse,
                             c.shape());
        simt::synchronize(streams_.compute());
        return on.read();
    }

  private:
    static std::span<std::byte> bytes(const simt::DeviceArray<std::byte>& array) {
        return {array.data(), static_cast<std::size_t>(array.size())};
    }

    std::int64_t largest_;
    simt::DeviceArray<std::byte> index_memory_;
    cuda::Streams streams_;
    cuda::IndexCache indices_;
    std::unique_ptr<cuda::LibraryAttention> attention_;
    simt::DeviceArray<std::byte> workspace_;
};

OpsLimits limits_of(const Case& c) {
    return attention_limits(c.shape());
}

/// Why there is no such attention here; empty where there is.
std::string refusal(DType storage, const OpsLimits& limits) {
    try {
        const Cudnn made(storage, limits);
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::usage);
        return error.what();
    }
    return {};
}

}  // namespace

TEST_CASE("cuDNN's attention agrees with the reference, or says why there is none") {
    const Starts packed = {0, 0, 50, 50, 51, 130, 400, 400};
    const std::vector<Case> cases = {
        {.starts = {0, 70}},
        {.head_dim = 128, .starts = {0, 128, 256, 384}, .heads = 2, .kv_heads = 2},
        {.starts = packed, .heads = 6, .kv_heads = 2},
        {.head_dim = 128, .starts = packed, .heads = 8, .kv_heads = 1, .window = 33},
        {.dtype = DType::f16, .head_dim = 40, .starts = packed, .heads = 4, .kv_heads = 2, .scale = 0.3},
        {.starts = packed, .heads = 2, .window = 1000},
    };
    if (const std::string reason = refusal(DType::bf16, limits_of(cases[0])); !reason.empty()) {
        INFO(reason);
        CHECK_THAT(reason,
                   Catch::StartsWith("model.attn_implementation = \"cudnn\": ") && Catch::EndsWith("say \"flash\""));
        CHECK((!simt::is_emulated() || reason.find("CUDNN_FRONTEND_INCLUDE") != std::string::npos));
        return;
    }
    for (const Case& c : cases) {
        const Inputs inputs(c, 1);
        Cudnn cudnn(c.dtype, limits_of(c));
        const Results first = cudnn.run(c, inputs);
        require_as_good_as_plain(c, inputs, first);
        CHECK(cudnn.run(c, inputs) == first);
    }
    OpsLimits limits = limits_of(cases[0]);
    CHECK_THAT(refusal(DType::f32, limits), Catch::Contains("bf16.enabled"));
    limits.head_dim = 36;
    CHECK_THAT(refusal(DType::bf16, limits), Catch::Contains("not 36"));
}

TEST_CASE("What is linked says whether cuDNN's attention is") {
    CHECK_THAT(cuda::cudnn_version(), Catch::StartsWith("cuDNN") && Catch::Contains("attention"));
}
