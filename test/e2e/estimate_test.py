#!/usr/bin/env python3
"""`train estimate` as a user meets it: DeepSpeed's tables, the plan beside them, wrong use; and plans for GPUs.

    estimate_test.py --train BINARY [--cuda LIBRARY ...]

--cuda: backends whose GPUs are planned for without being there, the emulated one of the tests first.
The last line is `N passed, N failed`.
"""

import argparse
import json
import os
import subprocess
import tempfile

import numpy as np

from launch import environment
from make_case import make_case, write_json
from report import Report

TABLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tables", "memory_tables.txt")
USAGE, BAD_DATA, MISSING, DOES_NOT_FIT = 64, 65, 66, 70
ONE = ("--gpus-per-node", "1", "--nodes", "1")
T0_3B = ("--params", "2783959040", "--largest-layer", "65798144")
LLAMA_2_13B = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 5120, "intermediate_size": 13824,
               "num_hidden_layers": 40, "num_attention_heads": 40, "tie_word_embeddings": False}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Place:
    """A directory of its own with model/ and job.toml."""

    variables = {}  # of the environment, besides those of every test

    def __init__(self, train, directory, libraries):
        self.train, self.directory, self.libraries = train, directory, libraries
        make_case(directory, "llama", np.random.default_rng(5))

    def run(self, *arguments, code=0):
        result = subprocess.run([self.train, *arguments], cwd=self.directory, env=environment() | self.variables,
                                capture_output=True, text=True, timeout=240)
        assert result.returncode == code, f"{arguments}: {result.returncode}\n{result.stdout}{result.stderr}"
        if code:
            assert result.stdout == "" and result.stderr.count("\n") == 1 and "error:" in result.stderr, result
        return result.stderr if code else result.stdout

    def estimate(self, *arguments, code=0):
        return self.run("estimate", *arguments, code=code)

    def write_model(self, name, **config):
        """A model directory that holds its configuration alone."""
        os.makedirs(os.path.join(self.directory, name))
        write_json(os.path.join(self.directory, name, "config.json"), config)


def golden_sections():
    with open(TABLES, encoding="utf-8") as file:
        for section in file.read().strip("\n").split("\n\n"):
            title, text = section.split("\n", 1)
            machine = next(line for line in text.splitlines() if line.startswith("HW:")).split()
            yield title, ("--gpus-per-node", machine[5], "--nodes", machine[3]), text + "\n"


@test
def tables_of_numbers(p):
    count = 0
    for title, machine, text in golden_sections():
        words = title.replace(",", "").split()
        numbers = (words[words.index("total_params") + 1], words[words.index("largest_layer_params") + 1])
        assert p.estimate("--params", numbers[0], "--largest-layer", numbers[1], *machine) == text, title
        count += 1
    assert count == 12


@test
def tables_of_a_configuration(p):
    p.write_model("thirteen", **LLAMA_2_13B)
    count = 0
    for title, machine, text in golden_sections():
        if "Llama-2-13B" in title:
            assert p.estimate("--model", "thirteen", *machine).startswith(text + "\nmemory of a rank"), title
            count += 1
    assert count == 6


@test
def one_object(p):
    said = json.loads(p.estimate(*T0_3B, *ONE, "--json"))
    assert (said["parameters"], said["largest_layer"]) == (2783959040, 65798144) and "plan" not in said
    # From the table of DeepSpeed's bytes: 0.37 and 46.91 GB of the documentation.
    row = {"offload_optimizer": False, "offload_param": False, "zero_init": True}
    assert row | {"cpu_bytes": 394788864, "gpu_bytes": 50374455296} in said["deepspeed"]["zero3"]
    assert {"offload_optimizer": True, "cpu_bytes": 66815016960, "gpu_bytes": 5567918080} in said["deepspeed"]["zero2"]
    p.write_model("thirteen", **LLAMA_2_13B)
    said = json.loads(p.estimate("--model", "thirteen", "--gpus-per-node", "8", "--nodes", "2", "--json"))
    assert (said["parameters"], said["largest_layer"]) == (13015864320, 163840000)
    for dtype, formulas in {"f32": (16, 8.5, 4.75, 1), "bf16": (18, 6.75, 3, 1.125)}.items():
        for stage, expected in enumerate(formulas):
            plan = said["plan"][dtype][stage]
            assert plan["stage"] == stage
            # Padding of at most 16 elements a rank and unit, and norms that stay whole at stage 3: below one in 1000.
            assert 0 <= plan["model_states_total"] / said["parameters"] / expected - 1 < 1e-3, (dtype, stage)
            assert plan["model_states_total"] == sum(plan["model_states"].values())
            assert plan["total"] == plan["model_states_total"] + sum(plan["working"].values())


