#include "core/parameters.h"

#include "core/base/checked.h"

namespace tessera {
namespace {

class UnitBuilder {
  public:
    explicit UnitBuilder(std::string name) { unit_.name = std::move(name); }

    /// A parameter that starts a group.
    void add(std::string name, std::vector<std::int64_t> shape, Parameter::Init init) {
        unit_.elements = round_up(unit_.elements, kParameterAlignment);
        append(std::move(name), std::move(shape), init);
    }
    /// A parameter that follows the one before it without a gap.
    void append(std::string name, std::vector<std::int64_t> shape, Parameter::Init init) {
        Parameter parameter{std::move(name), std::move(shape), unit_.elements, init};
        const std::int64_t count = checked_mul(parameter.rows(), parameter.cols(), "elements of a parameter");
        unit_.elements = checked_add(unit_.elements, count, "elements of a unit");
        unit_.parameters.push_back(std::move(parameter));
    }
    [[nodiscard]] Unit take() { return std::move(unit_); }

  private:
    Unit unit_;
};

Unit make_block(const ModelConfig& config, std::int64_t layer) {
    using Init = Parameter::Init;
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t inter = config.intermediate_size;
    UnitBuilder unit(fmt::format("block {}", layer));
    unit.add(attention + "q_proj.weight", {config.q_size(), hidden}, Init::normal);
    unit.append(attention + "k_proj.weight", {config.kv_size(), hidden}, Init::normal);
    unit.append(attention + "v_proj.weight", {config.kv_size(), hidden}, Init::normal);
    unit.add(attention + "o_proj.weight", {hidden, config.q_size()}, Init::normal);
    unit.add(mlp + "gate_proj.weight", {inter, hidden}, Init::normal);
    unit.append(mlp + "up_proj.weight", {inter, hidden}, Init::normal);
    unit.add(mlp + "down_proj.weight", {hidden, inter}, Init::normal);
    unit.add(prefix + "input_layernorm.weight", {hidden}, Init::one);
    unit.add(prefix + "post_attention_layernorm.weight", {hidden}, Init::one);
    if (config.qkv_bias) {
        unit.add(attention + "q_proj.bias", {config.q_size()}, Init::zero);
        unit.append(attention + "k_proj.bias", {config.kv_size()}, Init::zero);
        unit.append(attention + "v_proj.bias", {config.kv_size()}, Init::zero);
    }
    if (config.o_bias) {
        unit.add(attention + "o_proj.bias", {hidden}, Init::zero);
    }
    if (config.mlp_bias) {
        unit.add(mlp + "gate_proj.bias", {inter}, Init::zero);
        unit.append(mlp + "up_proj.bias", {inter}, Init::zero);
        unit.add(mlp + "down_proj.bias", {hidden}, Init::zero);
    }
    if (config.qk_norm) {
        unit.add(attention + "q_norm.weight", {config.head_dim}, Init::one);
        unit.add(attention + "k_norm.weight", {config.head_dim}, Init::one);
    }
    return unit.take();
}

}  // namespace

const Parameter& Unit::parameter(const std::string& suffix) const {
    for (const Parameter& parameter : parameters) {
        if (parameter.name.ends_with(suffix)) {
            return parameter;
        }
    }
    fail(ExitCode::internal, "unit {} has no parameter {}", name, suffix);
}

std::vector<Unit> make_units(const ModelConfig& config) {
    std::vector<Unit> units;
    UnitBuilder embedding("embedding");
    embedding.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, Parameter::Init::normal);
    units.push_back(embedding.take());
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        units.push_back(make_block(config, layer));
    }
    UnitBuilder head("head");
    if (!config.tied) {
        head.add("lm_head.weight", {config.vocab_size, config.hidden_size}, Parameter::Init::normal);
    }
    head.add("model.norm.weight", {config.hidden_size}, Parameter::Init::one);
    units.push_back(head.take());
    return units;
}

std::int64_t count_parameters(const std::vector<Unit>& units) {
    std::int64_t count = 0;
    for (const Unit& unit : units) {
        for (const Parameter& parameter : unit.parameters) {
            count += parameter.elements();
        }
    }
    return count;
}

}  // namespace tessera
