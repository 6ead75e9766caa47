#!/usr/bin/env python3
"""A job that gets SIGUSR1 or SIGTERM saves, exits with 75, and ends after a further start as if nothing had been.

    signal_test.py --train BINARY

For several layouts (ranks, stage) of a training job that saves nothing by itself: signals to mpirun, which forwards
them, and to one rank; in the middle, before the first step, again while the checkpoint is written, several times in a
row, and after the last step, where they change nothing. The exit code and the one line that the run says are checked,
then the job is started again: weights and metrics must be those of a run without signals. A log_prob job likewise.
The last line is `N passed, N failed`.
"""

import argparse
import contextlib
import functools
import os
import re
import signal
import tempfile
import time

import h5py
import numpy as np

from launch import last_lines
from make_case import random_documents, write_tokens
from report import Report
from restart import TIMEOUT, Layout, after_step, difference, log_probs, make_job, outcome, written

STOPPED = 75
USR1, TERM = signal.SIGUSR1, signal.SIGTERM


def to_mpirun(number):
    return lambda job: os.kill(job.process.pid, number)


def to_one_rank(number, count=1):
    def send(job):
        rank = job.ranks()[-1]
        os.kill(rank, number)
        for _ in range(count - 1):
            time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):  # it may be gone by now
                os.kill(rank, number)

    return send


def stop(layout, ready, disturb, line):
    """Disturbs the job. What is wrong or None, and what the job said; `line`: what one line of it is like."""
    log = os.path.join(layout.directory, "said")
    code = layout.disturb_when(ready, disturb, log).wait(TIMEOUT)
    with open(log, encoding="utf-8", errors="replace") as file:
        said = file.read()
    if code != STOPPED:
        return f"exit code {code} instead of {STOPPED}\n{last_lines(said)}", said
    if len(re.findall(f"^{line}$", said, re.MULTILINE)) != 1 or said.count("stopped by") != 1:
        return f"it does not say once '{line}'\n{last_lines(said)}", said
    return None, said


def saved(name):
    return rf"stopped by {name} after step \d+; the checkpoint is saved: run the same job again to go on"


# Name, and for each start of the job: how it is disturbed, the line, and whether that is before the first step.
CASES = [
    ("USR1 to mpirun", [(to_mpirun(USR1), saved("SIGUSR1"), False)]),
    ("TERM to one rank", [(to_one_rank(TERM), saved("SIGTERM"), False)]),
    ("TERM to one rank again and again", [(to_one_rank(TERM, 30), saved("SIGTERM"), False)]),
    (
        "USR1 at the start",
        [
            (
                to_mpirun(USR1),
                f"(?:{saved('SIGUSR1')}|stopped by SIGUSR1 after step 0; "
                "nothing is saved yet: run the same job again to start anew)",
                True,
            )
        ],
    ),
    (
        "three signals",
        [
            (to_one_rank(USR1), saved("SIGUSR1"), False),
            (to_mpirun(USR1), saved("SIGUSR1"), False),
            (to_one_rank(TERM), saved("SIGTERM"), False),
        ],
    ),
]


def disturbed(make_layout, stops):
    """None, or what is wrong. make_layout(steps) has the job with so many steps, which change nothing but its end."""
    # On a busy machine it can take long until a signal is sent, so the job has no end until it has been stopped.
    layout, step = make_layout(1000000), 0
    layout.clean()
    for disturb, line, at_start in stops:
        ready = (lambda: os.path.isdir(layout.out)) if at_start else after_step(layout, step + 2)
        wrong, said = stop(layout, ready, disturb, line)
        if wrong:
            return wrong
        step = int(re.search(r"after step (\d+)", said)[1])
    layout = make_layout(step + 3)
    wrong = layout.finish()
    if wrong:
        return wrong
    got = outcome(layout.out)
    layout.clean()
    return layout.finish() or difference(got, outcome(layout.out))


def test_training(make_layout, count, report):
    name = make_layout(1).name
    for case, stops in CASES[:count]:
        report(f"{name} {case}", disturbed(make_layout, stops))
    # Nothing is left to do for a further start: a signal does not make the job one that has to run again.
    layout = make_layout(3)
    layout.clean()
    code = layout.disturb_when(after_step(layout, 3), to_mpirun(USR1)).wait(TIMEOUT)
    report(f"{name} USR1 after the last step", None if code == 0 else f"exit code {code} instead of 0")


def test_log_prob(layout, report):
    path = os.path.join(layout.out, "log_probs.h5")
    partial = path + ".partial"

    def middle():
        """None, or what is wrong with the partial file."""
        with h5py.File(partial) as file:
            done, sequences = np.sum(np.isfinite(file["sum_log_prob"])), file["sum_log_prob"].size
        return None if 0 < done < sequences else f"{done} of {sequences} sequences are kept"

    layout.clean()
    wrong = layout.finish()
    if wrong:
        report(f"{layout.name} log_prob undisturbed", wrong)
        return
    want = log_probs(path)
    for name, disturb, by in [
        ("USR1 to mpirun", to_mpirun(USR1), "SIGUSR1"),
        ("TERM to one rank", to_one_rank(TERM), "SIGTERM"),
    ]:
        layout.clean()
        line = rf"stopped by {by} with [\d,]+ of [\d,]+ tokens scored; "
        line += r".*\.partial keeps them: run the same job again to go on"
        for _ in range(5):  # on a busy machine the job may have ended before it is disturbed
            wrong, said = stop(layout, lambda: written(partial), disturb, line)
            if "stopped by" in said:
                break
            layout.clean()
        wrong = wrong or middle() or layout.finish()
        if not wrong and log_probs(path) != want:
            wrong = "the log-prob file differs"
        report(f"{layout.name} log_prob {name}", wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--quick", action="store_true", help="two ranks at stage 3 only")
    options = parser.parse_args()
    train = os.path.abspath(options.train)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="signal-") as directory:
        make_job(directory)
        documents = random_documents(256, np.random.default_rng(8), 4000, 90)
        write_tokens(os.path.join(directory, "scored.h5"), documents, 256)
        training = {"checkpoint.save_interval": 0, "training.lr_scheduler.type": "constant"}
        log_prob = {"job_type": "log_prob", "log_prob.data": '["scored.h5"]', "log_prob.max_token_len": 128}
        for ranks, stage, count in [(2, 3, 2)] if options.quick else [(1, 1, 1), (1, 3, 1), (2, 1, 2), (2, 3, len(CASES))]:
            layout = functools.partial(Layout, train, directory, ranks, stage)
            test_training(lambda steps: layout(**training, **{"training.max_steps": steps}), count, report)
            test_log_prob(layout(**log_prob), report)
    report.finish()


if __name__ == "__main__":
    main()
