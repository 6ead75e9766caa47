#!/usr/bin/env python3
"""The largest model that trains under a given memory, stage by stage; a measurement, not a test.

    largest_model.py --train BINARY [--memory-mib 1024] [--ranks 4] [--bf16] [--checkpointing false true] [--stages 0 1 2 3]

Models of one width differ in their number of layers. Each rank may have so many MiB of data and no more: the kernel
refuses a mapping beyond (ulimit -d). For each stage `check` finds by bisection how many layers a rank can plan for;
then two jobs are really started: one of so many layers, which must do its steps, and one of a layer more, which must be
refused with its bytes. Where the two do not confirm what `check` said, the border is sought a layer up or down until
they do. Prints a Markdown table.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile

import memory
from launch import environment, last_lines, overrides
from make_case import plain_config

WIDTH = 256
SEQUENCE_LENGTH = 128
TOO_MANY = 4096  # layers that are never tried


def config_of(layers):
    return plain_config(4096, WIDTH, 3 * WIDTH, layers, heads=4, kv_heads=4, positions=128, tied=True)


def number(text):
    return int(text.replace(",", ""))


class Search:
    def __init__(self, options, directory, stage, checkpointing):
        self.train, self.ranks, self.limit = os.path.abspath(options.train), options.ranks, options.memory_mib << 20
        self.directory = directory
        self.settings = {
            "output_dir": "out", "model.init": "random", "model.enable_gradient_checkpointing": checkpointing,
            "zero_optimization.stage": stage, "bf16.enabled": options.bf16,
        }
        self.runs = {}

    def prepare(self, layers):
        memory.prepare(self.directory, config_of(layers), self.ranks, SEQUENCE_LENGTH)

    def run(self, layers):
        """Really runs a job of so many layers, once."""
        if layers not in self.runs:
            self.prepare(layers)
            result = memory.run(self.train, self.directory, self.ranks, self.settings, self.limit)
            shutil.rmtree(os.path.join(self.directory, "out"), ignore_errors=True)
            too_many = re.search(r"([\d,]+) bytes too many", result.said)
            if result.code not in (0, memory.REFUSED) or (result.code == 0) == bool(too_many):
                raise SystemExit(f"{layers} layers, {self.settings}: exit code {result.code}\n{last_lines(result.said)}")
            if result.code == 0 and len(result.taken) != self.ranks:
                raise SystemExit(f"{len(result.taken)} ranks were seen instead of {self.ranks}")
            self.runs[layers] = result
        return self.runs[layers]

    def check(self, layers, free):
        """What `check` says of a job of so many layers where a rank may take `free` bytes; None: it is refused."""
        self.prepare(layers)
        command = [self.train, "check", "--config", "job.toml", "--ranks", str(self.ranks), "--json", "--host-memory",
                   str(free * self.ranks), *overrides(self.settings)]
        result = subprocess.run(command, cwd=self.directory, env=environment(), capture_output=True, text=True, check=False)
        if result.returncode not in (0, memory.REFUSED):
            raise SystemExit(result.stderr)
        return None if result.returncode else json.loads(result.stdout)

    def largest(self):
        """(layers that train, what `check` says of them)."""
        # What a rank may take under the limit is less than the limit, and the ranks themselves say how much it is.
        free = number(re.search(r"a rank may take ([\d,]+) bytes", self.run(TOO_MANY).said)[1])
        fits, not_any_more = 0, TOO_MANY
        while not_any_more - fits > 1:
            middle = (fits + not_any_more) // 2
            if self.check(middle, free):
                fits = middle
            else:
                not_any_more = middle
        while fits > 0 and self.run(fits).code != 0:
            fits -= 1
        while self.run(fits + 1).code == 0:
            fits += 1
        if fits == 0:
            raise SystemExit(f"not even one layer fits: {self.settings}")
        return fits, self.check(fits, self.limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--memory-mib", type=int, default=1024, help="of a rank")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bf16", action="store_true", help="weights in bf16 with masters in fp32, instead of f32")
    parser.add_argument("--checkpointing", nargs="+", default=["false", "true"], choices=["false", "true"])
    parser.add_argument("--stages", nargs="+", type=int, default=[0, 1, 2, 3], choices=[0, 1, 2, 3])
    options = parser.parse_args()
    print(f"{options.ranks} ranks, {options.memory_mib} MiB each, {'bf16' if options.bf16 else 'f32'}, llama of width "
          f"{WIDTH}, rows of {SEQUENCE_LENGTH} tokens, one a micro-batch\n")
    print("| checkpointing | stage | layers | parameters | times those of the first stage | planned for a rank | most that a rank took "
          "| a layer more: bytes too many |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for checkpointing in options.checkpointing:
        first = None
        for stage in options.stages:
            with tempfile.TemporaryDirectory(prefix="largest-model-") as directory:
                search = Search(options, os.path.realpath(directory), stage, checkpointing)
                layers, checked = search.largest()
                run, refused = search.run(layers), search.run(layers + 1)
            parameters = number(checked["summary"]["parameters"])
            first = first or parameters
            most = max(taken.own for taken in run.taken)
            if max(taken.data for taken in run.taken) > search.limit or memory.planned(run.said) != checked["total"]:
                raise SystemExit(f"stage {stage}, {layers} layers: {run.taken}, {checked['total']:,} bytes planned")
            too_many = re.search(r"([\d,]+) bytes too many", refused.said)[1]
            print(f"| {'on' if checkpointing == 'true' else 'off'} | {stage} | {layers} | {parameters:,} | "
                  f"{parameters / first:.2f} | {checked['total']:,} | {most:,} | {too_many} |", flush=True)


if __name__ == "__main__":
    main()
