"""A job that is disturbed and started again, and what of it must be equal to a run that nothing disturbs."""

import json
import os
import shutil
import time

import h5py
import numpy as np

from launch import Launch, last_lines, mpirun, overrides, run
from make_case import make_case, write_job

STEPS = 7
MEASURED = ("time", "tokens_per_second", "memory")  # and every key that ends in _seconds
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
    records = [{key: value for key, value in record.items() if key not in MEASURED and not key.endswith("_seconds")}
               for record in records]
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


def log_probs(path):
    """Everything in a log-prob file. (Its bytes hold times too.)"""
    with h5py.File(path) as file:
        return dict(file.attrs), {name: (data.dtype, data[()].tobytes()) for name, data in file.items()}


def written(path):
    """Whether a partial log-prob file has values yet."""
    try:
        with h5py.File(path) as file:
            return bool(np.any(file["log_probs"][()]))  # zeros at first; no probability is 1
    except OSError:
        return False  # not there yet


class Layout:
    """The job with so many ranks, a stage and further settings."""

    def __init__(self, train, directory, ranks, stage, **settings):
        self.train, self.directory, self.out = train, directory, os.path.join(directory, "out")
        self.name = f"ranks={ranks} stage={stage}"
        job = [train, "--config", "job.toml", *overrides({"zero_optimization.stage": stage} | settings)]
        self.command = mpirun((ranks, job))

    def clean(self):
        shutil.rmtree(self.out, ignore_errors=True)

    def disturb_when(self, ready, disturb, log=None):
        """Starts the job and calls disturb(job) when ready() says so and the job has not ended by itself before. The
        job, running or not; `log`: a file for what it says."""
        job = Launch(self.command, self.directory, log=log)
        start = time.monotonic()
        while not ready() and job.process.poll() is None and time.monotonic() - start < TIMEOUT:
            time.sleep(0.001)
        if job.process.poll() is None:
            disturb(job)
        return job

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
            self.disturb_when(ready, Launch.kill).wait(TIMEOUT)
        return self.finish() or difference(outcome(self.out), want)


def after_step(layout, step):
    return lambda: recorded_steps(layout.out) >= step
