"""Makes cases.json: configurations, and what transformers makes of them.

Needs torch and transformers (5.24 made the file that is here). The models are built on the meta device, so the sizes of
real models cost nothing; rope is computed by transformers with its float32 replaced by float64.
"""

import json
import pathlib
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

TINY = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=101, max_position_embeddings=512)
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

CASES = {
    "llama with nothing said": dict(model_type="llama", num_hidden_layers=2),
    "mistral with nothing said": dict(model_type="mistral", num_hidden_layers=2),
    "qwen2 with nothing said": dict(model_type="qwen2", num_hidden_layers=2),
    "qwen3 with nothing said": dict(model_type="qwen3", num_hidden_layers=2),
    "Llama 3.1 8B, old spelling": dict(
        model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0,
        bos_token_id=128000, eos_token_id=[128001, 128008, 128009], hidden_act="silu", hidden_size=4096,
        initializer_range=0.02, intermediate_size=14336, max_position_embeddings=131072, mlp_bias=False,
        num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, pretraining_tp=1, rms_norm_eps=1e-05,
        rope_scaling={**LLAMA3, "original_max_position_embeddings": 8192}, rope_theta=500000.0,
        tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.43.0.dev0", use_cache=True,
        vocab_size=128256),
    "SmolLM2 135M": dict(
        model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, hidden_act="silu",
        hidden_size=576, initializer_range=0.041666666666666664, intermediate_size=1536, is_llama_config=True,
        max_position_embeddings=8192, mlp_bias=False, num_attention_heads=9, num_hidden_layers=30,
        num_key_value_heads=3, pad_token_id=2, rms_norm_eps=1e-05, rope_interleaved=False, rope_scaling=None,
        rope_theta=100000, tie_word_embeddings=True, vocab_size=49152,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
    "Mistral 7B v0.2": dict(
        model_type="mistral", hidden_size=4096, intermediate_size=14336, max_position_embeddings=32768,
        num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-05,
        rope_theta=1000000.0, sliding_window=None, vocab_size=32000),
    "Qwen2.5 0.5B": dict(
        model_type="qwen2", hidden_size=896, intermediate_size=4864, max_position_embeddings=32768,
        max_window_layers=21, num_attention_heads=14, num_hidden_layers=24, num_key_value_heads=2, rms_norm_eps=1e-06,
        rope_theta=1000000.0, sliding_window=32768, tie_word_embeddings=True, use_mrope=False,
        use_sliding_window=False, vocab_size=151936),
    "Qwen3 0.6B": dict(
        model_type="qwen3", attention_bias=False, head_dim=128, hidden_size=1024, intermediate_size=3072,
        max_position_embeddings=40960, max_window_layers=28, num_attention_heads=16, num_hidden_layers=28,
        num_key_value_heads=8, rope_scaling=None, rope_theta=1000000, sliding_window=None, tie_word_embeddings=True,
        use_sliding_window=False, vocab_size=151936),
    "llama with biases": dict(model_type="llama", attention_bias=True, mlp_bias=True, **TINY),
    "qwen3 with biases": dict(model_type="qwen3", attention_bias=True, **{**TINY, "head_dim": 16}),
    "kv heads null": dict(model_type="qwen2", **{**TINY, "num_key_value_heads": None}),
    "mistral with a window": dict(model_type="mistral", sliding_window=7, **TINY),
    "qwen2 with windows by max_window_layers": dict(
        model_type="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1, **TINY),
    "qwen2 with the default window": dict(model_type="qwen2", use_sliding_window=True, max_window_layers=2, **TINY),
    "qwen2 with max_window_layers beyond the layers": dict(
        model_type="qwen2", use_sliding_window=True, sliding_window=9, **TINY),
    "qwen3 with layer_types": dict(
        model_type="qwen3", use_sliding_window=True, sliding_window=9, max_window_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], **TINY),
    "a window that is not in use": dict(
        model_type="qwen2", use_sliding_window=False, sliding_window=9, max_window_layers=0, **TINY),
    "head_dim of its own": dict(model_type="llama", head_dim=20, **TINY),
    "qwen2 with head_dim": dict(model_type="qwen2", head_dim=20, **TINY),
    "linear": dict(model_type="llama", rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=5000.0, **TINY),
    "rope_parameters, theta left out": dict(
        model_type="llama", rope_parameters={"rope_type": "linear", "factor": 2.0}, **TINY),
    "rope_parameters with theta outside": dict(
        model_type="llama", rope_parameters={"rope_type": "default"}, rope_theta=7000.0, **TINY),
    "rope_parameters": dict(
        model_type="mistral", rope_parameters={"rope_type": "default", "rope_theta": 300.0}, **TINY),
    "both spellings that agree": dict(
        model_type="llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
        rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=300.0, **TINY),
    "rope_type and type": dict(
        model_type="llama", rope_scaling={"type": "linear", "rope_type": "linear", "factor": 2}, **TINY),
    "llama3, original length left out": dict(model_type="llama", rope_scaling=dict(LLAMA3), **TINY),
    "llama3, original length outside": dict(
        model_type="llama", rope_scaling=dict(LLAMA3), original_max_position_embeddings=64, **TINY),
    "yarn": dict(model_type="qwen2", rope_scaling=dict(YARN), rope_theta=1000000.0, **TINY),
    "yarn, original length left out": dict(
        model_type="qwen2", rope_scaling={"rope_type": "yarn", "factor": 4.0}, **TINY),
    "yarn with attention_factor": dict(
        model_type="qwen3", rope_scaling={**YARN, "attention_factor": 0.7, "mscale": 0.5, "mscale_all_dim": 0.25},
        **TINY),
    "yarn with mscale and mscale_all_dim": dict(
        model_type="llama", rope_scaling={**YARN, "factor": 40, "mscale": 0.707, "mscale_all_dim": 1.2}, **TINY),
    "yarn with mscale alone": dict(model_type="llama", rope_scaling={**YARN, "mscale": 0.707}, **TINY),
    "yarn with mscale 0": dict(
        model_type="llama", rope_scaling={**YARN, "mscale": 0, "mscale_all_dim": 1.0}, **TINY),
    "yarn with a factor below 1": dict(model_type="llama", rope_scaling={**YARN, "factor": 0.5}, **TINY),
    "yarn with factor null": dict(model_type="llama", rope_scaling={**YARN, "factor": None}, **TINY),
    "yarn with betas": dict(
        model_type="llama", rope_scaling={**YARN, "beta_fast": 8, "beta_slow": 2.5, "truncate": False}, **TINY),
    "yarn with betas of 0": dict(model_type="llama", rope_scaling={**YARN, "beta_fast": 0, "beta_slow": 0}, **TINY),
}


def rope_of(config, rotary):
    single = (torch.float, torch.float32)
    torch.float = torch.float32 = torch.float64
    try:
        kind = config.rope_parameters["rope_type"]
        compute = rotary.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
        frequencies, scale = compute(config)
    finally:
        torch.float, torch.float32 = single
    assert frequencies.dtype == torch.float64
    return frequencies.tolist(), float(scale)


def expected(config):
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "config.json").write_text(json.dumps(config))
        loaded = AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(loaded)
    layers = model.model.layers
    window = [getattr(layer.self_attn, "sliding_window", None) for layer in layers]
    if loaded.model_type == "mistral":
        window = [loaded.sliding_window for _ in layers]
    frequencies, scale = rope_of(loaded, model.model.rotary_emb)
    names = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    return {
        "window": [value or 0 for value in window],
        "rms_norm_eps": model.model.norm.variance_epsilon,
        "max_position_embeddings": loaded.max_position_embeddings,
        "initializer_range": loaded.initializer_range,
        "inverse_frequencies": frequencies,
        "attention_factor": scale,
        "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
        # Layers are alike: the first stands for all.
        "parameters": {name: shape for name, shape in names.items() if ".layers." not in name or ".layers.0." in name},
    }


cases = [{"name": name, "config": config, "expected": expected(config)} for name, config in CASES.items()]
lines = ",\n".join(json.dumps(case) for case in cases)
(pathlib.Path(__file__).parent / "cases.json").write_text(f"[\n{lines}\n]\n")
