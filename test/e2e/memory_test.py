#!/usr/bin/env python3
"""The plan of memory: what a run really takes, and what is refused.

    memory_test.py --train BINARY

Two and four ranks train a model of 106 million parameters at every stage in f32, at stages 1 and 3 also in bf16. The
peak of each rank's own memory (RssAnon + RssShmem of /proc, read beside the run) differs from its plan by at most
3 % + 40 MB, the kernel's high-water mark of all that is resident, files of the program included, exceeds it by no more,
and `check` plans the same. Then each rank gets a limit (ulimit -d) under which stage 3 over four ranks trains and
stage 0 is refused with the bytes, and with what would fit; "auto" finds that by itself. Prints a table of what was
measured; the last line is `N passed, N failed`.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import tempfile

import numpy as np

import memory
from launch import environment, last_lines, overrides
from make_case import plain_config, tensor_shapes, write_safetensors
from report import Report

CONFIG = plain_config(vocabulary=16000, hidden=768, intermediate=2048, layers=13, heads=12, kv_heads=4, positions=128)
PARAMETERS = 106_385_664
# What every rank reads of itself when it decides whether a job fits is less than the limit; stage 3 needs 730 MB of it.
LIMIT = 1 << 30


def settings(stage, bf16=False):
    return {"output_dir": "out", "zero_optimization.stage": stage, "bf16.enabled": bf16}


def write_weights(path):
    """Small numbers by chance for all parameters, norms among them: this takes less time than `init = "random"`."""
    header, end = {}, 0
    for name, shape in tensor_shapes(CONFIG).items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    values = np.random.default_rng(1).standard_normal(end // 4, dtype=np.float32)
    values *= CONFIG["initializer_range"]
    write_safetensors(path, header, values.tobytes())


class Test(Report):
    def __init__(self, train, directory):
        super().__init__()
        self.train, self.directory = os.path.abspath(train), directory
        os.mkdir(os.path.join(directory, "model"))
        write_weights(os.path.join(directory, "model", "model.safetensors"))

    def run(self, ranks, job, limit=None):
        """Runs the job from its beginning."""
        memory.prepare(self.directory, CONFIG, ranks, 32)
        result = memory.run(self.train, self.directory, ranks, job, limit)
        shutil.rmtree(os.path.join(self.directory, "out"), ignore_errors=True)  # a gigabyte of checkpoint
        return result

    def checked(self, ranks, job):
        """The bytes that `check` plans, and the model's parameters."""
        command = [self.train, "check", "--config", "job.toml", "--ranks", str(ranks), "--json", *overrides(job)]
        result = subprocess.run(command, cwd=self.directory, env=environment(), capture_output=True, text=True, check=True)
        answer = json.loads(result.stdout)
        return answer["total"], int(answer["summary"]["parameters"].replace(",", ""))

    def measured(self):
        print("| ranks | stage | computes in | plan | least peak | largest peak | difference | high-water mark |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for ranks in (2, 4):
            for stage, bf16 in ((0, False), (1, False), (2, False), (3, False), (1, True), (3, True)):
                job = settings(stage, bf16)
                name = f"{ranks} ranks, stage {stage}, {'bf16' if bf16 else 'f32'}"
                result = self.run(ranks, job)
                self.check(name, result.code == 0 and len(result.taken) == ranks, last_lines(result.said))
                if result.code or not result.taken:
                    continue
                plan = memory.planned(result.said)
                self.check(name, self.checked(ranks, job) == (plan, PARAMETERS), f"check does not plan {plan:,} bytes")
                # A plan far above the truth is as wrong as one below it.
                tolerance = plan * 0.03 + 40e6
                for taken in result.taken:
                    self.check(name, abs(taken.own - plan) <= tolerance, f"{taken.own:,} bytes were taken, {plan:,} planned")
                    self.check(name, taken.own <= taken.mark <= plan + tolerance,
                               f"the high-water mark is {taken.mark:,} bytes, {plan:,} planned")
                own = [taken.own for taken in result.taken]
                print(f"| {ranks} | {stage} | {'bf16' if bf16 else 'f32'} | {plan:,} | {min(own):,} | {max(own):,} | "
                      f"{100 * (max(own) / plan - 1):+.2f} % | {max(taken.mark for taken in result.taken):,} |", flush=True)

    def limited(self):
        result = self.run(4, settings(0), LIMIT)
        message = [line for line in result.said.splitlines() if "error" in line]
        self.check("stage 0 under a limit", result.code == memory.REFUSED and len(message) == 1, last_lines(result.said))
        for part in ("does not fit into memory", "ulimit -d", "stage 0 with", "bytes too many", "would fit with"):
            self.check(f"the refusal says {part!r}", message and part in message[0], message)
        for stage in (3, '"auto"'):
            result = self.run(4, settings(stage), LIMIT)
            self.check(f"stage {stage} under a limit", result.code == 0, last_lines(result.said))
            for taken in result.taken:
                self.check(f"stage {stage} under a limit", taken.own <= taken.data <= LIMIT, taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        test = Test(options.train, os.path.realpath(directory))
        test.measured()
        test.limited()
    test.finish()


if __name__ == "__main__":
    main()
