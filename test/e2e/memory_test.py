#!/usr/bin/env python3
"""The plan of memory: what a run really takes, and what is refused.

    memory_test.py --train BINARY

At every stage two ranks train a model whose plan is large against everything else; the peak of each rank's own memory
(RssAnon + RssShmem of /proc, read beside the run) lies between the plan's states and the plan + 3 % + 40 MB. Then each
rank gets a limit (ulimit -d) under which stage 3 over four ranks trains and stage 0 is refused with the bytes, and with
what would fit; "auto" finds that by itself. The last line is `N passed, N failed`.
"""

import argparse
import os
import re
import subprocess
import tempfile
import time

import numpy as np

from launch import environment, last_lines, mpirun, overrides
from make_case import write_json, write_tokens
from report import Report

MEMORY = 70  # the exit code of memory that is not to be had
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16000, "hidden_size": 256,
    "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
}
JOB = """\
job_type = "training"
model_name = "model"
output_dir = "out"
train_batch_size = 4
[model]
init = "random"
[checkpoint]
export_hf = false
save_minutes = 0
[data]
train = ["tokens.h5"]
sequence_length = 32
packing = "concat"
[training]
max_steps = 2
[training.optimizer]
lr = 1e-3
"""


def own_memory(pid):
    total = 0
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def run(train, directory, ranks, limit, **settings):
    """(exit code, what it said, peak bytes of each rank). `limit`: bytes of data a rank may have, or None."""
    command = [train, "--config", "job.toml", *overrides({key.replace("__", "."): value for key, value in settings.items()})]
    if limit:
        command = ["bash", "-c", f'ulimit -d {limit // 1024} && exec "$@"', "bash", *command]
    log = os.path.join(directory, "log")
    peaks = {}
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(mpirun((ranks, command)), cwd=directory, env=environment(), stdout=file, stderr=file)
        while process.poll() is None:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if os.readlink(f"/proc/{pid}/cwd") == directory and os.path.samefile(f"/proc/{pid}/exe", train):
                        peaks[pid] = max(peaks.get(pid, 0), own_memory(pid))
                except OSError:
                    continue  # gone meanwhile
            time.sleep(0.02)
    with open(log, encoding="utf-8", errors="replace") as file:
        return process.returncode, file.read(), list(peaks.values())


def planned(text):
    """Bytes of the plan by purpose."""
    table = text[text.index("memory of a rank, bytes"):]
    return {m[1].strip(): int(m[2].replace(",", "")) for m in re.finditer(r"^  ([a-z0-9 ]+?) +([\d,]+)\b", table, re.M)}


class Test(Report):
    def __init__(self, train):
        super().__init__()
        self.train = os.path.abspath(train)

    def measured(self, directory):
        for stage in (0, 1, 2, 3):
            name = f"stage {stage}"
            code, text, peaks = run(self.train, directory, 2, None, output_dir=f"out-{stage}", zero_optimization__stage=stage)
            self.check(name, code == 0 and len(peaks) == 2, last_lines(text))
            if code == 0:
                plan = planned(text)["all"]
                most = plan * 1.03 + 40e6
                # All of the plan is used but what alignment leaves: a plan far above the truth is as wrong as one below.
                for peak in peaks:
                    self.check(name, 0.9 * plan < peak < most, f"{peak:,} bytes were taken, {plan:,} planned")

    def limited(self, directory):
        limit = 330 << 20
        code, text, _ = run(self.train, directory, 4, limit, output_dir="limited-0", zero_optimization__stage=0)
        message = [line for line in text.splitlines() if "error" in line]
        self.check("stage 0 under a limit", code == MEMORY and len(message) == 1, last_lines(text))
        for part in ("does not fit into memory", "ulimit -d", "stage 0 with", "bytes too many", "would fit with"):
            self.check(f"the refusal says {part!r}", message and part in message[0], message)
        for stage in (3, '"auto"'):
            code, text, _ = run(self.train, directory, 4, limit, output_dir=f"limited-{stage}".strip('"'),
                                zero_optimization__stage=stage)
            self.check(f"stage {stage} under a limit", code == 0, last_lines(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    test = Test(parser.parse_args().train)
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        directory = os.path.realpath(directory)
        os.mkdir(os.path.join(directory, "model"))
        write_json(os.path.join(directory, "model", "config.json"), CONFIG)
        tokens = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], 2000)
        write_tokens(os.path.join(directory, "tokens.h5"), [tokens], CONFIG["vocab_size"])
        with open(os.path.join(directory, "job.toml"), "w", encoding="utf-8") as file:
            file.write(JOB)
        test.measured(directory)
        test.limited(directory)
    test.finish()


if __name__ == "__main__":
    main()
