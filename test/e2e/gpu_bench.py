#!/usr/bin/env python3
"""Everything that a GPU is wanted for, in one command: tests, compute-sanitizer, speed of kernels and of training.

    gpu_bench.py --build BUILD_DIR --cases DIR --out FILE.json [--cuda LIBRARY] [--tiny]

1. every golden case on the GPU, in f32 and (by the rule of bf16_goldens.py) in bf16;
2. the four tools of compute-sanitizer over each operation at a tiny shape, where compute-sanitizer is there;
3. each operation at the shapes of a 0.5B and an 8B model, beside a large product and a large copy of the same run;
4. steps of training at shapes of 0.5B to 8B parameters (the largest with few layers: a layer is what counts), in tokens/s
   and as a share of the rate of the large product ("MFU" by measured peak).

Writes what was found to FILE.json as soon as each part is done, prints a table, and ends with 1 where a test failed.
The limits of the parts add up to less than 8 minutes; a part that needs more is cut off and says so. --tiny: small shapes, to try the
command itself on the emulated device (--cuda BUILD_DIR/test/libtessera_emulated.so).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from launch import last_lines, mpirun
from make_case import plain_config, write_plain_job

HERE = os.path.dirname(os.path.abspath(__file__))
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")

# name: vocabulary, hidden, intermediate, layers, heads, key-value heads; tokens of a micro-batch
MODELS = {
    "0.5B": ((151936, 896, 4864, 24, 14, 2), 8192),
    "1.5B": ((151936, 1536, 8960, 28, 12, 2), 8192),
    "8B, 4 layers": ((128256, 4096, 14336, 4, 32, 8), 8192),
}
TINY_MODELS = {"tiny": ((64, 32, 48, 2, 2, 1), 32)}


class Parts:
    """Runs the parts, each within its seconds, and keeps what they found."""

    def __init__(self, options):
        self.options, self.found, self.failed = options, {"parts": []}, []

    def run(self, name, command, seconds):
        """Return what it printed, or None where it failed or was cut off."""
        started = time.monotonic()
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=HERE)
            code, said = ended.returncode, ended.stdout + ended.stderr
        except subprocess.TimeoutExpired as error:
            code, said = "cut off", ((error.stdout or b"").decode(errors="replace"))
        took = time.monotonic() - started
        self.found["parts"].append({"name": name, "code": code, "seconds": round(took, 1), "end": said[-2000:]})
        print(f"{name:<44} {'ok' if code == 0 else code!s:<8} {took:6.1f} s", flush=True)
        if code != 0:
            self.failed.append(name)
            print(last_lines(said), flush=True)
        self.save()
        return said if code == 0 else None

    def save(self):
        with open(self.options.out, "w", encoding="utf-8") as file:
            json.dump(self.found | {"failed": self.failed}, file, indent=1)


def test_goldens(parts, options):
    train = os.path.join(options.build, "train")
    names = ["01_"] if options.tiny else []
    alone = [] if options.tiny else ["--most-ranks", "1"]
    for script, mode in (("goldens.py", ["--as-they-stand", *alone]), ("bf16_goldens.py", [])):
        command = [sys.executable, os.path.join(HERE, script), "--train", train, "--cases", options.cases,
                   "--cuda", options.cuda, *mode, *names]
        parts.run(f"golden cases, {script}", command, 60)


def sanitize(parts, options):
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        parts.found["sanitizers"] = "there is no compute-sanitizer here"
        print(parts.found["sanitizers"])
        return
    for dtype, tools in (("f32", SANITIZERS[:2]), ("bf16", SANITIZERS)):
        bench = [os.path.join(options.build, "test", "kernel_bench"), "--shape", "tiny", "--dtype", dtype,
                 "--cuda", options.cuda]
        for which in tools:
            parts.run(f"compute-sanitizer {which}, {dtype}", [tool, "--tool", which, "--error-exitcode", "1", *bench], 24)


def measure_kernels(parts, options):
    parts.found["kernels"] = []
    for shape in ["tiny"] if options.tiny else ["0.5B", "8B"]:
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            command = [os.path.join(options.build, "test", "kernel_bench"), "--shape", shape, "--dtype", "bf16",
                       "--cuda", options.cuda, "--json", result.name]
            said = parts.run(f"kernels, shape {shape}", command, 45)
            if said is not None:
                measured = json.load(result)
                parts.found["device"] = measured["device"]
                parts.found["kernels"] += measured["results"]
                print(said)


def measure_training(parts, options):
    peak = max((k["rate"] * 1e12 for k in parts.found["kernels"] if k["name"].startswith("product")), default=None)
    parts.found["training"] = []
    os.environ["TESSERA_CUDA_LIBRARY"] = options.cuda
    for name, (sizes, tokens) in (TINY_MODELS if options.tiny else MODELS).items():
        with tempfile.TemporaryDirectory() as directory:
            length = tokens // 2
            text = np.random.default_rng(1).integers(0, sizes[0], 16 * tokens, dtype=np.int64)
            write_plain_job(directory, plain_config(*sizes, length, tied=True), text, length, device="cuda",
                            bf16__enabled=True, model__init="random", train_micro_batch_size_per_gpu=2,
                            training__max_steps=6, checkpoint__save_interval=0, logging__interval=1)
            command = ["bash", "-c", 'cd "$0" && exec "$@"', directory,
                       *mpirun((1, [os.path.join(options.build, "train"), "--config", "job.toml"]))]
            said = parts.run(f"training, {name}", command, 35)
            if said is None:
                continue
            with open(os.path.join(directory, "out", "metrics.jsonl"), encoding="utf-8") as file:
                seconds = sorted(json.loads(line)["step_seconds"] for line in file if line.strip())
            rate = float(re.search(r"--compute-rate (\S+)", said)[1])
            result = {"model": name, "tokens_per_second": tokens / seconds[len(seconds) // 2], "flops_per_second": rate}
            if peak:
                result["share_of_large_product"] = rate / peak
            parts.found["training"].append(result)
            print(f"    {result}", flush=True)
    parts.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cuda", metavar="LIBRARY")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.build, options.cases = os.path.abspath(options.build), os.path.abspath(options.cases)
    options.cuda = os.path.abspath(options.cuda or os.path.join(options.build, "libtessera_cuda.so"))
    parts = Parts(options)
    for part in (test_goldens, sanitize, measure_kernels, measure_training):
        part(parts, options)
    print(f"written to {options.out}; failed: {', '.join(parts.failed) or 'nothing'}")
    sys.exit(1 if parts.failed else 0)


if __name__ == "__main__":
    main()
