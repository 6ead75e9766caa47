"""Runs a training job and watches what its ranks take of memory, as the kernel counts it."""

import dataclasses
import os
import re
import subprocess
import time

import numpy as np

from launch import environment, mpirun, overrides
from make_case import write_plain_job

REFUSED = 70  # the exit code of memory that is not to be had


@dataclasses.dataclass
class Taken:
    """The most that one process has taken, bytes."""

    own: int = 0  # anonymous and shared memory, as sampled
    mark: int = 0  # the kernel's high-water mark of all that was resident, pages of mapped files among them
    data: int = 0  # what `ulimit -d` bounds


@dataclasses.dataclass
class Run:
    code: int
    said: str
    taken: list[Taken]  # of each rank


def look_at(pid, taken):
    size = {}
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith(("Rss", "Vm")):
                name, number = line.split()[:2]
                size[name.rstrip(":")] = int(number) * 1024
    if size:  # a process that has ended has none
        taken.own = max(taken.own, size["RssAnon"] + size["RssShmem"])
        taken.mark = max(taken.mark, size["VmHWM"])
        taken.data = max(taken.data, size["VmData"])


def processes_of(program, directory):
    """Process ids of those that run `program` in `directory`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == directory and os.path.samefile(f"/proc/{pid}/exe", program):
                found.append(pid)
        except OSError:
            continue  # gone meanwhile
    return found


def prepare(directory, config, ranks, sequence_length):
    """A job of two steps in `directory`, whose model has its configuration alone."""
    tokens = np.random.default_rng(1).integers(0, config["vocab_size"], 4 * ranks * sequence_length)
    write_plain_job(directory, config, tokens, sequence_length, train_batch_size=ranks, train_micro_batch_size_per_gpu=1)


def limited(command, limit):
    """`command` under a limit of its data, which the kernel enforces: a mapping beyond it fails."""
    return ["bash", "-c", f'ulimit -d {limit // 1024} && exec "$@"', "bash", *command] if limit else command


def run(train, directory, ranks, settings, limit=None):
    """Runs the job of `directory` and watches its ranks. `limit`: bytes of data that a rank may have.

    Samples come every 5 ms, and cannot miss what matters: the memory of the plan is one mapping, which a rank keeps from
    before its first step to its end. What comes and goes between two samples is in the kernel's high-water mark.
    """
    command = limited([train, "--config", "job.toml", *overrides(settings)], limit)
    log = os.path.join(directory, "log")
    taken = {}
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(mpirun((ranks, command)), cwd=directory, env=environment(), stdout=file, stderr=file)
        while process.poll() is None:
            if len(taken) < ranks:
                for pid in processes_of(train, directory):
                    taken.setdefault(pid, Taken())
            for pid, most in taken.items():
                try:
                    look_at(pid, most)
                except OSError:
                    continue  # gone meanwhile
            time.sleep(0.005)
    with open(log, encoding="utf-8", errors="replace") as file:
        return Run(process.returncode, file.read(), list(taken.values()))


def planned(text):
    """Bytes of a rank's plan, all together, as a run prints them."""
    return int(re.search(r"^  all +([\d,]+)", text, re.MULTILINE)[1].replace(",", ""))
