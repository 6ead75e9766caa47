#!/usr/bin/env python3
"""Everything that a GPU is wanted for, in one command: tests, compute-sanitizer, speed of kernels and of training.

    gpu_bench.py --build BUILD_DIR --cases DIR --out FILE.json [--cuda LIBRARY] [--tiny] [--seconds N]

1. the tests of single kernels (BUILD_DIR/test/gpu_*_test), and every golden case, in f32 and (by the rule of
   bf16_goldens.py) in bf16;
2. compute-sanitizer, where there is one: memcheck over these tests, racecheck and synccheck over those with shared memory
   and barriers, initcheck over those with workspaces, and all four over each operation at a tiny shape;
3. each operation at the shapes of a 0.5B and an 8B model, in TFLOP/s beside a large product of the same run, or in GB/s
   beside a large copy;
4. steps of training at shapes of 0.5B to 8B parameters (the largest with few layers: a layer is what counts), in tokens/s
   and as a share of the rate of the large product ("MFU" by measured peak).

Writes what was found to FILE.json as soon as each part is done, and a table at the end, which is also in FILE.md. Ends with
1, and names them, where parts failed, were cut off at their limit, or were left out as no time was left for them. All of it
takes at most N seconds (480); what a stage needs less than its share is for the later ones. A test that is skipped, as
without a GPU, has failed here.

--tiny: small shapes, quick tests on the emulator (cuda_*_test) and few golden cases, to try the command itself on the
emulated device (--cuda BUILD_DIR/test/libtessera_emulated.so).
"""

import argparse
import glob
import json
import os
import re
import shutil
import sys
import tempfile

import numpy as np

from launch import mpirun
from make_case import plain_config, write_plain_job
from parts import Parts

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 480
LEAST_SECONDS = 30
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
# What each of them can find something in; memcheck in all.
WITH_BARRIERS = ("attention_test", "cross_entropy_test", "reductions_test", "rmsnorm_test")
SANITIZED = {
    "racecheck": WITH_BARRIERS,
    "synccheck": WITH_BARRIERS,
    "initcheck": ("attention_test", "reductions_test", "rmsnorm_test"),
}
# Under these tools: cases with every kernel and no slow reference.
QUICK_CASES = {"attention_test": ["A packed document*,*one result in every order*"]}
QUICK_TESTS = ("adam_test", "cuda_device_test", "elementwise_test")  # of the emulator's

# name: vocabulary, hidden, intermediate, layers, heads, key-value heads; tokens of a micro-batch
MODELS = {
    "0.5B": ((151936, 896, 4864, 24, 14, 2), 8192),
    "1.5B": ((151936, 1536, 8960, 28, 12, 2), 8192),
    "8B, 4 layers": ((128256, 4096, 14336, 4, 32, 8), 8192),
}
TINY_MODELS = {"tiny": ((64, 32, 48, 2, 2, 1), 32)}


def kernel_tests(options):
    """Name -> program."""
    if options.tiny:
        return {name: os.path.join(options.build, "test", f"cuda_{name}") for name in QUICK_TESTS}
    programs = sorted(glob.glob(os.path.join(options.build, "test", "gpu_*_test")))
    return {os.path.basename(program).removeprefix("gpu_"): program for program in programs}


