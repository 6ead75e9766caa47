#!/usr/bin/env python3
"""Runs the golden cases in bf16 on a GPU's backend and on the CPU's composed kernels, and compares their errors.

    bf16_goldens.py --train BINARY --cases DIR --cuda LIBRARY [NAME ...]

The expected values are of double precision; how far bf16 is from them is a matter of the case. So the tolerance is the
error of the plain composition in bf16 with fp32 sums (model.fused_kernels = false, attn_implementation = "eager" on the
CPU), the rule by which flash attention is tested too: the backend may be off by twice as much where only the forward
pass counts (log-probs, entropy, losses) and by three times as much where gradients do (norms, weights). A quantity of
one case is the largest of a few differences, so that its error varies by chance: a case may have the median error of
all cases where its own is smaller. A line for each failure; the last line is `N passed, N failed`.
"""

import argparse
import concurrent.futures
import os
import statistics
import sys
import tempfile

from goldens import Cores, list_cases, load_check, run_in
from launch import last_lines, mpirun, overrides

FORWARD = ("log_probs", "entropy", "sum_log_prob", "loss", "eval_loss")
GRADIENTS = ("grad_norm", "weights", "weights_rms")

COMPOSED = {"device": "cpu", "model.fused_kernels": False, "model.attn_implementation": "eager"}
BACKEND = {"device": "cuda"}


def errors(options, compare, case_dir, kind, settings):
    """Quantity -> its difference from the expected value, or the words of a run that failed."""
    job = "job.toml" if kind == "training" else "job_log_prob.toml"
    with tempfile.TemporaryDirectory(prefix="golden-") as work:
        out = os.path.join(work, "out")
        keys = {"output_dir": out, "bf16.enabled": True} | settings
        if kind == "training":
            keys["checkpoint.export_dtype"] = "fp32"
        result = run_in(case_dir, work, mpirun((1, [options.train, "--config", job, *overrides(keys)])), 1)
        if result.code != 0:
            return f"exit code {result.code}\n{last_lines(result.said)}"
        differences = compare[kind](out, os.path.join(case_dir, "expected"))
        return {name: difference for name, (difference, _) in differences.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--cuda", metavar="LIBRARY", required=True)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    options.train, options.cases = os.path.abspath(options.train), os.path.abspath(options.cases)
    os.environ["TESSERA_CUDA_LIBRARY"] = os.path.abspath(options.cuda)

    compare, cores = load_check(options.cases).COMPARE, Cores()
    runs = {}
    with concurrent.futures.ThreadPoolExecutor(cores.all) as pool:
        for name, case_dir, case in list_cases(options):
            if 1 not in case.get("ranks", [1]):
                continue
            for kind in case["jobs"]:
                for which, settings in (("composed", COMPOSED), ("backend", BACKEND)):
                    work = (cores.run, 1, errors, options, compare, case_dir, kind, settings)
                    runs[(name, kind, which)] = pool.submit(*work)
    found = {key: future.result() for key, future in runs.items()}

    passed, failed = 0, 0
    for key, value in found.items():
        if isinstance(value, str):
            failed += 1
            print("FAIL", *key, value)
    whole = [key[:2] for key, value in found.items() if key[2] == "backend" and isinstance(value, dict)]
    whole = [key for key in whole if isinstance(found[(*key, "composed")], dict)]
    for quantity in FORWARD + GRADIENTS:
        pairs = {key: tuple(found[(*key, which)][quantity] for which in ("composed", "backend"))
                 for key in whole if quantity in found[(*key, "backend")]}
        typical = statistics.median(composed for composed, _ in pairs.values()) if pairs else 0
        for key, (composed, backend) in pairs.items():
            tolerance = (2 if quantity in FORWARD else 3) * max(composed, typical)
            passed, failed = passed + (backend <= tolerance), failed + (not backend <= tolerance)
            if not backend <= tolerance:
                print(f"FAIL {' '.join(key)} {quantity}: error {backend:.2e}, composed {composed:.2e}, "
                      f"typical {typical:.2e}")
        if pairs:
            ratios = statistics.median(backend / max(composed, typical) for composed, backend in pairs.values())
            print(f"{quantity:<13} {len(pairs):3} cases, error over that of the composition: median {ratios:.2f}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
