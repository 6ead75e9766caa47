#!/usr/bin/env python3
"""Runs the golden cases with `train` and compares with check.py of the cases.

    goldens.py --train BINARY --cases DIR (--as-they-stand | --pairwise | --all) [--cuda LIBRARY] [NAME ...]

--as-they-stand   each job as the case has it, at each of its ranks
--pairwise        every pair of values of every two of the settings that change nothing (below)
--all             all their combinations, without those of micro-batches and buckets
--cuda LIBRARY    on the device of this backend: the emulated one of the tests, or the product's
--most-ranks N    only runs of at most N ranks: a GPU takes one
NAME              only the cases whose directory contains it

The settings: ranks of the case, threads 1 and 2, fused or composed kernels, flash or eager attention, gradient
checkpointing or not, stages 0 to 3 (log_prob: 1 and 3), the run resumed from its middle or not, micro-batches, small buckets, and the
overrides that the case names. A line for each failure; the last line is `N passed, N failed`.
"""

import argparse
import concurrent.futures
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import tomllib
import zlib

from launch import last_lines, mpirun, overrides, run

TIMEOUT = 300  # seconds a run; the cases take about one


# -------------------------------------------------------------------------------------- combinations


def settings_of(case, job, kind, cuda):
    """Setting -> its values for one job of a case."""
    settings = {
        "ranks": case.get("ranks", [1, 2]),
        "threads": [1, 2],
        "fused": [True] if cuda else [True, False],  # the GPU has no composed kernels
        "attention": ["flash"] if cuda else ["flash", "eager"],
        "holds_with": [None] + case.get("holds_with", []),
    }
    if kind == "training":
        batch = job["train_batch_size"]
        # Micro-batches of two sequences where every world size of the case divides the batch so.
        divides = all(batch % (2 * ranks) == 0 for ranks in settings["ranks"])
        settings |= {
            "checkpointing": [True, False],
            "stage": [0, 1, 2, 3],
            "resumed": [False, True],
            "micro": [None, 2] if divides else [None],
            "bucket": [None, 1000],
        }
    else:
        settings |= {"stage": [1, 3]}
    return {name: values for name, values in settings.items() if len(values) > 1 or name == "ranks"}


def all_combinations(settings):
    for values in itertools.product(*settings.values()):
        yield dict(zip(settings, values))


def pairs_of(combination):
    return set(itertools.combinations(sorted((name, repr(value)) for name, value in combination.items()), 2))


def pairwise_combinations(settings, seed):
    """Few combinations that hold every pair of values of every two settings: each is the best of some by chance."""
    names, chance = list(settings), random.Random(seed)
    left = set()
    for one, other in itertools.combinations(names, 2):
        for values in itertools.product(settings[one], settings[other]):
            left |= pairs_of(dict(zip((one, other), values)))
    if len(names) == 1:
        yield from all_combinations(settings)
    while left:
        wanted = dict(chance.choice(sorted(left)))  # at least this pair is new
        tries = []
        for _ in range(40):
            combination = {name: chance.choice(values) for name, values in settings.items()}
            combination |= {name: value for name in wanted for value in settings[name] if repr(value) == wanted[name]}
            tries.append(combination)
        best = max(tries, key=lambda combination: len(pairs_of(combination) & left))
        left -= pairs_of(best)
        yield best


def key_overrides(combination):
    """The overrides of the job for a combination."""
    keys = {
        "fused": "model.fused_kernels",
        "attention": "model.attn_implementation",
        "checkpointing": "model.enable_gradient_checkpointing",
        "stage": "zero_optimization.stage",
        "micro": "train_micro_batch_size_per_gpu",
        "bucket": "zero_optimization.reduce_bucket_size",
    }
    found = {key: combination[name] for name, key in keys.items() if combination.get(name) is not None}
    if combination.get("micro") is not None:
        found["gradient_accumulation_steps"] = "auto"  # a case may say its own
    return found


def in_words(combination):
    return " ".join(f"{name}={value}" for name, value in combination.items() if value is not None)


# ------------------------------------------------------------------------------------------ one run


def read_records(path):
    with open(path, encoding="utf-8") as file:
        return [line for line in file if line.strip()]


def stop_in_the_middle(out, middle):
    """Makes a finished run's directory what it was when the checkpoint of step `middle` had just been written."""
    shutil.rmtree(os.path.join(out, "hf"), ignore_errors=True)
    checkpoints = os.path.join(out, "checkpoints")
    kept = None
    for name in os.listdir(checkpoints):
        step = re.fullmatch(r"step-(\d+)", name)
        if step and int(step[1]) > middle:
            shutil.rmtree(os.path.join(checkpoints, name))
        elif step and int(step[1]) == middle:
            kept = name
    if kept is None:
        raise RuntimeError(f"no checkpoint of step {middle} in {sorted(os.listdir(checkpoints))}")
    latest = os.path.join(checkpoints, "latest")
    if os.path.islink(latest):
        os.remove(latest)
        os.symlink(kept, latest)
    else:
        with open(latest, encoding="utf-8") as file:
            text = file.read()
        with open(latest, "w", encoding="utf-8") as file:
            file.write(re.sub(r"step-\d+", kept, text))
    metrics = os.path.join(out, "metrics.jsonl")
    records = read_records(metrics)
    records = [line for line in records if json.loads(line)["step"] <= middle]
    with open(metrics, "w", encoding="utf-8") as file:
        file.writelines(records)
    return records


