#!/usr/bin/env python3
"""scripts/check_kernel_budget.py on reports of ptxas made by hand: each fault is named, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_kernel_budget.py"
SCALE = "_ZN7tessera4simt3runINS_4cuda5ScaleIfEEEEvT_"  # run<tessera::cuda::Scale<float>>
ROPE = "_ZN7tessera4simt3runINS_4cuda4RopeIfEEEEvT_"


def report(name, architecture, registers, shared=0, spills=0):
    smem = f", {shared} bytes smem" if shared else ""
    return (f"ptxas info    : Compiling entry function '{name}' for '{architecture}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    0 bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers{smem}, 400 bytes cmem[0]\n")


class Budget(unittest.TestCase):
    def run_with(self, reports, budget, *options):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            (path / "kernel.cu.o.ptxas").write_text("".join(reports))
            (path / "budget.txt").write_text(budget)
            command = [sys.executable, SCRIPT, path, path / "budget.txt", *options]
            result = subprocess.run(command, capture_output=True, text=True)
            return result.returncode, result.stdout + result.stderr, (path / "budget.txt").read_text()

    def test_within_the_budget(self):
        code, said, _ = self.run_with([report(SCALE, "sm_80", 30, 64)], "# a comment\nScale<float> | sm_80 30 64\n")
        self.assertEqual((code, said), (0, "1 kernels are within their budget\n"))

    def test_each_fault_is_named(self):
        reports = [report(SCALE, "sm_80", 31, 65, 4), report(SCALE, "sm_90a", 8), report(ROPE, "sm_80", 8)]
        code, said, _ = self.run_with(reports, "Scale<float> | sm_80 30 64\nGone<float> | sm_80 1 0\n")
        self.assertEqual(code, 1)
        self.assertEqual(said.splitlines(), [
            "Gone<float>: no such kernel was compiled",
            "Rope<float>: no line of the budget",
            "Scale<float> for sm_80: 4 bytes of stack and spills",
            "Scale<float> for sm_80: 31 registers, the budget is 30",
            "Scale<float> for sm_80: 65 bytes of shared memory, the budget is 64",
            "Scale<float> for sm_90a: no budget for this architecture",
        ])

    def test_update_writes_what_was_compiled_and_still_refuses_spills(self):
        code, _, budget = self.run_with([report(SCALE, "sm_80", 12), report(SCALE, "sm_90a", 14)], "", "--update")
        self.assertEqual((code, budget.splitlines()[-1]), (0, "Scale<float> | sm_80 12 0 | sm_90a 14 0"))
        code, said, _ = self.run_with([report(SCALE, "sm_80", 12, 0, 8)], "", "--update")
        self.assertEqual(code, 1, said)

    def test_no_report_is_a_fault(self):
        code, said, _ = self.run_with([], "")
        self.assertEqual(code, 1)
        self.assertIn("no report of ptxas", said)


if __name__ == "__main__":
    unittest.main()
