#!/usr/bin/env python3
"""What ranks exchange: the plan against messages counted from outside, against bounds, and on paper for large worlds.

    traffic_test.py --train BINARY --counter LIBRARY

LIBRARY counts what each rank hands to MPI (count_messages.cpp). At 1, 2, 3, 4 and 8 ranks, every stage, f32 and bf16,
gradients in fp32 and bf16, with and without accumulation, each rank's messages have to the byte what `train check` and
`train estimate` plan for a step, times the steps; the metrics say the same; and the plan is within the bounds of ZeRO,
computed here from the shapes of the tensors. The last line is `N passed, N failed`.
"""

import argparse
import itertools
import json
import os
import subprocess
import tempfile

import numpy as np

from launch import environment, last_lines, mpirun, overrides, run
from make_case import plain_config, tensor_shapes, write_plain_job
from report import Report

STEPS = 2
CONFIG = plain_config(vocabulary=300, hidden=48, intermediate=112, layers=3, heads=4, kv_heads=2, positions=64)


class Test(Report):
    def __init__(self, train, counter, directory):
        super().__init__()
        self.train, self.counter, self.directory = os.path.abspath(train), os.path.abspath(counter), directory
        shapes = tensor_shapes(CONFIG)
        self.parameters = sum(int(np.prod(shape)) for shape in shapes.values())
        self.outside_blocks = sum(int(np.prod(s)) for name, s in shapes.items() if "layers." not in name)

    def said(self, *arguments):
        result = subprocess.run([self.train, *arguments], cwd=self.directory, env=environment(), capture_output=True,
                                text=True, timeout=120, check=True)
        return json.loads(result.stdout)

    def one(self, ranks, settings):
        name = f"{ranks} ranks, {settings}"
        stage, bf16 = settings["zero_optimization.stage"], settings["bf16.enabled"]
        accumulation = settings["gradient_accumulation_steps"]
        changed = overrides(settings)
        plan = self.said("check", "--config", "job.toml", "--ranks", str(ranks), "--json", *changed)["exchanges"]
        bytes_planned = sum(one["bytes"] for one in plan)

        counts = os.path.join(self.directory, "counts")
        os.makedirs(counts, exist_ok=True)
        for old in os.listdir(counts):
            os.remove(os.path.join(counts, old))
        command = ["env", f"LD_PRELOAD={self.counter}", f"COUNT_MESSAGES={counts}", self.train, "--config", "job.toml"]
        result = run(mpirun((ranks, command + changed)), self.directory)
        self.check(name, result.code == 0, last_lines(result.said))
        if result.code:
            return
        for rank in range(ranks):
            with open(os.path.join(counts, f"{rank}.json"), encoding="utf-8") as file:
                count = json.load(file)
            self.check(f"{name}: bytes of rank {rank}", count["bytes"] == STEPS * bytes_planned,
                       f"{count['bytes']} counted, {STEPS} x {bytes_planned} planned")
            messages = STEPS * sum(one["calls"] for one in plan) * (ranks - 1)
            self.check(f"{name}: messages of rank {rank}", count["messages"] == messages,
                       f"{count['messages']} counted, {messages} planned")
            # Norm, loss, agreement on errors: a few words each; the rest is start and end of the run.
            self.check(f"{name}: control of rank {rank}", count["control_bytes"] < 100_000, count)
        with open(os.path.join(self.directory, "out", "metrics.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        if ranks > 1:
            exchanged = [record["exchanged_bytes"] for record in records]
            self.check(f"{name}: metrics", exchanged == [bytes_planned] * STEPS, f"{exchanged}, {bytes_planned} planned")
        self.bounds(name, plan, ranks, stage, 2 if bf16 else 4,
                    2 if settings["communication_data_type"] == "bf16" else 4, accumulation)

    def bounds(self, name, plan, ranks, stage, storage, travel, accumulation):
        """(n-1)/n of: one reduction, and one gather of the weights, at stage 3 one more of what backward needs again."""
        sums = dict.fromkeys(("reduce gradients", "gather gradients", "gather parameters", "publish parameters"), 0)
        for one in plan:
            sums[one["purpose"]] += one["bytes"]
        units = 2 + CONFIG["num_hidden_layers"]
        # Each of a unit's six groups begins at a multiple of 16 elements, its two parts end at one of 16 x ranks.
        padding = units * (6 * 16 + 2 * 16 * ranks)
        share = (ranks - 1) / ranks
        reduced = share * travel * (self.parameters + padding) * (accumulation if stage >= 2 else 1)
        least = share * travel * self.parameters * (accumulation if stage >= 2 else 1)
        self.check(f"{name}: reduction", least <= sums["reduce gradients"] <= reduced, (least, sums, reduced))
        whole = share * storage * (self.parameters + padding)
        if stage == 0:
            self.check(f"{name}: gather", sums["gather gradients"] <= share * 4 * (self.parameters + padding), sums)
            self.check(f"{name}: no other", sums["gather parameters"] == sums["publish parameters"] == 0, sums)
        elif stage < 3:
            self.check(f"{name}: gather", share * storage * self.parameters <= sums["publish parameters"] <= whole, sums)
            self.check(f"{name}: no other", sums["gather parameters"] == sums["gather gradients"] == 0, sums)
        else:
            # Embedding and head are gathered once, blocks twice; norms stay and are published.
            again = share * storage * (self.parameters - self.outside_blocks + padding)
            gathered = accumulation * (whole + again)
            self.check(f"{name}: gather", sums["gather parameters"] <= gathered, (sums, gathered))
            self.check(f"{name}: gather at least", sums["gather parameters"] >= accumulation * share * storage
                       * 0.95 * (2 * self.parameters - self.outside_blocks), (sums, gathered))
            self.check(f"{name}: no other", sums["gather gradients"] == 0, sums)

    def on_paper(self):
        """estimate and check plan the same; beyond one node, bytes of a link by the rule of each kind of exchange."""
        for nodes, each in ((1, 1), (1, 2), (2, 2), (1, 8), (3, 5), (64, 8), (512, 8), (4096, 1)):
            ranks = nodes * each
            said = self.said("estimate", "--config", "job.toml", "--gpus-per-node", str(each), "--nodes", str(nodes),
                             "--compute-rate", "1e12", "--link-rate", "1e9", "--json")["plan"]
            for dtype, stage in itertools.product(("f32", "bf16"), range(4)):
                name = f"estimate of {nodes} x {each}, {dtype}, stage {stage}"
                plan = said[dtype][stage]
                if ranks <= 16:
                    settings = {"zero_optimization.stage": stage, "bf16.enabled": dtype == "bf16"}
                    checked = self.said("check", "--config", "job.toml", "--ranks", str(ranks), "--json",
                                        *overrides(settings))["exchanges"]
                    self.check(name, plan["exchanges"] == checked, (plan["exchanges"], checked))
                link = 0
                for one in plan["exchanges"]:
                    if one["purpose"] == "reduce gradients":  # each rank to each other: those to other nodes leave
                        pairs = sum(1 for a in range(each) for b in range(ranks) if a // each != b // each)
                        link += one["bytes"] // (ranks - 1) * pairs if ranks > 1 else 0
                    elif nodes > 1:  # around the ring: of a node's ranks, the last one's
                        link += one["bytes"]
                self.check(f"{name}: link", plan["sent_by_node"] == link, (plan["sent_by_node"], link))
                self.check(f"{name}: rank", plan["sent_by_rank"] == sum(one["bytes"] for one in plan["exchanges"]), plan)
                sending = (link if nodes > 1 else plan["sent_by_rank"]) / 1e9
                computing = plan["flops"] / 1e12
                expected = [max(sending, computing), sending + computing]
                self.check(f"{name}: seconds", np.allclose(plan["seconds"], expected, rtol=1e-12), (plan, expected))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--counter", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="traffic-") as directory:
        tokens = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], 2000)
        write_plain_job(directory, CONFIG, tokens, 16, model__init="random", checkpoint__resume="never",
                        training__max_steps=STEPS, logging__interval=1)
        test = Test(arguments.train, arguments.counter, directory)
        for ranks, stage in itertools.product((1, 2, 3, 4, 8), range(4)):
            # Every value of each setting at every stage and number of ranks, not every combination of them.
            for bf16, travel, accumulation in ((False, "fp32", 1), (True, "bf16", 2)):
                test.one(ranks, {"zero_optimization.stage": stage, "bf16.enabled": bf16,
                                 "communication_data_type": travel, "gradient_accumulation_steps": accumulation,
                                 "zero_optimization.overlap_comm": bool(stage % 2 == ranks % 2)})
        test.on_paper()
    test.finish()


if __name__ == "__main__":
    main()