@test
def a_job_is_planned_as_it_would_run(p):
    """With rows of sequence_length tokens, as packing concat makes them, nothing of a job's plan is left to its data."""
    said = json.loads(p.estimate("--config", "job.toml", *ONE, "--json"))
    settings = ["--set", "data.packing=concat"]
    for dtype, bf16 in (("f32", "false"), ("bf16", "true")):
        for plan in said["plan"][dtype]:
            stage = [f"zero_optimization.stage={plan['stage']}", f"bf16.enabled={bf16}"]
            checked = json.loads(p.run("check", "--config", "job.toml", "--json", *settings,
                                       *(word for setting in stage for word in ("--set", setting))))
            assert checked["memory"] == plan["model_states"] | plan["working"], (dtype, plan["stage"])
            assert checked["total"] == plan["total"]


@test
def what_a_job_leaves_open(p):
    """Every stage is planned whatever the job's is; without a choice blocks are computed again, which takes least."""
    with open(os.path.join(p.directory, "job.toml"), encoding="utf-8") as file:
        text = file.read()

    def plan(extra):
        with open(os.path.join(p.directory, "other.toml"), "w", encoding="utf-8") as file:
            file.write(text + extra)
        return json.loads(p.estimate("--config", "other.toml", *ONE, "--json"))["plan"]

    left_open = plan('\n[model]\nenable_gradient_checkpointing = "auto"\n[zero_optimization]\nstage = "auto"\n')
    assert left_open == plan("\n[model]\nenable_gradient_checkpointing = true\n[zero_optimization]\nstage = 3\n")
    kept = plan("\n[model]\nenable_gradient_checkpointing = false\n")
    assert all(kept["f32"][s]["total"] >= left_open["f32"][s]["total"] for s in range(4))


@test
def a_model_in_place_of_the_job_s(p):
    p.write_model("thirteen", **LLAMA_2_13B)
    said = json.loads(p.estimate("--config", "job.toml", "--model", "thirteen", *ONE, "--json"))
    assert said["parameters"] == 13015864320 and "activations" in " ".join(said["plan"]["f32"][0]["working"])


@test
def wrong_use(p):
    def refused(*arguments, says, code=USAGE):
        said = p.estimate(*arguments, code=code)
        assert says in said, (arguments, said)

    refused(*ONE, says="needs a model")
    refused("--params", "5", *ONE, says="--largest-layer")
    refused("--largest-layer", "5", *ONE, says="--params")
    refused("--model", "model", *T0_3B, *ONE, says="leave out --model")
    refused("--config", "job.toml", *T0_3B, *ONE, says="leave out --config")
    refused("--params", "5", "--largest-layer", "6", *ONE, says="cannot have 6")
    refused("--params", "0", "--largest-layer", "0", *ONE, says="at least 1")
    refused("--params", "-5", "--largest-layer", "1", *ONE, says="at least 1")
    refused("--params", str(2**63 - 1), "--largest-layer", "1", *ONE, says="can be counted")
    refused("--params", str(2**64), "--largest-layer", "1", *ONE, says="can be counted")
    refused("--params", "many", "--largest-layer", "1", *ONE, says="--params")
    refused(*T0_3B, "--gpus-per-node", "0", "--nodes", "1", says="--gpus-per-node")
    refused(*T0_3B, "--gpus-per-node", "1", "--nodes", "-1", says="--nodes")
    refused(*T0_3B, "--gpus-per-node", "1", says="--nodes")
    refused(*T0_3B, "--gpus-per-node", "2000", "--nodes", "2000", says="ranks")
    for rate in ("0", "-1", "nan", "inf", "1e999", "fast"):
        refused("--config", "job.toml", *ONE, "--compute-rate", rate, says="--compute-rate")
    refused("--config", "job.toml", *ONE, "--link-rate", "1e9", says="--compute-rate is missing")
    refused("--config", "job.toml", "--gpus-per-node", "1", "--nodes", "2", "--compute-rate", "1e9",
            says="--link-rate is missing")
    refused("--model", "model", *ONE, "--compute-rate", "1e9", says="need --config")
    refused(*T0_3B, *ONE, "--compute-rate", "1e9", says="need --config")
    refused("--model", "absent", *ONE, says="absent", code=MISSING)
    refused("--config", "absent.toml", *ONE, says="absent.toml", code=MISSING)
    p.write_model("other", model_type="t5", vocab_size=32128)
    refused("--model", "other", *ONE, says="t5", code=BAD_DATA)
    huge = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 2**31 - 1)
    p.write_model("huge", **LLAMA_2_13B | huge | {"hidden_size": 2**31 - 2, "num_attention_heads": 1})
    refused("--model", "huge", *ONE, says="too large", code=BAD_DATA)


