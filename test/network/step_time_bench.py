#!/usr/bin/env python3
"""What `train estimate` foretells for a step, beside the step itself; a measurement, not a test.

    step_time_bench.py --train BINARY [--rate 200mbit] [--steps 6]

A model of two layers runs on one host, and on two hosts of one rank with a link of the given rate between them. From the rates
that these runs say at their end, estimate foretells the steps of one of six, with longer rows, at every stage. A line
of the table has the seconds foretold (from the longer of computation and exchange to their sum), the median of those that
the steps took, and how far that lies outside: 0 between the two.

The machine must have nothing else to do.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

from launch import environment, last_lines, overrides, run  # noqa: E402
from network_job import read_metrics, write_network_job  # noqa: E402
from overlap_bench import OWN_CORE  # noqa: E402
from two_hosts import TwoHosts, end_on_signals, missing  # noqa: E402

WARM_UP = 2  # steps that do not count


class Bench:
    def __init__(self, options, hosts):
        self.train, self.steps, self.hosts = os.path.abspath(options.train), options.steps, hosts
        self.runs = 0

    def run(self, directory, ranks, stage):
        """The median seconds of a step, and the options for estimate that the run says at its end."""
        self.runs += 1
        settings = {"output_dir": f"out.{self.runs}", "zero_optimization.stage": stage, "training.max_steps": self.steps}
        command = ["sh", "-c", OWN_CORE, "sh", self.train, "--config", "job.toml", *overrides(settings)]
        result = self.hosts.run(1, command, directory, timeout=900) if ranks == 2 else run(command, directory)
        if result.code != 0:
            sys.exit(f"exit code {result.code}\n{last_lines(result.said)}")
        seconds = [record["step_seconds"] for record in read_metrics(directory, settings["output_dir"])[WARM_UP:]]
        return statistics.median(seconds), re.search(r"rates for train estimate: (.*)", result.said)[1].split()

    def foretold(self, directory, ranks, rates):
        said = subprocess.run(
            [self.train, "estimate", "--config", "job.toml", "--gpus-per-node", "1", "--nodes", str(ranks), *rates, "--json"],
            cwd=directory, env=environment(), capture_output=True, text=True, check=True, timeout=60,
        )
        return [plan["seconds"] for plan in json.loads(said.stdout)["plan"]["f32"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--rate", default="200mbit", help="of the link, as tc understands it")
    parser.add_argument("--steps", type=int, default=6, help="of each run")
    options = parser.parse_args()
    why = missing()
    if why:
        sys.exit(f"step_time_bench.py: {why}")
    end_on_signals()
    with TwoHosts(options.rate) as hosts:
        small, large = (os.path.join(hosts.directory, name) for name in ("small", "large"))
        write_network_job(small, hidden=384, layers=2, batch=8, sequence=128)
        parameters = write_network_job(large, hidden=384, layers=6, batch=8, sequence=256)
        bench = Bench(options, hosts)
        print(f"{parameters:,} parameters, 2,048 tokens a step; seconds", flush=True)
        print(f"{'ranks':>5} {'stage':>5} {'least':>8} {'most':>8} {'took':>8} {'outside':>8}", flush=True)
        for ranks in (1, 2):
            _, rates = bench.run(small, ranks, stage=1)
            for stage, (least, most) in enumerate(bench.foretold(large, ranks, rates)):
                took, _ = bench.run(large, ranks, stage)
                outside = max(least / took - 1, took / most - 1, 0)
                print(f"{ranks:>5} {stage:>5} {least:>8.3f} {most:>8.3f} {took:>8.3f} {outside:>7.1%}", flush=True)
            print(f"      by {' '.join(rates)}", flush=True)


if __name__ == "__main__":
    main()
