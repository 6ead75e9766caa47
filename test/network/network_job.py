"""A training job for two hosts: random weights, a small vocabulary, so that nearly all parameters are in the blocks."""

import json
import os

import numpy as np

from make_case import random_documents, tensor_shapes, write_job, write_json, write_tokens

VOCABULARY = 512


def write_network_job(directory, hidden, layers, batch, sequence):
    """model/, tokens.h5 and job.toml, which runs in `directory`. Returns the number of parameters."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "head_dim": 64,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": sequence,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    os.makedirs(os.path.join(directory, "model"))
    write_json(os.path.join(directory, "model", "config.json"), config)
    documents = random_documents(VOCABULARY, np.random.default_rng(1), 200, 400)
    write_tokens(os.path.join(directory, "tokens.h5"), documents, VOCABULARY)
    write_job(
        os.path.join(directory, "job.toml"),
        {
            "job_type": "training",
            "model_name": "model",
            "output_dir": "out",
            "device": "cpu",
            "train_batch_size": batch,
            "bf16.enabled": False,
            "model.init": "random",
            "checkpoint.export_hf": False,
            "checkpoint.save_interval": 0,
            "checkpoint.save_minutes": 0,
            "data.train": ["tokens.h5"],
            "data.sequence_length": sequence,
            "data.packing": "concat",
            "logging.interval": 1,
            "training.max_steps": 4,
            "training.optimizer.lr": 1e-3,
        },
    )
    return sum(int(np.prod(shape)) for shape in tensor_shapes(config).values())


def read_metrics(directory, output):
    """The records of a run, one a step."""
    with open(os.path.join(directory, output, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]
