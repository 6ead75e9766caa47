#!/usr/bin/env python3
"""A run that is killed and started again ends with the same bits as one that nothing disturbed.

    resume_test.py --train BINARY [--quick] [--cuda LIBRARY]

For several layouts (ranks, stage): a reference run; then for every step a run of which every process is killed
(kill -9) as soon as the record of that step is in metrics.jsonl, runs killed at times by chance, and one killed several
times; each is started again until it ends. Weights (hf/) must then be equal byte for byte, and metrics.jsonl must be
equal but for times and memory. --quick: fewer kills. --cuda: on the device of this backend, in bf16 with weights that
are rounded at random, which a run that goes on must round as they were. The last line is `N passed, N failed`.
"""

import argparse
import os
import random
import tempfile
import time

from report import Report
from restart import STEPS, Layout, after_step, difference, make_job, outcome


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
    parser.add_argument("--cuda", metavar="LIBRARY")
    options = parser.parse_args()
    report = Report()
    settings = {}
    if options.cuda:
        os.environ["TESSERA_CUDA_LIBRARY"] = os.path.abspath(options.cuda)
        settings = {"device": "cuda", "bf16.enabled": True, "cuda.stochastic_rounding": True}
    with tempfile.TemporaryDirectory(prefix="resume-") as directory:
        make_job(directory)
        for ranks, stage in [(2, 3)] if options.cuda else [(1, 1), (2, 3)] if options.quick else [(1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]:
            layout = Layout(os.path.abspath(options.train), directory, ranks, stage, **settings)
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
            if options.cuda:
                nearest = Layout(layout.train, directory, ranks, stage, **settings | {"cuda.stochastic_rounding": False})
                nearest.clean()
                same = nearest.finish() or difference(outcome(layout.out), want)
                report(f"{layout.name} rounding at random has an effect", None if same else "the same run without it")
            for name, kills in cases_of(layout, seconds, options.quick):
                report(f"{layout.name} {name}", layout.compare_after(want, *kills))
    report.finish()


if __name__ == "__main__":
    main()
