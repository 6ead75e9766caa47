#!/usr/bin/env python3
"""Checkpoints are what docs/files.md says, and any number of ranks goes on from them.

    checkpoint_test.py --train BINARY

A reader of its own (numpy and json) finds the masters in the shards and compares them with the exported weights, bit for
bit; runs saved at N ranks and a stage go on at M ranks and another stage and must stay near the run that nothing
disturbed; `train export` writes what the run itself exports; damage is refused or passed over. The last line is
`N passed, N failed`.
"""

import argparse
import json
import os
import shutil
import tempfile

import numpy as np
from safetensors import safe_open

from launch import mpirun, overrides, run
from make_case import make_case
from report import Report

STEPS, SAVED = 6, 3
# Between world sizes only the order of additions in fp32 differs. A loss is a mean of some hundred terms of order 5:
# 1e-6 relative a step; Adam amplifies differences of small gradients, over three steps by less than ten.
LOSS_TOLERANCE = 1e-5


def to_bf16(values):
    """float32 rounded to bfloat16 (nearest, ties to even), as 16-bit integers."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Checkpoint:
    """Reads shards by the rule of docs/files.md, without the program."""

    def __init__(self, directory):
        with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.layout = manifest["layout"]
        self.ranks = self.layout["ranks"]
        self.shards = [np.fromfile(os.path.join(directory, record["name"]), "<f4") for record in manifest["files"]]

    def section(self, number, unit):
        """All elements of a unit in section 0 (masters), 1 or 2 (moments), padding included."""
        parts, at = [], 0
        for bucket_unit, _, piece in self.layout["buckets"]:
            if bucket_unit == unit:
                for shard in self.shards:
                    start = number * (len(shard) // 3) + at
                    parts.append(shard[start:start + piece])
            at += piece
        return np.concatenate(parts)

    def parameters(self, number=0):
        found = {}
        for index, unit in enumerate(self.layout["units"]):
            values = self.section(number, index)
            for parameter in unit["parameters"]:
                count = int(np.prod(parameter["shape"]))
                found[parameter["name"]] = values[parameter["offset"]:parameter["offset"] + count].reshape(parameter["shape"])
        return found


def read_export(directory):
    """Tensors as their bits: float32 as it is, bfloat16 as 16-bit integers."""
    path = os.path.join(directory, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    with safe_open(path, "np") as file:  # the library finds nothing wrong with it either
        assert set(file.keys()) == set(header)
    kinds = {"F32": np.float32, "BF16": np.uint16}
    return {name: np.frombuffer(data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]],
                                kinds[entry["dtype"]]).reshape(entry["shape"]) for name, entry in header.items()}


class Tests(Report):
    def __init__(self, train, folder):
        super().__init__()
        self.train, self.folder = train, folder
        make_case(folder, "qwen3", np.random.default_rng(5), vocab_size=256, tie_word_embeddings=True)

    def job(self, out, ranks, **settings):
        changed = {"output_dir": out, "train_batch_size": 12, "training.max_steps": STEPS,
                   "checkpoint.save_interval": SAVED, "checkpoint.keep_last": 0, "logging.interval": 1}
        changed |= {key.replace("__", "."): value for key, value in settings.items()}
        return run(mpirun((ranks, [self.train, "--config", "job.toml", *overrides(changed)])), self.folder)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def losses(self, out):
        with open(self.path(out, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line)["loss"] for line in file]

    def copy_at_saved(self, source, target):
        """As if the run had been stopped right after its checkpoint of step SAVED."""
        shutil.copytree(self.path(source), self.path(target))
        shutil.rmtree(self.path(target, "checkpoints", f"step-{STEPS:08}"))
        shutil.rmtree(self.path(target, "hf"))

    def independent_reader(self):
        for ranks, stage, bf16, bucket in [
            (1, 1, False, "auto"), (2, 1, False, 1000), (3, 1, True, 777), (2, 0, True, 5000), (2, 2, True, 900),
            (3, 3, False, 700), (2, 3, True, "auto"),
        ]:
            name = f"reader-{ranks}-{stage}-{bf16}-{bucket}"
            result = self.job(name, ranks, zero_optimization__stage=stage, bf16__enabled=bf16,
                              zero_optimization__reduce_bucket_size=bucket)
            self.check(name, result.code == 0, result.said[-500:])
            masters = Checkpoint(self.path(name, "checkpoints", f"step-{STEPS:08}")).parameters()
            exported = read_export(self.path(name, "hf"))
            self.check(name, set(masters) == set(exported), set(masters) ^ set(exported))
            for key, value in masters.items():
                want = to_bf16(value) if bf16 else value
                self.check(f"{name} {key}", np.array_equal(exported[key], want), "the export is not the masters, rounded")
            moments = Checkpoint(self.path(name, "checkpoints", f"step-{STEPS:08}")).parameters(2)
            self.check(f"{name} second moments", all((value >= 0).all() and value.any() for value in moments.values()))

    def any_layout(self):
        for ranks, stage in [(1, 0), (2, 1), (3, 1), (2, 2), (4, 3)]:
            source = f"from-{ranks}-{stage}"
            self.check(source, self.job(source, ranks, zero_optimization__stage=stage).code == 0)
            want = self.losses(source)
            for other_ranks, other_stage, bucket in [
                (1, 1, 999), (2, 0, "auto"), (3, 1, 5000), (2, 3, 500), (4, 2, 777), (1, 3, "auto"),
            ]:
                name = f"{source}-to-{other_ranks}-{other_stage}"
                self.copy_at_saved(source, name)
                result = self.job(name, other_ranks, zero_optimization__stage=other_stage,
                                  zero_optimization__reduce_bucket_size=bucket)
                self.check(name, result.code == 0, result.said[-500:])
                got = self.losses(name)
                worst = max(abs(a - b) / b for a, b in zip(got, want))
                self.check(name, len(got) == STEPS and worst < LOSS_TOLERANCE, f"{got} instead of {want}")
                # The same additions in the same order: stages 2 and 3 add up each micro-batch's sum over the ranks.
                if other_ranks == ranks and (stage >= 2) == (other_stage >= 2):
                    self.check(f"{name} bits", got == want, f"{got} instead of {want}")
                    same = all(np.array_equal(a, b) for a, b in zip(read_export(self.path(name, "hf")).values(),
                                                                     read_export(self.path(source, "hf")).values()))
                    self.check(f"{name} weights", same)

    def resolved_job(self):
        """job.resolved.toml reproduces the run, bit for bit."""
        job = [self.train, "--config", self.path("from-2-1", "job.resolved.toml"), *overrides({"output_dir": "again"})]
        result = run(mpirun((2, job)), self.folder)
        self.check("resolved job", result.code == 0, result.said[-500:])
        self.check("resolved job: losses", self.losses("again") == self.losses("from-2-1"))
        first, second = (read_export(self.path(name, "hf")) for name in ("from-2-1", "again"))
        self.check("resolved job: weights", all(np.array_equal(first[key], second[key]) for key in first))

    def export_command(self):
        source = self.path("from-2-1", "checkpoints", f"step-{STEPS:08}")
        result = run([self.train, "export", source, self.path("exported")], self.folder)
        self.check("export", result.code == 0, result.said)
        with open(self.path("exported", "model.safetensors"), "rb") as a:
            with open(self.path("from-2-1", "hf", "model.safetensors"), "rb") as b:
                self.check("export", a.read() == b.read(), "differs from what the run exported")

    def damage(self):
        newest, older = (f"step-{step:08}" for step in (STEPS, SAVED))
        shard = "shard-00000-of-00002.bin"

        def damaged(name, change):
            shutil.copytree(self.path("from-2-1"), self.path(name))
            change(self.path(name, "checkpoints", newest))
            return self.job(name, 2)

        result = damaged("cut", lambda path: os.truncate(os.path.join(path, shard), 100))
        self.check("a cut shard: the older checkpoint is used", result.code == 0 and older in result.said and
                   "warning" in result.said, result.said)
        self.check("a cut shard: the same curve", self.losses("cut") == self.losses("from-2-1"))
        result = damaged("no manifest", lambda path: os.remove(os.path.join(path, "manifest.json")))
        self.check("no manifest: the older checkpoint is used", result.code == 0 and older in result.said, result.said)

        def flip(path):
            with open(os.path.join(path, shard), "r+b") as file:
                file.seek(64)
                byte = file.read(1)
                file.seek(64)
                file.write(bytes([byte[0] ^ 1]))

        result = damaged("flipped", flip)
        self.check("a flipped bit is refused", result.code == 65 and shard in result.said, result.said)
        result = self.job("other model", 1, checkpoint__resume=self.path("from-2-1", "checkpoints", newest),
                          model_name=self.other_model())
        self.check("another model is refused", result.code == 65 and "another model" in result.said, result.said)

    def other_model(self):
        folder = self.path("other")
        os.makedirs(folder)
        make_case(folder, "llama", np.random.default_rng(6), vocab_size=256)
        return os.path.join(folder, "model")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(os.path.abspath(options.train), folder)
        tests.independent_reader()
        tests.any_layout()
        tests.resolved_job()
        tests.export_command()
        tests.damage()
    tests.finish()


if __name__ == "__main__":
    main()