@test
def bounds_of_stage_3_matter_at_stage_3_alone(p):
    bound = ("--set", "zero_optimization.stage3_max_live_parameters=10")
    p.run("check", "--config", "job.toml", *bound, "--set", "model.enable_gradient_checkpointing=true")
    said = p.run("check", "--config", "job.toml", *bound, "--set", "zero_optimization.stage=3", code=USAGE)
    assert "stage3_max_live_parameters = 10" in said, said


def json_of_check(p, *arguments):
    return json.loads(p.run("check", "--config", "job.toml", "--json", *arguments))


@test
def gpus_that_are_not_there_are_planned_for(p):
    """The plan of every backend is that of a job on the emulated GPU, which is there."""
    for number, library in enumerate(p.libraries):
        p.variables = {"TESSERA_CUDA_LIBRARY": library}
        planned = json_of_check(p, "--device", "cuda", "--device-memory", "80GiB")
        assert "a GPU of 85899345920 bytes" in json.dumps(planned["summary"]) and 'device = "cuda"' in planned["job"]
        if number == 0:
            opened = json_of_check(p, "--device", "cuda")
            assert opened["memory"] == planned["memory"] and "a GPU of" not in json.dumps(opened["summary"])
        estimated = json.loads(p.estimate("--config", "job.toml", *ONE, "--device", "cuda", "--json"))["plan"]
        assert estimated["bf16"][1]["total"] == json_of_check(p, "--device", "cuda", "--device-memory", "80GiB", "--set",
                                                              "bf16.enabled=true", "--set", "data.packing=concat")["total"]
        on_cpu = json.loads(p.estimate("--config", "job.toml", *ONE, "--json"))["plan"]
        assert estimated["bf16"][1]["model_states"] == on_cpu["bf16"][1]["model_states"]
        assert estimated["bf16"][1]["working"] != on_cpu["bf16"][1]["working"]
        said = p.run("check", "--config", "job.toml", "--device", "cuda", "--device-memory", "512MiB", code=DOES_NOT_FIT)
        assert "a GPU of 536870912 bytes" in said, said


@test
def gpus_that_cannot_be_planned_for(p):
    said = p.run("check", "--config", "job.toml", "--device", "cpu", "--device-memory", "80GiB", code=USAGE)
    assert "--device-memory is for GPUs" in said, said
    for option in ("--device-memory", "--host-memory"):
        for size in ("0", "-1", "9223372036854775808"):
            said = p.run("check", "--config", "job.toml", "--device", "cpu" if "host" in option else "cuda", option, size,
                         code=USAGE)
            assert option in said, said
    said = p.run("estimate", "--params", "1000", "--largest-layer", "10", *ONE, "--device", "cuda", code=USAGE)
    assert "--device is for the plan of a model" in said, said
    p.variables = {"TESSERA_CUDA_LIBRARY": os.path.join(p.directory, "absent.so")}
    for command in (("check", "--device-memory", "80GiB"), ("estimate", *ONE)):
        said = p.run(*command, "--config", "job.toml", "--device", "cuda", code=USAGE)
        assert "TESSERA_CUDA_LIBRARY names no library" in said and "absent.so" in said, said


@test
def what_gpus_alone_do_is_refused_elsewhere(p):
    for key in ("cuda.tf32", "cuda.stochastic_rounding"):
        said = p.run("check", "--config", "job.toml", "--device", "cpu", "--set", f"{key}=true", code=USAGE)
        assert f"{key} = true needs a GPU" in said, said
    for library in p.libraries[:1]:
        p.variables = {"TESSERA_CUDA_LIBRARY": library}
        for key, bf16 in (("cuda.tf32", "true"), ("cuda.stochastic_rounding", "false")):
            said = p.run("check", "--config", "job.toml", "--device", "cuda", "--set", f"{key}=true", "--set",
                         f"bf16.enabled={bf16}", code=USAGE)
            assert f"{key} = true needs a GPU and bf16.enabled" in said, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--cuda", metavar="LIBRARY", nargs="+", default=[])
    options = parser.parse_args()
    binary, libraries = os.path.abspath(options.train), [os.path.abspath(library) for library in options.cuda]
    report = Report()
    for function in TESTS:
        with tempfile.TemporaryDirectory(prefix="estimate-") as directory:
            try:
                function(Place(binary, directory, libraries))
                report(function.__name__, None)
            except (AssertionError, LookupError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                line = error.__traceback__.tb_next.tb_lineno
                report(f"{function.__name__}, line {line}", f"{type(error).__name__}: {error}")
    report.finish()


if __name__ == "__main__":
    main()
