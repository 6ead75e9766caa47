"""How the end-to-end tests start, watch and kill `train` under mpirun."""

import dataclasses
import os
import re
import signal
import subprocess
import time

# The one message of a run that fails.
MESSAGE = re.compile(r"\berror\b", re.IGNORECASE)


def environment(threads=1):
    """One thread a rank unless told otherwise: the tests run several programs side by side."""
    # Waiting threads sleep: with more threads than cores, spinning ones would take the time of those that work.
    changed = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    if os.getuid() == 0:
        changed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return os.environ | changed


def mpirun(*programs, output=None):
    """The command line for programs = (ranks, arguments), ... in one job. `output`: a directory for what each rank says."""
    command = ["mpirun", "--quiet", "--oversubscribe", "--bind-to", "none"]
    if output:
        command += ["--output-filename", f"{output}:nocopy"]
    for number, (ranks, arguments) in enumerate(programs):
        command += ([":"] if number else []) + ["-np", str(ranks), *arguments]
    return command


def overrides(settings):
    """--set arguments of a dictionary of dotted keys."""
    arguments = []
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        arguments += ["--set", f"{key}={text}"]
    return arguments


def session_processes(session):
    """Process ids of a session that still run (zombies do not)."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        if int(fields[3]) == session and fields[0] not in ("Z", "X"):
            found.append(int(name))
    return found


class Launch:
    """A running job: mpirun and its ranks, which are the processes of one session."""

    def __init__(self, command, cwd, threads=1, log=None):
        self.log = open(log, "wb") if log else subprocess.DEVNULL
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(threads),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.session = self.process.pid

    def ranks(self):
        """Processes of the job other than mpirun."""
        return [pid for pid in session_processes(self.session) if pid != self.session]

    def kill(self):
        """kill -9 of everything at once, as when a machine goes down. Returns when all are gone."""
        while pids := session_processes(self.session):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.poll()
            time.sleep(0.002)
        self.process.wait()
        self.close()

    def wait(self, timeout):
        """The exit code, or None if the job had to be killed after `timeout` seconds."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.close()
        return code

    def close(self):
        if self.log is not subprocess.DEVNULL:
            self.log.close()


@dataclasses.dataclass
class Result:
    code: int | None  # None: it did not end in time and was killed
    said: str


def run(command, cwd, threads=1, timeout=300):
    """Runs a job to its end."""
    log = os.path.join(cwd, f".said-{os.getpid()}-{time.monotonic_ns()}")
    code = Launch(command, cwd, threads, log).wait(timeout)
    with open(log, encoding="utf-8", errors="replace") as file:
        said = file.read()
    os.remove(log)
    return Result(code, said)


def last_lines(text, count=15):
    return "\n".join("    | " + line for line in text.strip().splitlines()[-count:])
