#!/usr/bin/env python3
"""Bad input at two ranks: one message that says what and where, the right exit code, nobody left, nothing half-written.

    bad_input_test.py --train BINARY [--slower FACTOR] [NAME ...]

Each case spoils one thing of a small job that runs. Then exactly one line of all that the ranks print may be an error,
and it holds the parts that the case gives; mpirun ends with the exit code of the design; two seconds after the message
no rank is left (FACTOR times that with sanitizers); the output directory holds no half-written file. `train check` refuses
the same with the same code, unless it is the ranks that disagree.
NAME: only the cases whose name contains it. The last line is `N passed, N failed`, with `, N skipped` where something
cannot be tried (a read-only mount needs root).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

from launch import MESSAGE, Launch, environment, last_lines, mpirun
from make_case import (
    make_case,
    safetensors_parts,
    write_json,
    write_model,
    write_safetensors,
    write_tokens,
)

RANKS = 2
USAGE, BAD_DATA, MISSING, CANNOT_WRITE, DISAGREE = 64, 65, 66, 73, 76
GONE_SECONDS = 2
RUN_SECONDS = 60  # a run that says nothing is given up after so long

CONFIG = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rope_scaling": None}
CONFIG |= {"vocab_size": 128, "num_hidden_layers": 2, "tie_word_embeddings": False, "attention_bias": False}
DOWN = "model.layers.1.mlp.down_proj.weight"


class Skip(Exception):
    """This machine cannot try the case."""


class Case:
    """The small job in a directory of its own, to be spoilt."""

    def __init__(self, directory):
        self.directory = directory
        self.config, self.weights = make_case(directory, "llama", np.random.default_rng(3), **CONFIG)
        self.arguments = ["--config", "job.toml"]
        self.others = None  # arguments of the second rank, where they differ
        self.cleanups = []

    def path(self, *names):
        return os.path.join(self.directory, *names)

    # --------------------------------------------------------------------------------- ways to spoil

    def set(self, *settings):
        for setting in settings:
            self.arguments += ["--set", setting]

    def edit_job(self, old, new):
        """Returns file:line of the change."""
        with open(self.path("job.toml"), encoding="utf-8") as file:
            text = file.read()
        assert text.count(old) == 1, old
        with open(self.path("job.toml"), "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))
        return f"job.toml:{text[: text.index(old)].count(chr(10)) + 1}"

    def edit_config(self, **changed):
        write_json(self.path("model", "config.json"), self.config | changed)

    def edit_weights(self, **changed):
        """None removes a tensor."""
        weights = {name: value for name, value in (self.weights | changed).items() if value is not None}
        write_model(self.path("model"), self.config, weights)

    def edit_header(self, edit):
        """edit(header, data) -> the header (a dictionary or text), or (header, data)."""
        header, data = safetensors_parts(self.weights)
        edited = edit(header, data)
        header, data = edited if isinstance(edited, tuple) else (edited, data)
        write_safetensors(self.path("model", "model.safetensors"), header, data)

    def write_tokens(self, documents, **attributes):
        documents = [np.asarray(document) for document in documents]
        write_tokens(self.path("tokens.h5"), documents, self.config["vocab_size"], **attributes)

    def truncate(self, name, share):
        path = self.path(*name.split("/"))
        os.truncate(path, int(os.path.getsize(path) * share))

    def read_only_mount(self):
        if os.getuid() != 0:
            raise Skip("a read-only mount needs root")
        target = self.path("mounted")
        os.mkdir(target)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", target], capture_output=True).returncode:
            raise Skip("this machine lets nobody mount")
        self.cleanups.append(lambda: subprocess.run(["umount", "-l", target], check=True))
        self.set("output_dir=mounted/out")

    def shards(self, absent=False):
        """The weights in two files with an index, which may name one that is not there."""
        folder = self.path("model")
        os.remove(os.path.join(folder, "model.safetensors"))
        names = list(self.weights)
        files = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
        for file, held in files.items():
            parts = safetensors_parts({name: self.weights[name] for name in held})
            if not (absent and file.startswith("model-00002")):
                write_safetensors(os.path.join(folder, file), *parts)
        index = {"metadata": {}, "weight_map": {name: file for file, held in files.items() for name in held}}
        write_json(os.path.join(folder, "model.safetensors.index.json"), index)


# ------------------------------------------------------------------------------------------ the table

CASES = {}


def case(name, code, *parts):
    """Registers a function that spoils a Case; it may return more parts that the message must hold."""

    def register(spoil):
        CASES[name] = (spoil, code, parts)
        return spoil

    return register


def simple(name, code, parts, spoil):
    CASES[name] = (spoil, code, parts)


# The job file.


@case("misspelt key", USAGE, "max_step", "max_steps", "job.toml")
def _(c):
    return [c.edit_job('max_steps = 4', 'max_step = 4')]


@case("wrong type", USAGE, "sequence_length", "long")
def _(c):
    return [c.edit_job('sequence_length = 32', 'sequence_length = "long"')]


@case("out of range", USAGE, "training.optimizer.lr", "-0.5")
def _(c):
    return [c.edit_job('lr = 0.003', 'lr = -0.5')]


@case("not TOML", USAGE, "job.toml")
def _(c):
    return [c.edit_job('max_steps = 4', 'max_steps = = 4')]


simple("misspelt key on the command line", USAGE, ["training.max_step", "training.max_steps", "--set"],
       lambda c: c.set("training.max_step=3"))
simple("unknown choice", USAGE, ["data.packing", "tight", "best_fit"], lambda c: c.set("data.packing=tight"))
simple("batch that does not divide", USAGE, ["train_batch_size", "5", "2"], lambda c: c.set("train_batch_size=5"))
simple("missing job file", MISSING, ["absent.toml"], lambda c: c.arguments.__setitem__(1, "absent.toml"))
simple("no data", USAGE, ["data.train"], lambda c: c.set("data.train=[]"))
simple("no sequence length", USAGE, ["data.sequence_length"], lambda c: c.set("data.sequence_length=0"))

# The model directory.

simple("missing model directory", MISSING, ["model_name", "models/absent"], lambda c: c.set("model_name=models/absent"))
simple("no weights", MISSING, ["model", "safetensors"], lambda c: os.remove(c.path("model", "model.safetensors")))
simple("no config.json", MISSING, ["config.json"], lambda c: os.remove(c.path("model", "config.json")))
simple("broken config.json", BAD_DATA, ["config.json"], lambda c: c.truncate("model/config.json", 0.5))
simple("missing tensor", BAD_DATA, [DOWN, "model"], lambda c: c.edit_weights(**{DOWN: None}))
simple("extra tensor", BAD_DATA, ["model.layers.7.extra.weight"],
       lambda c: c.edit_weights(**{"model.layers.7.extra.weight": np.ones(3, np.float32)}))
simple("wrong shape", BAD_DATA, [DOWN], lambda c: c.edit_weights(**{DOWN: np.ascontiguousarray(c.weights[DOWN].T)}))
simple("absent shard", MISSING, ["model-00002-of-00002.safetensors"], lambda c: c.shards(absent=True))
simple("unsupported architecture", BAD_DATA, ["model_type", "gpt2"],
       lambda c: c.edit_config(architectures=["GPT2LMHeadModel"], model_type="gpt2"))
simple("unsupported rope type", BAD_DATA, ["longrope"],
       lambda c: c.edit_config(rope_scaling={"rope_type": "longrope", "factor": 2.0}))
simple("unsupported activation", BAD_DATA, ["hidden_act", "gelu"], lambda c: c.edit_config(hidden_act="gelu"))
simple("quantised model", BAD_DATA, ["quantization_config"],
       lambda c: c.edit_config(quantization_config={"quant_method": "gptq", "bits": 4}))
simple("dropout", BAD_DATA, ["attention_dropout"], lambda c: c.edit_config(attention_dropout=0.1))
simple("huge size in config.json", BAD_DATA, ["model"], lambda c: c.edit_config(hidden_size=2**60, head_dim=2**58))

# The safetensors file.

simple("truncated safetensors", BAD_DATA, ["model.safetensors"], lambda c: c.truncate("model/model.safetensors", 0.7))
simple("safetensors cut in its header", BAD_DATA, ["model.safetensors"],
       lambda c: os.truncate(c.path("model", "model.safetensors"), 100))
simple("safetensors of 4 bytes", BAD_DATA, ["model.safetensors"],
       lambda c: os.truncate(c.path("model", "model.safetensors"), 4))


@case("header of huge length", BAD_DATA, "model.safetensors")
def _(c):
    with open(c.path("model", "model.safetensors"), "r+b") as file:
        file.write(struct.pack("<Q", 2**63 + 7))


def moved(header, begin, end):
    """The header with the bounds of DOWN moved by so many bytes."""
    offsets = header[DOWN]["data_offsets"]
    return header | {DOWN: header[DOWN] | {"data_offsets": [offsets[0] + begin, offsets[1] + end]}}


simple("overlapping tensors", BAD_DATA, ["model.safetensors"], lambda c: c.edit_header(lambda h, d: moved(h, -8, -8)))
simple("offsets that do not fit the shape", BAD_DATA, ["model.safetensors", DOWN],
       lambda c: c.edit_header(lambda h, d: moved(h, 0, -4)))
simple("offsets beyond the end", BAD_DATA, ["model.safetensors"],
       lambda c: c.edit_header(lambda h, d: moved(h, 2**40, 2**40)))
simple("offsets in the wrong order", BAD_DATA, ["model.safetensors", DOWN],
       lambda c: c.edit_header(lambda h, d: moved(h, 2**20, 0)))
simple("bytes after the last tensor", BAD_DATA, ["model.safetensors"],
       lambda c: c.edit_header(lambda h, d: (h, d + b"more")))
simple("unknown dtype", BAD_DATA, ["F7_E1", DOWN],
       lambda c: c.edit_header(lambda h, d: h | {DOWN: h[DOWN] | {"dtype": "F7_E1"}}))
simple("negative shape", BAD_DATA, ["model.safetensors"],
       lambda c: c.edit_header(lambda h, d: h | {DOWN: h[DOWN] | {"shape": [-1, 48]}}))
simple("shape whose product overflows", BAD_DATA, ["model.safetensors"],
       lambda c: c.edit_header(lambda h, d: h | {DOWN: h[DOWN] | {"shape": [2**33, 2**33]}}))
simple("tensor named twice", BAD_DATA, ["model.safetensors", DOWN],
       lambda c: c.edit_header(lambda h, d: json.dumps(h)[:-1] + f', "{DOWN}": {json.dumps(h[DOWN])}}}'))
simple("deep JSON in the header", BAD_DATA, ["model.safetensors"],
       lambda c: c.edit_header(lambda h, d: '{"a":' + "[" * 1_000_000 + "]" * 1_000_000 + "}"))
simple("header that is no JSON", BAD_DATA, ["model.safetensors"],
       lambda c: c.edit_header(lambda h, d: json.dumps(h)[:-9] + "        "))

# The data.


@case("id beyond the vocabulary", BAD_DATA, "tokens.h5", "128", "1234")
def _(c):
    tokens = np.arange(3000) % 128
    tokens[1234] = 128
    c.write_tokens([tokens])
    c.set("training.max_steps=20")


simple("empty data", BAD_DATA, ["tokens.h5"], lambda c: c.write_tokens([[]]))
simple("data without documents", BAD_DATA, ["tokens.h5"], lambda c: c.write_tokens([]))
simple("data shorter than a row", BAD_DATA, ["32", "20"], lambda c: c.write_tokens([np.arange(20)]))
simple("document too long for a row", BAD_DATA, ["too_long", "100"],
       lambda c: (c.write_tokens([np.arange(20), np.arange(100)]), c.set("data.packing=pad")) and None)
simple("file of another format", BAD_DATA, ["tokens.h5", "tessera.rollouts"],
       lambda c: c.write_tokens([np.arange(99)], format="tessera.rollouts"))
simple("file of a later version", BAD_DATA, ["tokens.h5", "99"],
       lambda c: c.write_tokens([np.arange(99)], format_version=99))
simple("truncated HDF5", BAD_DATA, ["tokens.h5"], lambda c: c.truncate("tokens.h5", 0.6))
simple("missing data file", MISSING, ["absent.h5"], lambda c: c.set('data.train=["absent.h5"]'))
simple("pattern that matches nothing", MISSING, ["none-*.h5"], lambda c: c.set('data.train=["none-*.h5"]'))


@case("not HDF5", BAD_DATA, "tokens.h5")
def _(c):
    with open(c.path("tokens.h5"), "wb") as file:
        file.write(b"no HDF5 at all\n" * 1000)


@case("offsets of documents beyond the tokens", BAD_DATA, "tokens.h5", "1099511627776")
def _(c):
    import h5py

    c.write_tokens([np.arange(99)])
    with h5py.File(c.path("tokens.h5"), "r+") as file:
        file["offsets"][1] = 2**40


# Scoring.


@case("log_prob: longer than the model's positions", BAD_DATA, "300", "256")
def _(c):
    c.write_tokens([np.arange(20), np.arange(300) % 128])
    c.set("job_type=log_prob")


@case("log_prob: id beyond the vocabulary", BAD_DATA, "tokens.h5", "128", "21")
def _(c):
    c.write_tokens([np.arange(20), np.array([1, 128, 2])])
    c.set("job_type=log_prob")


simple("log_prob: no data", USAGE, ["log_prob.data"], lambda c: c.set("job_type=log_prob", "log_prob.data=[]"))

# The place, and the other rank.

simple("read-only output directory", CANNOT_WRITE, ["mounted/out"], Case.read_only_mount)


@case("a rank that disagrees", DISAGREE, "rank 1")
def _(c):
    with open(c.path("job.toml"), encoding="utf-8") as file:
        text = file.read()
    with open(c.path("other.toml"), "w", encoding="utf-8") as file:
        file.write(text.replace("max_steps = 4", "max_steps = 5"))
    c.others = ["--config", "other.toml"]


@case("a rank with another override", DISAGREE, "rank 1")
def _(c):
    c.others = [*c.arguments, "--set", "seed=43"]


# --------------------------------------------------------------------------------------------- a run


def read_outputs(directory):
    """All that the ranks have printed so far."""
    text = ""
    for folder, _, names in sorted(os.walk(directory)):
        for name in sorted(names):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                text += file.read()
    return text


def half_written(output):
    """What a run that failed must not leave behind."""
    found = []
    for folder, folders, names in os.walk(output):
        here = os.path.relpath(folder, output)
        found += [os.path.join(here, name) for name in folders if name == "hf" or name.startswith("step-")]
        for name in names:
            path = os.path.join(folder, name)
            if name in ("metrics.jsonl", "job.resolved.toml"):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                if not text or text.endswith("\n"):
                    continue  # whole lines
            # The lock may stay, and so may what a resumed log_prob job goes on from: neither is taken for a result.
            if not name.endswith((".log", ".lock", ".partial")):
                found.append(os.path.join(here, name))
    return sorted(found)


def run_case(train, directory, name, slower):
    """None, or what is wrong."""
    spoil, code, parts = CASES[name]
    c = Case(directory)
    try:
        more = spoil(c)
        parts = list(parts) + (more if isinstance(more, list) else [])
        said = os.path.join(directory, "said")
        programs = [(RANKS, [train, *c.arguments])]
        if c.others:
            programs = [(1, [train, *c.arguments]), (1, [train, *c.others])]
        job = Launch(mpirun(*programs, output=said), directory, log=os.path.join(directory, "mpirun.log"))
        try:
            wrong = watch(job, said, slower)
        finally:
            job.kill()
        text = read_outputs(said)
        messages = [line for line in text.splitlines() if MESSAGE.search(line)]
        if len(messages) != 1:
            wrong.append(f"{len(messages)} messages instead of one")
        else:
            wrong += [f"the message does not say {part!r}" for part in parts if part not in messages[0]]
        if job.process.returncode != code:
            wrong.append(f"exit code {job.process.returncode} instead of {code}")
        left = half_written(c.path("out"))
        if left:
            wrong.append(f"left in the output directory: {', '.join(left)}")
        if not c.others:
            checked = subprocess.run([train, "check", *c.arguments, "--ranks", str(RANKS)], cwd=directory, check=False,
                                     env=environment(), capture_output=True, text=True, timeout=RUN_SECONDS * slower)
            if checked.returncode != code or any(part not in checked.stderr for part in parts):
                wrong.append(f"check ends with {checked.returncode} and says {checked.stderr!r}")
        if wrong:
            with open(os.path.join(directory, "mpirun.log"), encoding="utf-8", errors="replace") as file:
                text += file.read()
            return "; ".join(wrong) + "\n" + last_lines(text)
        return None
    finally:
        for cleanup in c.cleanups:
            cleanup()


def watch(job, said, slower):
    """Waits for the message, then for the ranks and for mpirun to leave. What took too long."""
    start = time.monotonic()
    while not MESSAGE.search(read_outputs(said)):
        if job.process.poll() is not None:
            return []  # ended; the message may have come since
        if time.monotonic() - start > RUN_SECONDS * slower:
            return [f"no message within {RUN_SECONDS * slower:.0f} s"]
        time.sleep(0.01)
    spoken = time.monotonic()
    while job.ranks():
        if time.monotonic() - spoken > GONE_SECONDS * slower:
            return [f"{len(job.ranks())} processes are left {GONE_SECONDS * slower:.0f} s after the message"]
        time.sleep(0.01)
    try:  # mpirun itself takes its time to clean up
        job.process.wait(30)
    except subprocess.TimeoutExpired:
        return ["mpirun does not end"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--slower", type=float, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    train = os.path.abspath(options.train)
    names = [name for name in CASES if not options.names or any(part in name for part in options.names)]
    counts = collections.Counter()

    def run_and_report(name):
        directory = tempfile.mkdtemp(prefix="bad-input-")
        try:
            wrong = run_case(train, directory, name, options.slower)
            return ("failed", f"FAIL {name}: {wrong}") if wrong else ("passed", None)
        except Skip as reason:
            return "skipped", f"skipped {name}: {reason}"
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    # Side by side, as most of the time is mpirun's own waiting.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict, line in pool.map(run_and_report, names):
            counts[verdict] += 1
            if line:
                print(line, flush=True)
    passed, failed, skipped = (counts[verdict] for verdict in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
