#!/usr/bin/env python3
"""Measures `train` beside another program that does the same work: the two by turns, so that a drifting machine
disturbs both alike. Prints one line a pair and the medians; a measurement, not a test.

    peer_bench.py --train build/train --config job.toml --peer "python other.py MODEL --micro-batch 2" --pairs 3

The peer prints a JSON object as its last line: `tokens_per_second`, and `peak_rss_bytes` if it is known. A training
job's rate is that of its steps after the first `--warmup`; a log_prob job's is that of all its tokens.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile

import launch


def run(command, threads):
    """(standard output, peak resident bytes of the largest process)."""
    env = launch.environment(threads)
    del env["OMP_WAIT_POLICY"]  # nothing else wants the cores
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}: exit code {process.returncode}\n{text}")
    return text, usage.ru_maxrss * 1024


def ours(args):
    with tempfile.TemporaryDirectory(prefix="peer_bench-") as output:
        settings = [setting for text in args.set for setting in ("--set", text)]
        text, peak = run(launch.mpirun((args.ranks, [args.train, "--config", args.config, "--set",
                                                     f"output_dir={output}", *settings])), args.threads)
        metrics = os.path.join(output, "metrics.jsonl")
        if os.path.exists(metrics):
            with open(metrics, encoding="utf-8") as file:
                steps = [json.loads(line) for line in file]
            rates = [step["tokens_per_second"] for step in steps if step.get("tokens_per_second")]
            return statistics.median(rates[args.warmup:]), peak
        return float(re.findall(r"([\d,]+) tokens/s", text)[-1].replace(",", "")), peak


def peer(args):
    text, peak = run(shlex.split(args.peer), args.threads)
    result = json.loads(text.strip().splitlines()[-1])
    return result["tokens_per_second"], result.get("peak_rss_bytes") or peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True)
    parser.add_argument("--config", required=True, help="job file; its output_dir is not used")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as train's --set")
    parser.add_argument("--peer", required=True, help="command line of the other program")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="a rank")
    parser.add_argument("--warmup", type=int, default=2, help="steps of training that are not counted")
    args = parser.parse_args()
    pairs = []
    for number in range(args.pairs):
        pairs.append((ours(args), peer(args)))
        (rate, memory), (peer_rate, peer_memory) = pairs[-1]
        print(f"pair {number + 1}: train {rate:,.1f} tokens/s, {memory:,} bytes; peer {peer_rate:,.1f} tokens/s, "
              f"{peer_memory:,} bytes; ratio {rate / peer_rate:.3f}", flush=True)
    ratio = statistics.median(a[0] / b[0] for a, b in pairs)
    memory = statistics.median(a[1] / b[1] for a, b in pairs)
    print(f"median: {ratio:.2f} of the peer's tokens/s in {memory:.2f} of its memory")


if __name__ == "__main__":
    main()
