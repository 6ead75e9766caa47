"""Small models, token files and jobs by chance, written with numpy and h5py alone.

    make_case.py OUT_DIR [--family llama|mistral|qwen2|qwen3] [--seed N]

The shapes of the tensors are written down here once more, on purpose: a test must not take them from the program.
"""

import argparse
import json
import os
import struct

import h5py
import numpy as np

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ARCHITECTURES = {name: f"{name.capitalize()}ForCausalLM" for name in FAMILIES}
DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def random_config(family, rng, **changed):
    """A configuration of a few thousand parameters; `changed` replaces what chance gave."""
    kv_heads = int(rng.integers(1, 3))
    heads = kv_heads * int(rng.integers(1, 4))
    head_dim = int(rng.choice([8, 12, 16, 24]))
    layers = int(rng.integers(1, 4))
    positions = 256
    config = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": int(rng.choice([97, 128, 256, 311])),
        "hidden_size": heads * head_dim if rng.random() < 0.5 else int(rng.choice([24, 40, 64])),
        "intermediate_size": int(rng.choice([33, 48, 96])),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": float(rng.choice([1e-5, 1e-6])),
        "max_position_embeddings": positions,
        "initializer_range": 0.02,
        "tie_word_embeddings": bool(rng.random() < 0.5),
        "rope_theta": float(rng.choice([1e4, 5e5])),
        "rope_scaling": [
            None,
            {"rope_type": "linear", "factor": 2.0},
            {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ][int(rng.integers(0, 4))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if family == "llama":
        config |= {"attention_bias": bool(rng.random() < 0.5), "mlp_bias": bool(rng.random() < 0.5)}
    if family == "mistral":
        config["sliding_window"] = int(rng.choice([5, 16])) if rng.random() < 0.7 else None
    if family in ("qwen2", "qwen3"):
        config |= {
            "use_sliding_window": bool(rng.random() < 0.5),
            "sliding_window": int(rng.choice([5, 16])),
            "max_window_layers": int(rng.integers(0, layers + 1)),
        }
    if family == "qwen3":
        config["attention_bias"] = bool(rng.random() < 0.5)
    return config | changed


def plain_config(vocabulary, hidden, intermediate, layers, heads, kv_heads, positions, tied=False):
    """A Llama without anything special, where the size is all that matters."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
    }


def tensor_shapes(config):
    """Hugging Face name -> shape, in the order of the model."""
    family, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    qkv_bias = family == "qwen2" or config.get("attention_bias", False)
    o_bias = family != "qwen2" and config.get("attention_bias", False)
    mlp_bias = config.get("mlp_bias", False)
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        products = {
            "self_attn.q_proj": (q, hidden, qkv_bias),
            "self_attn.k_proj": (kv, hidden, qkv_bias),
            "self_attn.v_proj": (kv, hidden, qkv_bias),
            "self_attn.o_proj": (hidden, q, o_bias),
            "mlp.gate_proj": (inner, hidden, mlp_bias),
            "mlp.up_proj": (inner, hidden, mlp_bias),
            "mlp.down_proj": (hidden, inner, mlp_bias),
        }
        for name, (rows, columns, bias) in products.items():
            shapes[f"{at}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{at}{name}.bias"] = (rows,)
        if family == "qwen3":
            shapes[at + "self_attn.q_norm.weight"] = shapes[at + "self_attn.k_norm.weight"] = (config["head_dim"],)
        shapes[at + "input_layernorm.weight"] = shapes[at + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def random_weights(config, rng):
    """Weights with which no part of the model is without effect."""
    weights = {}
    for name, shape in tensor_shapes(config).items():
        if "norm" in name:
            weights[name] = 1 + rng.uniform(-0.2, 0.2, shape)
        elif name.endswith("bias"):
            weights[name] = rng.uniform(-0.2, 0.2, shape)
        else:
            weights[name] = 0.2 * rng.standard_normal(shape)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def to_bytes(values, dtype):
    if dtype == "BF16":  # the upper half of fp32, rounded to nearest even
        bits = values.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return values.astype(DTYPES[dtype]).tobytes()


def safetensors_parts(weights, dtype="F32"):
    """Header (a dictionary) and data of a safetensors file, for tests that spoil one of them."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in weights.items():
        piece = to_bytes(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    return header, data


def write_safetensors(path, header, data):
    """`header` is a dictionary, or the text itself."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)


def write_model(directory, config, weights, dtype="F32"):
    os.makedirs(directory, exist_ok=True)
    write_json(os.path.join(directory, "config.json"), config)
    write_safetensors(os.path.join(directory, "model.safetensors"), *safetensors_parts(weights, dtype))


def random_documents(vocabulary, rng, count, longest):
    """Documents in which a token often follows from the one before, so that there is something to learn."""
    follows = rng.permutation(vocabulary)
    documents = []
    for length in rng.integers(2, longest + 1, count):
        tokens = rng.integers(0, vocabulary, length)
        for at in range(1, length):
            if rng.random() < 0.6:
                tokens[at] = follows[tokens[at - 1]]
        documents.append(tokens)
    return documents


def write_tokens(path, documents, vocabulary, masks=None, **attributes):
    """A tessera.tokens file; `attributes` replaces those of the format."""
    dtype = np.uint16 if vocabulary <= 65536 else np.uint32
    joined = [np.concatenate(parts) if parts else np.zeros(0) for parts in (documents, masks or [])]
    with h5py.File(path, "w") as file:
        file["tokens"] = joined[0].astype(dtype)
        file["offsets"] = np.cumsum([0] + [len(document) for document in documents], dtype=np.int64)
        if masks is not None:
            file["loss_mask"] = joined[1].astype(np.uint8)
        written = {"format": "tessera.tokens", "format_version": 1, "vocab_size": vocabulary, "tokenizer": "random"}
        for name, value in (written | attributes).items():
            file.attrs[name] = value


def write_job(path, settings):
    """A job file from dotted keys; values are written as TOML."""
    tables = {}
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
    text = ""
    for table in sorted(tables):
        text += (f"\n[{table}]\n" if table else "") + "\n".join(tables[table]) + "\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_plain_job(directory, config, tokens, sequence_length, **settings):
    """model/config.json, tokens.h5 with one document of `tokens` and job.toml, a short training in `directory` that
    leaves nothing but checkpoints and metrics. `settings`: further keys, with __ for a point."""
    os.makedirs(os.path.join(directory, "model"), exist_ok=True)
    write_json(os.path.join(directory, "model", "config.json"), config)
    write_tokens(os.path.join(directory, "tokens.h5"), [tokens], config["vocab_size"])
    job = {
        "job_type": "training",
        "model_name": "model",
        "output_dir": "out",
        "checkpoint.export_hf": False,
        "checkpoint.save_minutes": 0,
        "data.train": ["tokens.h5"],
        "data.sequence_length": sequence_length,
        "data.packing": "concat",
        "training.max_steps": 2,
        "training.optimizer.lr": 1e-3,
    }
    write_job(os.path.join(directory, "job.toml"), job | {k.replace("__", "."): v for k, v in settings.items()})


def make_case(directory, family, rng, documents=40, longest=60, **changed):
    """model/, tokens.h5 and a training job job.toml, which runs in `directory`. Returns the configuration and weights."""
    config = random_config(family, rng, **changed)
    weights = random_weights(config, rng)
    write_model(os.path.join(directory, "model"), config, weights)
    tokens = random_documents(config["vocab_size"], rng, documents, longest)
    write_tokens(os.path.join(directory, "tokens.h5"), tokens, config["vocab_size"])
    write_job(
        os.path.join(directory, "job.toml"),
        {
            "job_type": "training",
            "model_name": "model",
            "output_dir": "out",
            "device": "cpu",
            "train_batch_size": 4,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": "auto",
            "bf16.enabled": False,
            "data.train": ["tokens.h5"],
            "data.sequence_length": 32,
            "data.packing": "concat",
            "training.max_steps": 4,
            "training.optimizer.lr": 3e-3,
            "log_prob.data": ["tokens.h5"],
        },
    )
    return config, weights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--family", choices=FAMILIES, default="llama")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.makedirs(options.directory, exist_ok=True)
    make_case(options.directory, options.family, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
