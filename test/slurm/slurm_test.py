#!/usr/bin/env python3
"""The batch files of scripts/slurm on a Slurm of two nodes: four ranks, two a node, stage 3.

    slurm_test.py --train BINARY

With each of the launchers a training job without an end gets USR1, as from --signal: its batch file must have it
requeued; then it is given an end, which it must reach with the weights and metrics of an undisturbed job. The same
with a pre-emption (srun), and with log_prob. A job that is cancelled stays cancelled.
Exits with 77, which ctest takes for skipped, where there can be no such Slurm. The last line is `N passed, N failed`.
"""

import argparse
import os
import re
import shutil
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

import numpy as np  # noqa: E402

from launch import environment, last_lines, overrides  # noqa: E402
from make_case import random_documents, write_tokens  # noqa: E402
from report import Report, skip_without  # noqa: E402
from restart import difference, log_probs, make_job, outcome, recorded_steps, written  # noqa: E402
from two_nodes import TwoNodes, missing, wait_until  # noqa: E402

SCRIPTS = os.path.join(HERE, "..", "..", "scripts", "slurm")
NO_END = 1000000
TRAINING = {
    "zero_optimization.stage": 3,
    "training.lr_scheduler.type": "constant",  # the last step changes nothing before it
    "checkpoint.save_interval": 0,
}
LOG_PROB = {
    "job_type": "log_prob",
    "zero_optimization.stage": 3,
    "log_prob.data": '["scored.h5"]',
    "log_prob.max_token_len": 128,
}


class Cluster:
    """Jobs that run in slurm.base."""

    def __init__(self, slurm, train):
        self.slurm, self.out = slurm, os.path.join(slurm.base, "out")
        # Where the nodes see it.
        shutil.copy(train, os.path.join(slurm.base, "train"))
        make_job(slurm.base)
        documents = random_documents(256, np.random.default_rng(8), 400, 90)
        write_tokens(os.path.join(slurm.base, "scored.h5"), documents, 256)
        self.environment = {key: value for key, value in environment().items() if key.startswith(("OMP_", "OMPI_"))} | {
            "TESSERA_TRAIN": os.path.join(slurm.base, "train"),
            # Both nodes have the same address.
            "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_oob_tcp_if_include": "lo",
        }

    def set_steps(self, steps):
        path = os.path.join(self.slurm.base, "job.toml")
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"max_steps = \d+", f"max_steps = {steps}", file.read())
        self.slurm.write("job.toml", text)

    def submit(self, script, settings):
        """A job in a fresh output directory."""
        shutil.rmtree(self.out, ignore_errors=True)
        layout = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=job.%j"]
        script = os.path.join(SCRIPTS, script)
        return self.slurm.submit(*layout, script, "job.toml", *overrides(settings), **self.environment)

    def said(self, job):
        with open(os.path.join(self.slurm.base, f"job.{job}"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def completed(self, job):
        """None once the job has ended well, or what is wrong."""
        state = self.slurm.end_of(job)
        return None if state == "COMPLETED" else f"job {job} is {state}\n{last_lines(self.said(job))}"

    def started(self, job, ready):
        """Waits until the job has come so far."""
        wait_until(lambda: ready() or self.slurm.state(job)[0] not in ("PENDING", "CONFIGURING", "RUNNING"), 120, job)

    def requeued(self, job):
        """None once the job waits for its next start, or what is wrong."""

        def settled():
            state = self.slurm.state(job)[0]
            return state if state not in ("RUNNING", "SIGNALING", "COMPLETING") else None

        state = wait_until(settled, 120, f"job {job} requeued")
        said = self.said(job)
        if state != "PENDING" or len(re.findall("^stopped by", said, re.MULTILINE)) != 1:
            return f"job {job} is {state}\n{last_lines(said)}"
        return None

    def go_on(self, job):
        # Slurm lets a requeued job wait for two minutes, in which the nodes forget its first start: its steps and, a
        # moment later, that its credential was revoked.
        wait_until(lambda: not self.slurm.steps(job), 60, f"the end of the steps of job {job}")
        self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")

    def announce(self, job):
        """What --signal=B:USR1@... does."""
        self.slurm.run("scancel", "--signal=USR1", "--batch", job)

    def preempt(self, _):
        """A more important job that needs all."""
        self.slurm.run("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")


def training(cluster, script, disturb):
    cluster.set_steps(NO_END)
    job = cluster.submit(script, TRAINING)
    cluster.started(job, lambda: recorded_steps(cluster.out) >= 2)
    disturb(job)
    wrong = cluster.requeued(job)
    if wrong:
        return wrong
    steps = int(re.search(r"stopped by SIG\w+ after step (\d+)", cluster.said(job))[1]) + 3
    cluster.set_steps(steps)
    cluster.go_on(job)
    wrong = cluster.completed(job)
    if wrong:
        return wrong
    if cluster.slurm.state(job)[1] != 1:
        return "it was not started twice"
    got = outcome(cluster.out)
    return cluster.completed(cluster.submit("train.sbatch", TRAINING)) or difference(got, outcome(cluster.out))


def log_prob(cluster):
    path = os.path.join(cluster.out, "log_probs.h5")
    wrong = cluster.completed(cluster.submit("log_prob.sbatch", LOG_PROB))
    if wrong:
        return wrong
    want = log_probs(path)
    for _ in range(5):  # on a busy machine the job may have ended before the signal
        job = cluster.submit("log_prob.sbatch", LOG_PROB)
        cluster.started(job, lambda: written(path + ".partial"))
        if cluster.slurm.state(job)[0] == "RUNNING":
            cluster.announce(job)
            wrong = cluster.requeued(job)
            if wrong and "stopped by" not in wrong:
                continue
            break
    if wrong:
        return wrong
    cluster.go_on(job)
    return cluster.completed(job) or (None if log_probs(path) == want else "the log-prob file differs")


def cancelled(cluster):
    cluster.set_steps(NO_END)
    job = cluster.submit("train.sbatch", TRAINING)
    cluster.started(job, lambda: recorded_steps(cluster.out) >= 2)
    cluster.slurm.run("scancel", job)
    state = cluster.slurm.end_of(job)
    return None if state == "CANCELLED" else f"job {job} is {state}\n{last_lines(cluster.said(job))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    options = parser.parse_args()
    skip_without(missing())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is started is ended then too
    report = Report()
    with TwoNodes() as slurm:
        cluster = Cluster(slurm, os.path.abspath(options.train))
        for name, test in [
            ("training, srun, USR1", lambda: training(cluster, "train.sbatch", cluster.announce)),
            ("training, mpirun, USR1", lambda: training(cluster, "train_mpirun.sbatch", cluster.announce)),
            ("training, srun, pre-emption", lambda: training(cluster, "train.sbatch", cluster.preempt)),
            ("log_prob, srun, USR1", lambda: log_prob(cluster)),
            ("training, cancelled", lambda: cancelled(cluster)),
        ]:
            try:
                wrong = test()
            except Exception as error:  # one test must not take the others with it
                wrong = f"{type(error).__name__}: {error}"
            report(name, wrong)
            if wrong is not None:
                slurm.logs()
                slurm.cancel_all()
    report.finish()


if __name__ == "__main__":
    main()
