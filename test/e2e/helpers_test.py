"""The parts that the end-to-end tests stand on: launching and killing jobs, made-up cases, combinations."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import h5py
import numpy as np
import safetensors.numpy

import goldens
import gpu_bench
from launch import Launch, mpirun, run, session_processes
from make_case import FAMILIES, make_case, random_config, random_weights, safetensors_parts, to_bytes, write_safetensors
from parts import Parts, processes_with

PYTHON = sys.executable


class LaunchTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.directory = holder.name

    def test_exit_code_and_output(self):
        program = [PYTHON, "-c", "import sys; print('here'); sys.exit(65)"]
        result = run(mpirun((2, program)), self.directory)
        self.assertEqual(result.code, 65)
        self.assertIn("here", result.said)

    def test_two_programs_and_outputs_of_ranks(self):
        out = os.path.join(self.directory, "said")
        programs = [(1, [PYTHON, "-c", f"print({number})"]) for number in (1, 2)]
        self.assertEqual(run(mpirun(*programs, output=out), self.directory).code, 0)
        texts = []
        for path in pathlib.Path(out).rglob("stdout"):
            texts.append(path.read_text(encoding="utf-8"))
        self.assertEqual(sorted(texts), ["1\n", "2\n"])

    def test_kill_leaves_nobody(self):
        job = Launch(mpirun((2, [PYTHON, "-c", "import time; time.sleep(60)"])), self.directory)
        start = time.monotonic()
        while len(job.ranks()) < 2 and time.monotonic() - start < 20:
            time.sleep(0.01)
        self.assertGreaterEqual(len(job.ranks()), 2)
        job.kill()
        self.assertEqual(session_processes(job.session), [])
        self.assertEqual(job.process.returncode, -signal.SIGKILL)

    def test_a_job_that_does_not_end(self):
        result = run(mpirun((1, [PYTHON, "-c", "import time; time.sleep(60)"])), self.directory, timeout=1)
        self.assertIsNone(result.code)


class MakeCaseTest(unittest.TestCase):
    def test_files_read_back(self):
        for family in FAMILIES:
            with self.subTest(family), tempfile.TemporaryDirectory() as directory:
                config, weights = make_case(directory, family, np.random.default_rng(5))
                read = safetensors.numpy.load_file(os.path.join(directory, "model", "model.safetensors"))
                self.assertEqual(set(read), set(weights))
                for name, values in weights.items():
                    np.testing.assert_array_equal(read[name], values)
                with h5py.File(os.path.join(directory, "tokens.h5")) as file:
                    self.assertEqual(file["offsets"][-1], len(file["tokens"]))
                    self.assertLess(file["tokens"][:].max(), config["vocab_size"])

    def test_f16(self):
        weights = random_weights(random_config("llama", np.random.default_rng(1)), np.random.default_rng(1))
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.safetensors")
            write_safetensors(path, *safetensors_parts(weights, "F16"))
            read = safetensors.numpy.load_file(path)
            for name, values in weights.items():
                np.testing.assert_array_equal(read[name], values.astype(np.float16))

    def test_bf16_rounds_to_nearest_even(self):
        # 1 + 2^-8 lies between 1 and 1 + 2^-7 and goes to the even 1; 1 + 3 * 2^-8 goes to the even 1 + 2^-6.
        values = np.array([1, -2, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
        read = np.frombuffer(to_bytes(values, "BF16"), "<u2").astype("<u4") << 16
        np.testing.assert_array_equal(read.view("<f4"), np.float32([1, -2, 1, 1 + 2**-6, 1 + 2**-7]))


class CombinationsTest(unittest.TestCase):
    SETTINGS = {"ranks": [1, 2, 3], "threads": [1, 2], "fused": [True, False], "stage": [0, 1], "micro": [None, 2]}

    def test_every_pair_is_there(self):
        combinations = list(goldens.pairwise_combinations(self.SETTINGS, 1))
        for one in self.SETTINGS:
            for other in self.SETTINGS:
                if one < other:
                    seen = {(repr(c[one]), repr(c[other])) for c in combinations}
                    self.assertEqual(len(seen), len(self.SETTINGS[one]) * len(self.SETTINGS[other]))
        self.assertLess(len(combinations), 12)  # all of them would be 48
        self.assertEqual(combinations, list(goldens.pairwise_combinations(self.SETTINGS, 1)))

    def test_one_setting(self):
        self.assertEqual(list(goldens.pairwise_combinations({"ranks": [1, 2]}, 1)), [{"ranks": 1}, {"ranks": 2}])

    def test_overrides(self):
        combination = {"ranks": 2, "threads": 1, "fused": False, "stage": 0, "micro": None}
        self.assertEqual(
            goldens.key_overrides(combination), {"model.fused_kernels": False, "zero_optimization.stage": 0}
        )


class PartsTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.out = os.path.join(holder.name, "found.json")

    def codes(self):
        with open(self.out, encoding="utf-8") as file:
            found = json.load(file)
        return {part["name"]: part["code"] for part in found["parts"]}, found["failed"]

    def test_what_failed_is_named(self):
        parts = Parts(self.out, 60)
        self.assertEqual(parts.run("good", ["echo", "here"], 10), "here\n")
        self.assertIsNone(parts.run("bad", [PYTHON, "-c", "import sys; sys.exit(77)"], 10))
        self.assertEqual(parts.run("told", ["printenv", "WORD"], 10, {"WORD": "one"}), "one\n")
        self.assertEqual(self.codes(), ({"good": 0, "bad": 77, "told": 0}, ["bad"]))

    def test_cut_off_with_all_that_it_started(self):
        # A process of another session, as a job of mpirun is one, and one that nobody waits for.
        program = """if True:
            import subprocess, time
            subprocess.Popen(["sleep", "60"], start_new_session=True)
            print("here", flush=True)
            time.sleep(60)
        """
        begin, parts = time.monotonic(), Parts(self.out, 60)
        self.assertIsNone(parts.run("long", [PYTHON, "-c", program], 2, {"WORD": self.out}))
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(self.codes(), ({"long": "cut off"}, ["long"]))
        self.assertEqual(parts.found["parts"][0]["end"], "here\n")
        self.assertEqual(processes_with(f"WORD={self.out}"), [])

    def test_the_budget_holds_for_all_together(self):
        begin = time.monotonic()
        parts = Parts(self.out, 6)
        parts.reserved = 2
        parts.run_together([(f"early {number}", ["sleep", "60"], 60) for number in range(3)], 2)
        self.assertLess(time.monotonic() - begin, 6)
        parts.reserved = 0
        parts.run("late", ["sleep", "60"], 60)
        parts.run("too late", ["sleep", "60"], 60)
        self.assertLess(time.monotonic() - begin, 12)
        self.assertEqual(self.codes()[0], {"early 0": "cut off", "early 1": "cut off", "early 2": "left out",
                                           "late": "cut off", "too late": "left out"})

    def test_stages_fit_the_budget(self):
        self.assertLessEqual(sum(seconds for _, seconds in gpu_bench.STAGES), gpu_bench.SECONDS)

    def test_processes_by_their_environment(self):
        process = subprocess.Popen(["sleep", "60"], env=os.environ | {"WORD": self.out})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(processes_with(f"WORD={self.out}"), [process.pid])
        self.assertEqual(processes_with(f"WORD={self.out[:-1]}"), [])


class GpuBenchTest(unittest.TestCase):
    """The whole command, over programs that only end as they are told."""

    MEASURED = {"device": "a device", "results": [{"name": "copy", "shape": "8B", "milliseconds": 1.5, "rate": 2500,
                                                   "unit": "GB/s", "share": 1}]}
    PROGRAMS = {
        "train": "exit 1",
        "libtessera_cuda.so": "",
        "test/gpu_adam_test": "exit 0",
        "test/gpu_rmsnorm_test": "exit 3",
        "test/kernel_bench": f"""while [ $# -gt 1 ]; do [ $1 = --json ] && echo '{json.dumps(MEASURED)}' > $2; shift; done""",
        # Finds something wherever it looks for races.
        "compute-sanitizer": """[ $2 = racecheck ] && exit 9; shift 4; exec "$@" """,
    }

    def test_ends_with_1_and_names_what_failed(self):
        with tempfile.TemporaryDirectory() as build:
            os.mkdir(os.path.join(build, "test"))
            for name, text in self.PROGRAMS.items():
                path = pathlib.Path(build, name)
                path.write_text(f"#!/bin/sh\n{text}\nexit 0\n", encoding="utf-8")
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
            out = os.path.join(build, "found.json")
            command = [PYTHON, gpu_bench.__file__, "--build", build, "--cases", build, "--out", out]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=100,
                                   env=os.environ | {"PATH": f"{build}:{os.environ['PATH']}"})
            self.assertEqual(ended.returncode, 1, ended.stderr)
            with open(out, encoding="utf-8") as file:
                found = json.load(file)
            self.assertEqual(ended.stdout.splitlines()[-1], f"written to {out}; failed: {'; '.join(found['failed'])}")
            table = pathlib.Path(build, "found.md").read_text(encoding="utf-8")
        self.assertIn("| tests, gpu_rmsnorm_test | 3 |", table)
        self.assertIn("| copy | 8B | 1.5000 | 2500.000 GB/s | 1.00 of the large copy |", table)
        failed, names = set(found["failed"]), {part["name"] for part in found["parts"]}
        self.assertEqual({name for name in names if name.startswith("tests")} & failed, {"tests, gpu_rmsnorm_test"})
        self.assertLess({"golden cases, goldens.py", "golden cases, bf16_goldens.py", "training, 0.5B"}, failed)
        sanitized = {name for name in names if name.startswith("compute-sanitizer")}
        self.assertLess({f"compute-sanitizer memcheck, gpu_{name}_test" for name in ("adam", "rmsnorm")}, sanitized)
        self.assertNotIn("compute-sanitizer racecheck, gpu_adam_test", sanitized)  # it shares no memory
        self.assertEqual(sanitized & failed, {name for name in sanitized if "racecheck" in name or "rmsnorm" in name})


if __name__ == "__main__":
    unittest.main()
