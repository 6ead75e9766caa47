// Every batch of segments is a call of a graph that cuDNN has compiled for its slots, length, strides and window. A
// matrix is a "ragged" tensor [slots, heads, length, head size]: an array on the device says at which element the first
// token of each slot lies, so that packed rows are read and written where they are.
#include "kernels/cuda/attention_cudnn.h"

#include <cudnn_frontend.h>

#include <array>
#include <cmath>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/base/checked.h"
#include "core/base/memory.h"
#include "kernels/cuda/attention_batches.h"

namespace tessera::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

constexpr std::int64_t kLargestHead = 256;
constexpr std::int64_t kWorkspaceAlignment = 256;

/// The numbers of a graph's tensors; the starts of tensor `id` are tensor kStarts + id.
enum Id : std::int64_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kMatrices, kLengths = kMatrices, kStarts };

/// All that a graph depends on.
struct GraphKey {
    bool backward = false;
    std::int64_t slots = 0;
    std::int64_t longest = 0;
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t window = 0;
    double scale = 0;
    std::array<std::int64_t, kMatrices> strides{};  // of each matrix; 0: not of this graph

    auto operator<=>(const GraphKey&) const = default;
};

void check(cudnnStatus_t status, const char* call) {
    if (status != CUDNN_STATUS_SUCCESS) {
        fail(ExitCode::internal, "{}: {}", call, cudnnGetErrorString(status));
    }
}

void check(fe::error_object result, const char* what) {
    if (result.is_bad()) {
        fail(ExitCode::internal, "{} of cuDNN's attention: {}", what, result.get_message());
    }
}

class Handle {
  public:
    Handle() { check(cudnnCreate(&handle_), "cudnnCreate"); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { static_cast<void>(cudnnDestroy(handle_)); }
    // NOLINTNEXTLINE(google-explicit-constructor): it is one
    operator cudnnHandle_t() const { return handle_; }

  private:
    cudnnHandle_t handle_ = nullptr;
};

/// What a graph computes, before cuDNN has seen it.
class GraphDefinition {
  public:
    GraphDefinition(const GraphKey& key, DType storage) : key_(key) {
        graph_.set_io_data_type(storage == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        if (key.backward) {
            const auto [dq, dk, dv] = graph_.sdpa_backward(
                input(kQ), input(kK), input(kV), input(kOut), input(kDout), input(kLse),
                options<fe::graph::SDPA_backward_attributes>("backward").set_deterministic_algorithm(true));
            output(*dq, kDq);
            output(*dk, kDk);
            output(*dv, kDv);
        } else {
            const auto [out, lse] =
                graph_.sdpa(input(kQ), input(kK), input(kV),
                            options<fe::graph::SDPA_attributes>("forward").set_generate_stats(true));
            output(*out, kOut);
            output(*lse, kLse);
        }
    }

    [[nodiscard]] fe::graph::Graph& graph() { return graph_; }

  private:
    /// Key j is visible to query i iff j - i <= 0 (the right bound) and i - j < window (the left one).
    template <typename Attributes>
    [[nodiscard]] Attributes options(const char* name) {
        const Tensor lengths = array(kLengths, key_.slots, fe::DataType_t::INT32);
        Attributes attributes;
        attributes.set_name(name)
            .set_attn_scale(static_cast<float>(key_.scale))
            .set_padding_mask(true)
            .set_seq_len_q(lengths)
            .set_seq_len_kv(lengths)
            .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
            .set_diagonal_band_right_bound(0);
        if (key_.window > 0) {
            attributes.set_diagonal_band_left_bound(narrow<int>(key_.window));
        }
        return attributes;
    }

    [[nodiscard]] Tensor input(Id id) {
        Tensor_attributes tensor;
        describe(tensor, id);
        return graph_.tensor(tensor);
    }
    void output(Tensor_attributes& tensor, Id id) {
        tensor.set_output(true);
        describe(tensor, id);
    }
    void describe(Tensor_attributes& tensor, Id id) {
        const bool of_keys = id == kK || id == kV || id == kDk || id == kDv;
        const std::int64_t columns = id == kLse ? 1 : key_.head_dim;
        const std::int64_t stride = key_.strides[static_cast<std::size_t>(id)];
        tensor.set_uid(id)
            .set_dim({key_.slots, of_keys ? key_.kv_heads : key_.heads, key_.longest, columns})
            .set_stride({key_.longest * stride, columns, stride, 1})
            .set_ragged_offset(array(kStarts + id, key_.slots + 1, fe::DataType_t::INT64));
        if (id == kLse) {
            tensor.set_data_type(fe::DataType_t::FLOAT).set_alignment(sizeof(float));
        }
    }
    [[nodiscard]] Tensor array(std::int64_t id, std::int64_t count, fe::DataType_t type) {
        return graph_.tensor(
            Tensor_attributes().set_uid(id).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type));
    }

