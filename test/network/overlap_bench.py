#!/usr/bin/env python3
"""How much of the exchange between two hosts `train` hides behind its computation; a measurement, not a test.

    overlap_bench.py --train BINARY [--rate 200mbit] [--stage 1 2 3] [--rounds 3] [--steps 8] [--reference]

One rank a host, with one thread on a core of its own. For each stage the same job runs with zero_optimization.overlap_comm
= false and true by turns, over a link of the given rate and, with --reference, over one without a limit. The model and
the tokens of a step are such that the computation takes a few times as long as the exchange. A line of the table has the
medians over the steps of all rounds, in seconds:

    step off, on      without and with overlap
    exchange off, on  the exchanges themselves
    waited            how long the computation stood still for them, with overlap
    hidden            (step off - step on) / exchange off: what overlap saved. Below 0: it cost more than it saved.
    not waited        1 - waited / exchange on: what it would have saved if the exchanges took no processor time.

The machine must have nothing else to do: of a busy one a rank with two threads gets more than a rank with one.

Below each line, the seconds of a step with overlap by purpose, and of these how many were waited; the first steps count too.
"""

import argparse
import os
import re
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

from launch import last_lines, overrides  # noqa: E402
from network_job import read_metrics, write_network_job  # noqa: E402
from two_hosts import TwoHosts, end_on_signals, missing  # noqa: E402

COLUMNS = ("step off", "step on", "exchange off", "exchange on", "waited", "hidden", "not waited")
KEYS = ("step_seconds", "exchange_seconds", "exchange_waited_seconds")
# Each host has its own core, as far as the machine has two.
OWN_CORE = 'exec taskset --cpu-list $((OMPI_COMM_WORLD_RANK % $(nproc))) "$@"'


class Bench:
    def __init__(self, options, hosts):
        self.options, self.hosts = options, hosts
        self.runs = 0

    def run(self, stage, overlap):
        """(seconds of a step, of its exchanges, waited for them) of each step after the first ones, and the table of what
        was exchanged: purpose -> (seconds of a step, waited)."""
        self.runs += 1
        settings = {
            "output_dir": f"out.{self.runs}",
            "zero_optimization.stage": stage,
            "zero_optimization.overlap_comm": overlap,
            "training.max_steps": self.options.steps,
        }
        train = [os.path.abspath(self.options.train), "--config", "job.toml", *overrides(settings)]
        extra = dict(setting.split("=", 1) for setting in self.options.mca)
        for setting in self.options.set:
            train += ["--set", setting]
        result = self.hosts.run(1, ["sh", "-c", OWN_CORE, "sh", *train], self.hosts.directory, extra, timeout=900)
        if result.code != 0:
            sys.exit(f"exit code {result.code}\n{last_lines(result.said)}")
        records = read_metrics(self.hosts.directory, settings["output_dir"])[self.options.warmup:]
        table = re.findall(r"^ +([a-z ]+?) +[\d,]+ calls, .* sent, ([\d.]+) s, waited ([\d.]+) s", result.said, re.M)
        purposes = {name: [float(s) / self.options.steps for s in seconds] for name, *seconds in table}
        return [tuple(record[key] for key in KEYS) for record in records], purposes

    def line(self, rate, stage):
        steps, purposes = {False: [], True: []}, {}
        self.hosts.shape(rate)
        for _ in range(self.options.rounds):
            for overlap in (False, True):
                measured, purposes[overlap] = self.run(stage, overlap)
                steps[overlap] += measured
        off, on = ([statistics.median(column) for column in zip(*steps[overlap])] for overlap in (False, True))
        values = [off[0], on[0], off[1], on[1], on[2], (off[0] - on[0]) / off[1], 1 - on[2] / on[1]]
        seconds = [[step[0] for step in steps[overlap]] for overlap in (False, True)]
        spread = ", ".join(f"{min(some):.2f} to {max(some):.2f}" for some in seconds)
        print(f"{rate or 'no limit':>10} {stage:>5} " + " ".join(f"{value:>12.3f}" for value in values) + f"  {spread}")
        parts = [f"{name} {took:.2f}, waited {waited:.2f}" for name, (took, waited) in purposes[True].items()]
        print(" " * 17 + "; ".join(parts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--rate", default="200mbit", help="of the link, as tc understands it")
    parser.add_argument("--reference", action="store_true", help="measure over a link without a limit as well")
    parser.add_argument("--stage", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="of each run")
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--hidden-size", type=int, default=320)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048, help="of a rank and step, in rows of 256")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as train's --set")
    parser.add_argument("--mca", action="append", default=[], metavar="NAME=VALUE", help="a setting of Open MPI")
    options = parser.parse_args()
    why = missing()
    if why:
        sys.exit(f"overlap_bench.py: {why}")
    end_on_signals()
    with TwoHosts() as hosts:
        rows = 2 * max(1, options.tokens // 256)
        parameters = write_network_job(hosts.directory, options.hidden_size, options.layers, batch=rows, sequence=256)
        print(f"{parameters:,} parameters, {rows * 128:,} tokens a rank and step; seconds", flush=True)
        print(f"{'rate':>10} {'stage':>5} " + " ".join(f"{name:>12}" for name in COLUMNS) + "  steps off, on", flush=True)
        bench = Bench(options, hosts)
        for rate in [options.rate] + ([None] if options.reference else []):
            for stage in options.stage:
                bench.line(rate, stage)


if __name__ == "__main__":
    main()
