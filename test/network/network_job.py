"""A training job for two hosts: random weights, a small vocabulary, so that nearly all parameters are in the blocks."""

import json
import os

import numpy as np

from make_case import plain_config, tensor_shapes, write_plain_job

VOCABULARY = 512


def write_network_job(directory, hidden, layers, batch, sequence):
    """model/, tokens.h5 and job.toml, which runs in `directory`. Returns the number of parameters."""
    config = plain_config(VOCABULARY, hidden, 3 * hidden, layers, hidden // 64, hidden // 64, sequence)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40_000)
    write_plain_job(directory, config, tokens, sequence, train_batch_size=batch, model__init="random", logging__interval=1)
    return sum(int(np.prod(shape)) for shape in tensor_shapes(config).values())


def read_metrics(directory, output):
    """The records of a run, one a step."""
    with open(os.path.join(directory, output, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]