def side_by_side():
    """How many programs that are not measured run at once."""
    return max(1, min(4, os.cpu_count() // 2))


def run_tests(parts, options):
    programs = kernel_tests(options).values()
    if not programs:
        parts.record("tests, gpu_*_test", "not built", 0, "")
    tests = [(f"tests, {os.path.basename(program)}", [program], 60) for program in programs]
    names = ["01_"] if options.tiny else []
    alone = [] if options.tiny else ["--most-ranks", "1"]
    for script, mode in (("goldens.py", ["--as-they-stand", *alone]), ("bf16_goldens.py", [])):
        command = [sys.executable, os.path.join(HERE, script), "--train", os.path.join(options.build, "train"), "--cases",
                   options.cases, "--cuda", options.cuda, *mode, *names]
        tests.append((f"golden cases, {script}", command, 60))
    parts.run_together(tests, side_by_side())


def sanitize(parts, options):
    tool = shutil.which("compute-sanitizer")
    if tool is None or options.tiny:
        parts.found["sanitizers"] = "not run: " + ("nothing runs on a GPU" if tool else "there is no compute-sanitizer")
        return
    runs = []  # tool, what it looks at, the command
    for dtype, tools in (("f32", SANITIZERS[:2]), ("bf16", SANITIZERS)):
        bench = [os.path.join(options.build, "test", "kernel_bench"), "--shape", "tiny", "--dtype", dtype,
                 "--cuda", options.cuda]
        runs += [(which, f"kernel_bench {dtype}", bench) for which in tools]
    for which in SANITIZERS:
        runs += [(which, f"gpu_{name}", [program, *QUICK_CASES.get(name, [])])
                 for name, program in kernel_tests(options).items() if name in SANITIZED.get(which, [name])]
    # The tests fill memory with NaNs, and initcheck would see nothing.
    unfilled = {"TESSERA_LEAVE_UNINITIALISED": "1"}
    parts.run_together([(f"compute-sanitizer {which}, {what}", [tool, "--tool", which, "--error-exitcode", "1", *command],
                         30, unfilled if which == "initcheck" else {}) for which, what, command in runs], side_by_side())


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
                parts.found["left_out"] = [line for line in said.splitlines() if line.startswith("no cuDNN attention")]


def measure_training(parts, options):
    peak = max((k["rate"] * 1e12 for k in parts.found["kernels"] if k["name"].startswith("product")), default=None)
    parts.found["training"] = []
    for name, (sizes, tokens) in (TINY_MODELS if options.tiny else MODELS).items():
        with tempfile.TemporaryDirectory() as directory:
            length = tokens // 2
            text = np.random.default_rng(1).integers(0, sizes[0], 16 * tokens, dtype=np.int64)
            write_plain_job(directory, plain_config(*sizes, length, tied=True), text, length, device="cuda",
                            bf16__enabled=True, model__init="random", train_micro_batch_size_per_gpu=2,
                            training__max_steps=6, checkpoint__save_interval=0, logging__interval=1)
            command = ["bash", "-c", 'cd "$0" && exec "$@"', directory,
                       *mpirun((1, [os.path.join(options.build, "train"), "--config", "job.toml"]))]
            said = parts.run(f"training, {name}", command, 35, {"TESSERA_CUDA_LIBRARY": options.cuda})
            if said is None:
                continue
            with open(os.path.join(directory, "out", "metrics.jsonl"), encoding="utf-8") as file:
                seconds = sorted(json.loads(line)["step_seconds"] for line in file if line.strip())
            rate = float(re.search(r"--compute-rate (\S+)", said)[1])
            result = {"model": name, "tokens_per_second": tokens / seconds[len(seconds) // 2], "flops_per_second": rate}
            if peak:
                result["share_of_large_product"] = rate / peak
            parts.found["training"].append(result)
    parts.save()


# With the seconds that each is to have, whatever the others before it took.
STAGES = ((run_tests, 120), (sanitize, 150), (measure_kernels, 90), (measure_training, 105))


def table(found):
    """What was found, as tables of markdown."""

    def rows(titles, cells):
        cells = [titles, ["---"] * len(titles), *cells]
        return ["", *(f"| {' | '.join(map(str, row))} |" for row in cells)]

    def share(of):
        return {"TFLOP/s": "the large product", "GB/s": "the large copy"}[of]

    lines = [found.get("device", "no device was measured")]
    lines += [f"compute-sanitizer: {found['sanitizers']}"] if "sanitizers" in found else []
    lines += found.get("left_out", [])
    lines += rows(["part", "result", "seconds"],
                  [[p["name"], "ok" if p["code"] == 0 else p["code"], p["seconds"]] for p in found["parts"]])
    lines += rows(["kernel", "shape", "ms", "rate", "share"],
                  [[k["name"], k["shape"], f"{k['milliseconds']:.4f}", f"{k['rate']:.3f} {k['unit']}",
                    f"{k['share']:.2f} of {share(k['unit'])}"] for k in found.get("kernels", [])])
    lines += rows(["training", "tokens/s", "TFLOP/s", "share of the large product"],
                  [[t["model"], f"{t['tokens_per_second']:.0f}", f"{t['flops_per_second'] * 1e-12:.3f}",
                    f"{t['share_of_large_product']:.2f}" if "share_of_large_product" in t else "?"]
                   for t in found.get("training", [])])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cuda", metavar="LIBRARY")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N")
    options = parser.parse_args()
    options.build, options.cases = os.path.abspath(options.build), os.path.abspath(options.cases)
    options.cuda = os.path.abspath(options.cuda or os.path.join(options.build, "libtessera_cuda.so"))
    if options.seconds < LEAST_SECONDS:
        parser.error(f"--seconds {options.seconds}: with less than {LEAST_SECONDS} no stage gets anywhere")
    for needed in (os.path.join(options.build, "train"), os.path.join(options.build, "test", "kernel_bench"),
                   options.cases, options.cuda):
        if not os.path.exists(needed):
            parser.error(f"there is no {needed}")
    try:
        with open(options.out, "a", encoding="utf-8"):
            pass
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}")
    parts = Parts(options.out, options.seconds)
    for number, (stage, _) in enumerate(STAGES):
        parts.reserved = sum(seconds for _, seconds in STAGES[number + 1 :]) * min(1, options.seconds / SECONDS)
        stage(parts, options)
    text = table(parts.found)
    with open(os.path.splitext(options.out)[0] + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(f"\n{text}\nwritten to {options.out}; failed: {'; '.join(parts.failed) or 'nothing'}")
    sys.exit(1 if parts.failed else 0)


if __name__ == "__main__":
    main()