    GraphKey key_;
    fe::graph::Graph graph_;
};

class CudnnAttention final : public LibraryAttention {
  public:
    CudnnAttention(DType storage, IndexCache& indices) : storage_(storage), indices_(indices) {}

    /// What the backward pass of cuDNN 9.19 asks for on sm_90 where it is to be deterministic: all scores, a sum for
    /// each of their rows, and where query heads share keys, the gradients of keys and values for each query head.
    [[nodiscard]] std::int64_t workspace_bytes(const OpsLimits& limits) const override {
        if (limits.head_dim % 8 != 0 || limits.head_dim > kLargestHead) {
            fail(ExitCode::usage,
                 "model.attn_implementation = \"cudnn\": cuDNN's attention takes heads of a multiple of 8 elements and "
                 "at most {}, not {}; say \"flash\"",
                 kLargestHead, limits.head_dim);
        }
        constexpr std::int64_t kOfSlot = 1 << 10;
        constexpr std::int64_t kOfGraph = 1 << 16;
        const std::int64_t tokens = tokens_of_batch(limits);
        const std::int64_t row = 2 * batch_length(limits.longest_segment) + 4 +
                                 (limits.heads == limits.kv_heads ? 0 : 2 * 2 * limits.head_dim);
        const std::int64_t rows = checked_mul(tokens, limits.heads, "rows of scores");
        return checked_mul(rows, row, "bytes of scores") + tokens / kShortestBatch * kOfSlot + kOfGraph +
               kWorkspaceAlignment;
    }

    void bind_workspace(std::span<std::byte> memory, const OpsLimits& limits) override {
        const auto address = reinterpret_cast<std::intptr_t>(memory.data());
        workspace_ = memory.subspan(static_cast<std::size_t>(round_up(address, kWorkspaceAlignment) - address));
        tokens_ = tokens_of_batch(limits);
        if (handle_ == nullptr) {  // planning needs no GPU
            handle_ = std::make_unique<Handle>();
        }
        // Those of the longest segments, with q, k and v in one matrix.
        GraphKey key{.longest = batch_length(limits.longest_segment),
                     .heads = limits.heads,
                     .kv_heads = limits.kv_heads,
                     .head_dim = limits.head_dim,
                     .scale = 1 / std::sqrt(static_cast<double>(limits.head_dim))};
        key.slots = tokens_ / key.longest;
        const std::int64_t out = limits.heads * limits.head_dim;
        const std::int64_t qkv = out + 2 * limits.kv_heads * limits.head_dim;
        key.strides = {qkv, qkv, qkv, out, limits.heads};
        require(key);
        key.backward = true;
        key.strides = {qkv, qkv, qkv, out, limits.heads, out, qkv, qkv, qkv};
        require(key);
    }

    void forward(simt::Stream stream, Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                 const AttentionShape& shape) override {
        run(stream, false, {{kQ, q}, {kK, k}, {kV, v}, {kOut, out}, {kLse, lse}}, shape);
    }
    void backward(simt::Stream stream, Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                  ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape) override {
        run(stream, true,
            {{kQ, q}, {kK, k}, {kV, v}, {kOut, out}, {kLse, lse}, {kDout, dout}, {kDq, dq}, {kDk, dk}, {kDv, dv}},
            shape);
    }

  private:
    using Operands = std::vector<std::pair<Id, ConstMatrix>>;
    using Graphs = std::map<GraphKey, GraphDefinition>;

    void run(simt::Stream stream, bool backward, const Operands& operands, const AttentionShape& shape) {
        const std::vector<AttentionBatch> batches = attention_batches(shape.starts, tokens_);
        GraphKey key{.backward = backward,
                     .heads = shape.heads,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .scale = shape.scale};
        std::unordered_map<std::int64_t, void*> pointers;
        std::map<std::int64_t, std::int64_t*> starts;  // of each stride, all batches one after another
        for (const auto& [id, matrix] : operands) {
            key.strides[static_cast<std::size_t>(id)] = matrix.stride;
            pointers[id] = const_cast<std::byte*>(matrix.data);  // variant packs do not tell inputs from outputs
            if (!starts.contains(matrix.stride)) {
                starts[matrix.stride] = starts_on_device(batches, matrix.stride);
            }
        }
        std::int32_t* lengths = lengths_on_device(batches);
        check(cudnnSetStream(*handle_, stream), "cudnnSetStream");
        for (const AttentionBatch& batch : batches) {
            key.slots = std::ssize(batch.lengths);
            key.longest = batch.longest;
            key.window = shape.window < batch.longest ? shape.window : 0;  // else it hides nothing
            for (const auto& [id, matrix] : operands) {
                pointers[kStarts + id] = starts[matrix.stride];
            }
            pointers[kLengths] = lengths;
            check(graph(key).execute(*handle_, pointers, workspace_.data()), "a call");
            for (auto& [stride, first] : starts) {
                first += round_up(key.slots + 1, kStartsOfChunk);
            }
            lengths += round_up(key.slots, kLengthsOfChunk);
        }
    }

