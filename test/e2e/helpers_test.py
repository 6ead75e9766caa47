"""The parts that the end-to-end tests stand on: launching and killing jobs, made-up cases, combinations."""

import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

import h5py
import numpy as np
import safetensors.numpy

import goldens
from launch import Launch, mpirun, run, session_processes
from make_case import FAMILIES, make_case, random_config, random_weights, safetensors_parts, to_bytes, write_safetensors

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


if __name__ == "__main__":
    unittest.main()
