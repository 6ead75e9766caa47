"""Programs that share one budget of seconds: each runs within its limit and what is left, and ends with all that it started."""

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid

from launch import last_lines

MARK = "TESSERA_PART"  # in the environment of a part's processes, whoever started them and in whatever session
LEAST_SECONDS = 1  # with less no part begins


def processes_with(entry):
    """Ids of the processes that began with NAME=value in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
            with open(f"/proc/{name}/environ", "rb") as file:
                if entry.encode() in file.read().split(b"\0"):
                    found.append(int(name))
    return found


def kill_marked(mark):
    while pids := processes_with(f"{MARK}={mark}"):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


class Parts:
    """Runs parts and keeps, in a JSON file, what they found. `failed` names those that did not end with 0."""

    def __init__(self, out, seconds):
        self.out, self.ends = out, time.monotonic() + seconds
        self.reserved = 0  # seconds that are for later parts
        self.found, self.failed, self.lock = {"parts": []}, [], threading.Lock()

    def left(self):
        return self.ends - time.monotonic() - self.reserved

    def run(self, name, command, seconds, environment=None):
        """Return what it printed, or None where it failed, was cut off, or left out as no seconds are left."""
        started, limit = time.monotonic(), min(seconds, self.left())
        if limit < LEAST_SECONDS:
            return self.record(name, "left out", 0, "")
        code, said = run_within(limit, command, environment or {})
        return self.record(name, code, time.monotonic() - started, said)

    def record(self, name, code, seconds, said):
        """Keep how a part ended: an exit code, or words where it has none. Return `said`, or None where it failed."""
        with self.lock:
            self.found["parts"].append({"name": name, "code": code, "seconds": round(seconds, 1), "end": said[-2000:]})
            print(f"{name:<60} {'ok' if code == 0 else code!s:<8} {seconds:6.1f} s", flush=True)
            if code != 0:
                self.failed.append(name)
                print(last_lines(said), flush=True)
            self.save()
        return said if code == 0 else None

    def run_together(self, parts, most):
        """Several of (name, command, seconds[, environment]), at most `most` at a time."""
        with concurrent.futures.ThreadPoolExecutor(most) as pool:
            list(pool.map(lambda part: self.run(*part), parts))

    def save(self):
        with open(self.out, "w", encoding="utf-8") as file:
            json.dump(self.found | {"failed": self.failed}, file, indent=1)


def run_within(seconds, command, environment):
    """Exit code and output; "cut off" where it took longer. No process of it is left."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=os.path.dirname(os.path.abspath(__file__)), stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment | {MARK: mark})
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = "cut off"
        kill_marked(mark)
        process.wait()
        log.seek(0)
        return code, log.read().decode(errors="replace")