    /// In elements of a matrix. The arrays of a batch begin at multiples of 16 bytes, as cuDNN wants them.
    [[nodiscard]] std::int64_t* starts_on_device(const std::vector<AttentionBatch>& batches, std::int64_t stride) {
        std::vector<std::int64_t> all;
        for (const AttentionBatch& batch : batches) {
            for (const std::int64_t start : batch.starts) {
                all.push_back(start * stride);
            }
            all.resize(static_cast<std::size_t>(round_up(std::ssize(all), kStartsOfChunk)));
        }
        return on_device(all);
    }
    [[nodiscard]] std::int32_t* lengths_on_device(const std::vector<AttentionBatch>& batches) {
        std::vector<std::int32_t> all;
        for (const AttentionBatch& batch : batches) {
            all.insert(all.end(), batch.lengths.begin(), batch.lengths.end());
            all.resize(static_cast<std::size_t>(round_up(std::ssize(all), kLengthsOfChunk)));
        }
        return on_device(all);
    }
    template <typename T>
    [[nodiscard]] T* on_device(const std::vector<T>& values) {
        return const_cast<T*>(indices_.on_device(std::span(values)).data());
    }

    [[nodiscard]] fe::graph::Graph& graph(const GraphKey& key) {
        const auto found = graphs_.find(key);
        if (found != graphs_.end()) {
            return found->second.graph();
        }
        check(build(key), "a graph");
        return graphs_.at(key).graph();
    }
    /// As graph(), for those whose absence the user is to know of.
    void require(const GraphKey& key) {
        if (fe::error_object result = build(key); result.is_bad()) {
            fail(
                ExitCode::usage,
                "model.attn_implementation = \"cudnn\": on this GPU {} has no {} pass of attention in {} with {} query "
                "and {} key-value heads of {} elements, of segments of {} tokens, that gives the same result in every "
                "run: {}; say \"flash\"",
                cudnn_version(), key.backward ? "backward" : "forward", name_of(storage_), key.heads, key.kv_heads,
                key.head_dim, key.longest, result.get_message());
        }
    }
    [[nodiscard]] fe::error_object build(const GraphKey& key) {
        fe::graph::Graph& graph = graphs_.try_emplace(key, key, storage_).first->second.graph();
        fe::error_object result = graph.build(*handle_, {fe::HeurMode_t::A});
        if (result.is_bad()) {
            graphs_.erase(key);
            return result;
        }
        if (const std::int64_t bytes = graph.get_workspace_size(); bytes > std::ssize(workspace_)) {
            fail(ExitCode::internal, "cuDNN's attention wants {} bytes of workspace, {} were planned", bytes,
                 workspace_.size());
        }
        return result;
    }

    static constexpr std::int64_t kStartsOfChunk = 16 / sizeof(std::int64_t);
    static constexpr std::int64_t kLengthsOfChunk = 16 / sizeof(std::int32_t);

    DType storage_;
    IndexCache& indices_;
    std::unique_ptr<Handle> handle_;
    std::span<std::byte> workspace_;
    std::int64_t tokens_ = 0;  // of a batch
    Graphs graphs_;
};

}  // namespace

std::unique_ptr<LibraryAttention> make_cudnn_attention(DType storage, IndexCache& indices) {
    if (size_of(storage) != 2) {
        fail(ExitCode::usage,
             "model.attn_implementation = \"cudnn\": cuDNN's attention takes numbers of 16 bits, not {}; say "
             "bf16.enabled = true, or \"flash\"",
             name_of(storage));
    }
    return std::make_unique<CudnnAttention>(storage, indices);
}

std::string cudnn_version() {
    const std::size_t version = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{} (attention through frontend {}.{}.{})", version / 10000, version / 100 % 100,
                       version % 100, CUDNN_FRONTEND_MAJOR_VERSION, CUDNN_FRONTEND_MINOR_VERSION,
                       CUDNN_FRONTEND_PATCH_VERSION);
}

}  // namespace tessera::cuda
