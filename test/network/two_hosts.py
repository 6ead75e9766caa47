#!/usr/bin/env python3
"""Two hosts on this machine, joined by one link, for what has to be seen on a network: needs root and `ip`.

    two_hosts.py [--rate 200mbit] [--ranks-per-host N] -- PROGRAM ARGUMENTS ...

A host is a network namespace with an address and a host name of its own; the link is a pair of virtual Ethernet devices,
of the machine's full speed or of a given rate. mpirun runs on the first host and starts its daemon on the second one as
it would through ssh. The ranks talk over TCP alone: those of different hosts over the link, whose counters tell the
bytes. The hosts see the same files. Whatever runs on them ends with them.
"""

import argparse
import dataclasses
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

import launch  # noqa: E402

NAMES = ("host-a", "host-b")
DEVICE = "net0"  # on either host
# What the counters see of a packet besides its data: Ethernet, IP, and TCP with its time stamps. The packets are those of
# the device, to which the kernel hands up to 64 KiB at once; a wire would see one of 1500 bytes for each 1448 of data.
HEADERS = 14 + 20 + 32

# The last words of mpirun's call of ssh are a host and a command line for the shell there.
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec {prefix}$host unshare --uts sh -c 'hostname "$0" && eval "exec $1"' "$host" "$*"
"""


def missing():
    """Why there can be no such hosts here; None if there can."""
    if os.getuid() != 0:
        return "this needs root"
    for program in ["ip", "tc", "unshare", "mpirun"]:
        if not shutil.which(program):
            return f"there is no {program}"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", f"mount -t sysfs sysfs /sys && ip link add {DEVICE} type veth"],
        capture_output=True,
        text=True,
    )
    return f"namespaces are not permitted: {tried.stderr.strip()}" if tried.returncode else None


def end_on_signals():
    """SIGTERM and SIGHUP leave as Ctrl-C does: through all `with`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))


def call(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def remove_namespace(name):
    """Ends what runs there; the devices go with the namespace."""
    while pids := call("ip", "netns", "pids", name).split():
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    call("ip", "netns", "delete", name)


def remove_leftovers():
    """What a run left that was killed without a chance to clean up: its process is not there any more."""
    for path in glob.glob("/run/netns/two-hosts-*") + glob.glob(os.path.join(tempfile.gettempdir(), "two-hosts-*")):
        owner = re.match(r"two-hosts-(\d+)-", os.path.basename(path))
        if not owner or os.path.exists(f"/proc/{owner[1]}"):
            continue
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove_namespace(os.path.basename(path))


@dataclasses.dataclass
class Sent:
    bytes: int  # with the headers
    packets: int
    again: int  # segments that TCP had to repeat

    def __sub__(self, other):
        return Sent(self.bytes - other.bytes, self.packets - other.packets, self.again - other.again)


class TwoHosts:
    """`with TwoHosts() as hosts`: hosts.run(...) runs a program on both.

    `rate`, as tc understands it, holds for each direction of the link; None: what the machine can do. hosts.directory is
    for the jobs' files.
    """

    def __init__(self, rate=None):
        self.rate = rate
        self.prefix = f"two-hosts-{os.getpid()}-"

    def __enter__(self):
        remove_leftovers()
        self.directory = tempfile.mkdtemp(prefix=self.prefix)
        try:
            self.set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def set_up(self):
        self.agent = os.path.join(self.directory, "agent")
        with open(self.agent, "w", encoding="utf-8") as file:
            file.write(AGENT.format(prefix=self.prefix))
        os.chmod(self.agent, 0o755)
        for name in NAMES:
            call("ip", "netns", "add", self.prefix + name)
            # Nothing but the programs' own traffic, and nothing twice because an acknowledgement came late on a busy
            # machine.
            quiet = ["ipv6.conf.all.disable_ipv6=1", "ipv6.conf.default.disable_ipv6=1", "ipv4.tcp_early_retrans=0"]
            self.on(name, "sysctl", "-q", "-w", *[f"net.{setting}" for setting in quiet])
        first, second = (self.prefix + name for name in NAMES)
        call("ip", "link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE, "netns", second)
        for number, name in enumerate(NAMES, 1):
            self.on(name, "ip", "link", "set", "lo", "up")
            self.on(name, "ip", "address", "add", f"10.77.0.{number}/24", "dev", DEVICE)
            self.on(name, "ip", "link", "set", DEVICE, "mtu", "1500", "up")
        self.shape(self.rate)

    def __exit__(self, *_):
        for name in NAMES:
            if os.path.exists(f"/run/netns/{self.prefix}{name}"):
                remove_namespace(self.prefix + name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def on(self, name, *command):
        """What a command says on one of the hosts."""
        return call("ip", "netns", "exec", self.prefix + name, *command)

    def shape(self, rate):
        """Sets the rate of the link, for each direction; None: what the machine can do."""
        for name in NAMES:
            if "tbf" in self.on(name, "tc", "qdisc", "show", "dev", DEVICE):
                self.on(name, "tc", "qdisc", "delete", "dev", DEVICE, "root")
            if rate:
                limits = ["rate", rate, "burst", "128kb", "latency", "50ms"]
                self.on(name, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *limits)

    def sent(self):
        """What each host has sent over the link since it exists."""
        statistics = f"/sys/class/net/{DEVICE}/statistics/"
        result = []
        for name in NAMES:
            said = self.on(name, "cat", statistics + "tx_bytes", statistics + "tx_packets", "/proc/net/snmp").splitlines()
            names, values = [line.split() for line in said if line.startswith("Tcp:")]
            result.append(Sent(int(said[0]), int(said[1]), int(values[names.index("RetransSegs")])))
        return result

    def command(self, ranks_per_host, arguments, settings=None):
        """The command line that runs a program on both hosts; `settings` are further ones of Open MPI. The ranks of the
        first host come first."""
        host_file = os.path.join(self.directory, f"hosts.{ranks_per_host}")
        with open(host_file, "w", encoding="utf-8") as file:
            file.writelines(f"{name} slots={ranks_per_host}\n" for name in NAMES)
        mpirun = launch.mpirun((2 * ranks_per_host, arguments))
        chosen = {
            "plm_rsh_agent": self.agent,
            "btl": "tcp,self",
            "btl_tcp_if_include": DEVICE,
            "oob": "tcp",
            "oob_tcp_if_include": DEVICE,
        } | (settings or {})
        mpirun[1:1] = ["--hostfile", host_file]
        for name, value in chosen.items():
            mpirun[1:1] = ["--mca", name, str(value)]
        enter = ["ip", "netns", "exec", self.prefix + NAMES[0], "unshare", "--uts"]
        return [*enter, "sh", "-c", 'hostname "$0" && exec "$@"', NAMES[0], *mpirun]

    def run(self, ranks_per_host, arguments, cwd, settings=None, threads=1, timeout=300):
        """launch.Result of a program on both hosts."""
        return launch.run(self.command(ranks_per_host, arguments, settings), cwd, threads, timeout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", help="of each direction of the link, as tc understands it (default: no limit)")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    why = missing()
    if why:
        sys.exit(f"two_hosts.py: {why}")
    end_on_signals()
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    with TwoHosts(options.rate) as hosts:
        before = hosts.sent()
        result = subprocess.run(hosts.command(options.ranks_per_host, program), env=launch.environment())
        for name, old, new in zip(NAMES, before, hosts.sent()):
            print(f"{name}: {new - old}")
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
