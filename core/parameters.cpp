#include "core/parameters.h"

#include <algorithm>

#include "core/base/checked.h"

namespace tessera {
namespace {

class UnitBuilder {
  public:
    UnitBuilder(std::string name, const Residency& residency) : residency_(residency) { unit_.name = std::move(name); }

    /// A parameter that starts a group.
    void add(std::string name, std::vector<std::int64_t> shape, Parameter::Init init) {
        groups_.emplace_back();
        append(std::move(name), std::move(shape), init);
    }
    /// A parameter that follows the one before it without a gap.
    void append(std::string name, std::vector<std::int64_t> shape, Parameter::Init init) {
        groups_.back().push_back({std::move(name), std::move(shape), 0, init});
    }
    [[nodiscard]] Unit take() {
        const auto first_resident = std::ranges::stable_partition(groups_, [&](const Group& group) {
            return std::ranges::any_of(group, [&](const Parameter& p) { return p.elements() > residency_.largest; });
        });
        std::for_each(groups_.begin(), first_resident.begin(), [&](Group& group) { place(group); });
        if (!first_resident.empty()) {
            unit_.elements = round_up(unit_.elements, residency_.multiple);
        }
        unit_.resident_from = unit_.elements;
        std::ranges::for_each(first_resident, [&](Group& group) { place(group); });
        return std::move(unit_);
    }

  private:
    using Group = std::vector<Parameter>;

    void place(Group& group) {
        unit_.elements = round_up(unit_.elements, kParameterAlignment);
        for (Parameter& parameter : group) {
            parameter.offset = unit_.elements;
            unit_.elements = checked_add(unit_.elements, parameter.elements(), "elements of a unit");
            unit_.parameters.push_back(std::move(parameter));
        }
    }

    Residency residency_;
    Unit unit_;
    std::vector<Group> groups_;
};

Unit make_block(const ModelConfig& config, std::int64_t layer, const Residency& residency) {
    using Init = Parameter::Init;
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t inter = config.intermediate_size;
    UnitBuilder unit(fmt::format("block {}", layer), residency);
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

std::vector<Unit> make_units(const ModelConfig& config, const Residency& residency) {
    std::vector<Unit> units;
    UnitBuilder embedding("embedding", residency);
    embedding.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, Parameter::Init::normal);
    units.push_back(embedding.take());
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        units.push_back(make_block(config, layer, residency));
    }
    UnitBuilder head("head", residency);
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
            count = checked_add(count, parameter.elements(), "parameters of a model");
        }
    }
    return count;
}

}  // namespace tessera
