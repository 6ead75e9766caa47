#!/usr/bin/env python3
"""The bytes that `train` reports for its exchanges, beside those that cross the link between two hosts.

    traffic_test.py --train BINARY

At every stage a model is trained for 4 and for 8 steps by one rank a host, and by two. The difference of the two runs'
counters is what 4 steps sent, without what starts and ends a run: it must be what the ranks report for 4 steps and a
little more, of which `most_around` says what for. The records of the steps, the table at the end and what the stage must
send by its definition must agree as well.
Exits with 77, which ctest takes for skipped, where there can be no such hosts. The last line is `N passed, N failed`.
"""

import argparse
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

from launch import last_lines, overrides  # noqa: E402
from network_job import read_metrics, write_network_job  # noqa: E402
from report import Report, skip_without  # noqa: E402
from two_hosts import HEADERS, NAMES, TwoHosts, end_on_signals, missing  # noqa: E402

STEPS = 4
SEGMENT = 1448  # bytes of data in a packet of 1500

# Slower than the machine could do, so that no packet is dropped for want of room.
RATE = "2gbit"

SETTINGS = {"mpi_yield_when_idle": 1}  # the hosts share the cores


def by_purpose(text):
    """Bytes of the table "exchanged by rank 0"."""
    table = text[text.index("exchanged by rank 0"):]
    rows = re.finditer(r"^ +([a-z ]+?) +[\d,]+ calls, ([\d,]+) bytes", table, re.M)
    return {row[1]: int(row[2].replace(",", "")) for row in rows}


def crossing(reported, ranks_per_host):
    """Bytes that one host sends to the other, from those that one rank reports."""
    if ranks_per_host == 1:
        return sum(reported.values())
    ranks = 2 * ranks_per_host
    # Every rank sends its pieces to all others: those on the own host see no link.
    to_owners = reported.get("reduce gradients", 0)
    direct = ranks_per_host * to_owners * ranks_per_host // (ranks - 1)
    # A ring leaves the host at one place, through which goes what any rank sends.
    return direct + sum(reported.values()) - to_owners


def most_around(data, steps):
    """Bytes that may be in the packets besides `data`.

    Open MPI puts less than 100 bytes before each piece of a message, and these have 64 KiB or more but at a message's
    begin and end. Besides, a step has a few dozen short messages: sums and norms on which all ranks agree.
    """
    return data * 100 // 65536 + steps * 10000


class Test(Report):
    def __init__(self, train, hosts):
        super().__init__()
        self.train, self.hosts = train, hosts
        self.runs = 0

    def run(self, name, stage, ranks_per_host, steps):
        """The Sent of each host, and what rank 0 reports as sent, by purpose; None if the run failed."""
        self.runs += 1
        output = f"out.{self.runs}"
        settings = {"output_dir": output, "zero_optimization.stage": stage, "training.max_steps": steps}
        before = self.hosts.sent()
        arguments = [self.train, "--config", "job.toml", *overrides(settings)]
        result = self.hosts.run(ranks_per_host, arguments, self.hosts.directory, SETTINGS)
        after = self.hosts.sent()
        if result.code != 0:
            self(name, f"exit code {result.code}\n{last_lines(result.said)}")
            return None
        reported = by_purpose(result.said)
        recorded = sum(record["exchanged_bytes"] for record in read_metrics(self.hosts.directory, output))
        self.check(name, recorded == sum(reported.values()), f"{recorded:,} bytes recorded, {reported} in the table")
        return [new - old for old, new in zip(before, after)], reported

    def stage(self, stage, ranks_per_host, parameters):
        name = f"stage {stage}, 2 x {ranks_per_host} ranks"
        runs = [self.run(name, stage, ranks_per_host, steps) for steps in (STEPS, 2 * STEPS)]
        if None in runs:
            return
        (short, reported_short), (long, reported_long) = runs
        reported = {purpose: count - reported_short[purpose] for purpose, count in reported_long.items()}
        self.check(name, reported == reported_short, f"{reported} in the second half, {reported_short} in the first")
        # (N - 1) / N of the fp32 gradients and of the fp32 weights, as often as the stage's definition says; buckets are
        # padded, and at stage 3 a unit may be there still from its last use.
        ranks = 2 * ranks_per_host
        once = STEPS * 4 * parameters * (ranks - 1) / ranks
        times = sum(reported.values()) / once
        least, most = (2.7, 3) if stage == 3 else (2, 2)
        self.check(name, least <= times <= 1.01 * most, f"{times:.3f} times the model was sent")

        data = crossing(reported, ranks_per_host)
        around = most_around(data, STEPS)
        for host, one, two in zip(NAMES, short, long):
            sent = two - one
            counted = sent.bytes - HEADERS * sent.packets
            print(
                f"{name}, {host}: reported {data:,} bytes ({times:.3f} times the model); the packets held {counted:,} "
                f"(+ {counted - data:,}, {100 * (counted / data - 1):.3f} %), with their headers {sent.bytes:,} "
                f"(+ {100 * (sent.bytes / data - 1):.3f} %)",
                flush=True,
            )
            # What TCP sent again may be in either run.
            least, most = data - one.again * SEGMENT, data + around + two.again * SEGMENT
            self.check(name, least <= counted <= most, f"{host}: {counted:,} bytes, not {least:,} to {most:,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    options = parser.parse_args()
    skip_without(missing())
    end_on_signals()
    with TwoHosts(RATE) as hosts:
        parameters = write_network_job(hosts.directory, hidden=256, layers=5, batch=8, sequence=32)
        test = Test(os.path.abspath(options.train), hosts)
        print(f"a model of {parameters:,} parameters; {STEPS} steps", flush=True)
        names = hosts.run(1, ["hostname"], hosts.directory).said.split()
        test.check("host names", sorted(names) == sorted(NAMES), names)
        for ranks_per_host in (1, 2):
            for stage in (0, 1, 2, 3):
                test.stage(stage, ranks_per_host, parameters)
    test.finish()


if __name__ == "__main__":
    main()
