#!/usr/bin/env python3
"""A run that is killed and started again ends with the same bits as one that nothing disturbed.

    resume_test.py --train BINARY [--quick]

For several layouts (ranks, stage): a reference run; then for every step a run of which every process is killed
(kill -9) as soon as the record of that step is in metrics.jsonl, runs killed at times by chance, and one killed several
times; each is started again until it ends. Weights (hf/) must then be equal byte for byte, and metrics.jsonl must be
equal but for times and memory. --quick: fewer kills. The last line is `N passed, N failed`.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time

import numpy as np

from launch import Launch, last_lines, mpirun, overrides, run
from make_case import make_case, write_job

STEPS = 7
MEASURED = ("time", "step_seconds", "tokens_per_second", "memory")
TIMEOUT = 120  # seconds of a run, which takes about two


def make_job(directory):
    """A job in which everything that a resumed run must restore has an effect: shuffled rows in batches that cross
    epochs, a schedule, moments, accumulation, evaluations; a checkpoint every other step, so that steps are repeated."""
    rng = np.random.default_rng(7)
    small = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
    make_case(directory, "qwen3", rng, documents=20, longest=90, **small)
    write_job(
        os.path.join(directory, "job.toml"),
        {
            "model_name": "model",
            "output_dir": "out",
            "device": "cpu",
            "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": "auto",
            "bf16.enabled": False,
            "data.train": ["tokens.h5"],
            "data.eval": ["tokens.h5"],
            "data.sequence_length": 32,
            "data.packing": "documents",
            "data.shuffle": True,
            "training.max_steps": STEPS,
            "training.eval_interval": 3,
            "training.optimizer.lr": 3e-3,
            "training.optimizer.weight_decay": 0.1,
            "training.lr_scheduler.type": "cosine",
            "training.lr_scheduler.warmup_steps": 2,
            "checkpoint.save_interval": 2,
            "checkpoint.resume": "auto",
        },
    )


def recorded_steps(out):
    """Steps with a whole record in metrics.jsonl."""
    try:
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return json.loads(lines[-1])["step"] if lines else 0


def outcome(out):
    """What must be equal: records without measurements (numbers as they are written), and the bytes of hf/."""
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line, parse_float=str) for line in file]
    records = [{key: value for key, value in record.items() if key not in MEASURED} for record in records]
    files = {}
    for name in sorted(os.listdir(os.path.join(out, "hf"))):
        with open(os.path.join(out, "hf", name), "rb") as file:
            files[name] = file.read()
    return records, files


def difference(got, want):
    """None, or the first thing that differs."""
    for number, (g, w) in enumerate(zip(got[0], want[0]), 1):
        if g != w:
            return f"record {number} of metrics.jsonl is {g} instead of {w}"
    if len(got[0]) != len(want[0]):
        return f"metrics.jsonl has {len(got[0])} records instead of {len(want[0])}"
    if list(got[1]) != list(want[1]):
        return f"hf/ holds {list(got[1])} instead of {list(want[1])}"
    for name, data in want[1].items():
        if got[1][name] != data:
            unequal = sum(a != b for a, b in zip(got[1][name], data))
            return f"hf/{name} differs in {unequal} of {len(data)} bytes (it has {len(got[1][name])})"
    return None


class Layout:
    """The job with so many ranks and a stage."""

    def __init__(self, train, directory, ranks, stage):
        self.directory, self.out = directory, os.path.join(directory, "out")
        self.name = f"ranks={ranks} stage={stage}"
        job = [train, "--config", "job.toml", *overrides({"zero_optimization.stage": stage})]
        self.command = mpirun((ranks, job))

    def clean(self):
        shutil.rmtree(self.out, ignore_errors=True)

    def kill_when(self, ready):
        """Starts the job and kills it when ready() says so. True if it had not ended by itself before."""
        job = Launch(self.command, self.directory)
        start = time.monotonic()
        while not ready() and job.process.poll() is None and time.monotonic() - start < TIMEOUT:
            time.sleep(0.001)
        running = job.process.poll() is None
        job.kill()
        return running

    def finish(self):
        """Runs to the end. None, or what is wrong."""
        result = run(self.command, self.directory, timeout=TIMEOUT)
        if result.code != 0:
            return f"started again: exit code {result.code}\n{last_lines(result.said)}"
        return None

    def compare_after(self, want, *kills):
        """None, or what is wrong after these kills in a row."""
        self.clean()
        for ready in kills:
            self.kill_when(ready)
        return self.finish() or difference(outcome(self.out), want)


def after_step(layout, step):
    return lambda: recorded_steps(layout.out) >= step


def after_seconds(seconds):
    start = None

    def ready():
        nonlocal start
        start = start or time.monotonic()
        return time.monotonic() - start >= seconds

    return ready


def cases_of(layout, seconds, quick):
    """(name, kills) of one layout. `seconds`: how long an undisturbed run takes."""
    chance = random.Random(layout.name)
    for step in [2, STEPS] if quick else range(1, STEPS + 1):
        yield f"killed after step {step}", [after_step(layout, step)]
    for _ in range(1 if quick else 6):
        at = chance.uniform(0.1, 1.1) * seconds
        yield f"killed after {at:.2f} s", [after_seconds(at)]
    if not quick:
        yield "killed after steps 2, 3, 4, 6", [after_step(layout, step) for step in (2, 3, 4, 6)]
        yield "killed five times", [after_seconds(chance.uniform(0.3, 1.0) * seconds) for _ in range(5)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    passed = failed = 0

    def report(name, wrong):
        nonlocal passed, failed
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"FAIL {name}: {wrong}", flush=True)

    with tempfile.TemporaryDirectory(prefix="resume-") as directory:
        make_job(directory)
        for ranks, stage in [(1, 1), (2, 1)] if options.quick else [(1, 1), (2, 0), (2, 1)]:
            layout = Layout(os.path.abspath(options.train), directory, ranks, stage)
            layout.clean()
            start = time.monotonic()
            wrong = layout.finish()
            seconds = time.monotonic() - start
            if wrong:
                report(f"{layout.name} undisturbed", wrong)
                continue
            want = outcome(layout.out)
            # A job that has ended and is started once more says so and changes nothing.
            report(f"{layout.name} started after its end", layout.finish() or difference(outcome(layout.out), want))
            for name, kills in cases_of(layout, seconds, options.quick):
                report(f"{layout.name} {name}", layout.compare_after(want, *kills))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