def run_combination(options, check, case_dir, kind, combination):
    """None, or what is wrong."""
    job = "job.toml" if kind == "training" else "job_log_prob.toml"
    with tempfile.TemporaryDirectory(prefix="golden-") as work:
        out = os.path.join(work, "out")
        keys = {"output_dir": out, "device": "cuda" if options.cuda else "cpu"} | key_overrides(combination)
        arguments = [options.train, "--config", job, *overrides(keys)]
        if combination.get("holds_with"):
            arguments += ["--set", combination["holds_with"]]
        resumed = combination.get("resumed", False)
        if resumed:
            arguments += overrides({"checkpoint.save_interval": 1, "checkpoint.keep_last": 0})

        def once(*more):
            command = mpirun((combination["ranks"], [*arguments, *more]))
            return run_in(case_dir, work, command, combination.get("threads", 1))

        result = once()
        if result.code == 0 and resumed:
            steps = len(read_records(os.path.join(case_dir, "expected", "metrics.jsonl")))
            before = stop_in_the_middle(out, (steps + 1) // 2)
            result = once("--set", "checkpoint.resume=auto")
            if result.code == 0 and read_records(os.path.join(out, "metrics.jsonl"))[: len(before)] != before:
                return "the second run did not go on from the middle: it changed earlier records"
        if result.code != 0:
            ended = f"exit code {result.code}" if result.code is not None else f"not done after {TIMEOUT} s"
            return f"{ended}\n{last_lines(result.said)}"
        lines = []
        if check(case_dir, out, kind, lines.append):
            return None
        return "\n".join("    " + line for line in lines if line.startswith("FAIL"))


def run_in(case_dir, work, command, threads):
    """Paths in the jobs are relative to the case, which is never written to."""
    link = os.path.join(work, "case")
    if not os.path.exists(link):
        os.mkdir(link)
        for name in os.listdir(case_dir):
            os.symlink(os.path.join(case_dir, name), os.path.join(link, name))
    return run(command, link, threads, TIMEOUT)


# ------------------------------------------------------------------------------------------ all runs


class Cores:
    """Lets runs go side by side as far as their ranks and threads fit the cores of the machine."""

    def __init__(self):
        self.all = self.free = os.cpu_count()
        self.changed = threading.Condition()

    def run(self, cores, function, *arguments):
        cores = min(cores, self.all)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= cores)
            self.free -= cores
        try:
            return function(*arguments)
        except Exception as error:  # a test that cannot be carried out has failed
            return f"{type(error).__name__}: {error}"
        finally:
            with self.changed:
                self.free += cores
                self.changed.notify_all()


def load_check(cases):
    spec = importlib.util.spec_from_file_location("check", os.path.join(cases, "check.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def list_cases(options):
    """Name, directory and description of each case that was chosen."""
    for name in sorted(os.listdir(options.cases)):
        case_dir = os.path.join(options.cases, name)
        chosen = not options.names or any(part in name for part in options.names)
        if not re.match(r"\d\d", name) or not chosen:
            continue
        with open(os.path.join(case_dir, "case.toml"), "rb") as file:
            yield name, case_dir, tomllib.load(file)


def list_runs(options):
    for name, case_dir, case in list_cases(options):
        for kind in case["jobs"]:
            with open(os.path.join(case_dir, "job.toml" if kind == "training" else "job_log_prob.toml"), "rb") as file:
                settings = settings_of(case, tomllib.load(file), kind, options.cuda is not None)
            if options.all:
                combined = {name: values for name, values in settings.items() if name not in ("micro", "bucket")}
                combinations = all_combinations(combined)
            elif options.pairwise:
                combinations = pairwise_combinations(settings, zlib.crc32(f"{name} {kind}".encode()))
            else:
                combinations = all_combinations({"ranks": settings["ranks"]})
            for combination in combinations:
                if combination["ranks"] > options.most_ranks:
                    continue
                yield name, case_dir, kind, combination


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--cases", required=True)
    mode = parser.add_mutually_exclusive_group(required=True)
    for name in ("--as-they-stand", "--pairwise", "--all"):
        mode.add_argument(name, action="store_true")
    parser.add_argument("--cuda", metavar="LIBRARY")
    parser.add_argument("--most-ranks", type=int, default=1000, metavar="N")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if options.cuda:
        os.environ["TESSERA_CUDA_LIBRARY"] = os.path.abspath(options.cuda)
    options.train, options.cases = os.path.abspath(options.train), os.path.abspath(options.cases)

    check, cores, passed, failed = load_check(options.cases).check, Cores(), 0, 0
    with concurrent.futures.ThreadPoolExecutor(cores.all) as pool:
        runs = {}
        for name, case_dir, kind, combination in list_runs(options):
            needed = combination["ranks"] * combination.get("threads", 1)
            work = (cores.run, needed, run_combination, options, check, case_dir, kind, combination)
            runs[pool.submit(*work)] = f"{name} {kind} {in_words(combination)}"
        for future in concurrent.futures.as_completed(runs):
            wrong = future.result()
            if wrong is None:
                passed += 1
            else:
                failed += 1
                print(f"FAIL {runs[future]}\n{wrong}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
