#!/usr/bin/env python3
"""Ranks that stop or die: the job ends in time, the culprit is named, nobody is left.

    hang_test.py --train BINARY

A rank of three is stopped (SIGSTOP) in the midst of a training job with a short limits.hang_seconds: exit code 124 and
one message with its number. A rank is killed: a code that is not 0 from the launcher. The last line is
`N passed, N failed`.
"""

import argparse
import os
import signal
import tempfile
import time

import numpy as np

from launch import MESSAGE, Launch, last_lines, mpirun, overrides
from make_case import make_case
from report import Report

RANKS, HANG_SECONDS, HANG = 3, 2, 124
ENDS_WITHIN = 30  # seconds: the limit, a quarter of it for the reports, and what mpirun takes to clean up; mostly slack


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return int(dict(part.split(b"=", 1) for part in file.read().split(b"\0") if b"=" in part)[b"OMPI_COMM_WORLD_RANK"])


def steps_done(directory):
    try:
        with open(os.path.join(directory, "out", "metrics.jsonl"), encoding="utf-8") as file:
            return len(file.readlines())
    except OSError:
        return 0


def spoil(train, stage, victim, number):
    """What is wrong with the end of a job, one rank of which gets a signal after some steps."""
    with tempfile.TemporaryDirectory(prefix="hang-") as directory:
        make_case(directory, "llama", np.random.default_rng(3))
        settings = {"zero_optimization.stage": stage, "limits.hang_seconds": HANG_SECONDS, "training.max_steps": 10**9,
                    "train_batch_size": 2 * RANKS, "checkpoint.save_minutes": 0}
        log = os.path.join(directory, "log")
        command = mpirun((RANKS, [train, "--config", "job.toml", *overrides(settings)]))
        command.remove("--quiet")  # what the launcher says of a rank that died counts
        job = Launch(command, directory, log=log)
        try:
            start = time.monotonic()
            while steps_done(directory) < 3:
                if job.process.poll() is not None or time.monotonic() - start > 60:
                    return "the job does not begin"
                time.sleep(0.01)
            victims = [pid for pid in job.ranks() if rank_of(pid) == victim]
            os.kill(victims[0], number)
            signalled = time.monotonic()
            job.process.wait(ENDS_WITHIN)
            seconds = time.monotonic() - signalled
            wrong = []
            time.sleep(0.2)
            if job.ranks():
                wrong.append(f"{len(job.ranks())} processes are left")
            with open(log, encoding="utf-8", errors="replace") as file:
                text = file.read()
            code = job.process.returncode
            if number == signal.SIGSTOP:
                messages = [line for line in text.splitlines() if MESSAGE.search(line) and "train:" in line]
                if len(messages) != 1 or f"no sign of life from rank {victim} on" not in messages[0]:
                    wrong.append("the rank that stopped is not named, or not once")
                if code != HANG:
                    wrong.append(f"exit code {code}")
                if seconds < HANG_SECONDS:
                    wrong.append(f"ended after {seconds:.1f} s")
            elif code == 0 or f"rank {victim}" not in text:
                wrong.append(f"exit code {code}, or the rank is not named")
            return "; ".join(wrong) + ("\n" + last_lines(text) if wrong else "")
        finally:
            job.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    train = os.path.abspath(parser.parse_args().train)
    report = Report()
    for stage, victim, number in [(1, 2, signal.SIGSTOP), (3, 0, signal.SIGSTOP), (3, 1, signal.SIGKILL)]:
        wrong = spoil(train, stage, victim, number)
        report(f"stage {stage}, rank {victim}, {signal.Signals(number).name}", wrong or None)
    report.finish()


if __name__ == "__main__":
    main()
