"""A Slurm of two nodes on this machine, for tests: needs root, Slurm's and munge's programs, and namespaces.

The nodes n1 and n2 are slurmd in namespaces of their own: processes, host name, /tmp and /dev/shm, without which MPI
would take the nodes for one. They see each other's other files. Whatever runs on a node ends with it. The test and all
that it starts are in a network of their own: a port that some other program of this machine takes between an MPI's
bind and its listen would end a job.
"""

import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SLURM_CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool.%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=10
# The nodes may claim more cores than the machine has.
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

NODE = """
mount --bind {base}/tmp.{node} /tmp && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mount -t proc proc /proc &&
mount --bind {base}/hosts /etc/hosts && hostname {node} || exit 1
slurmd -D -N {node} &
wait
"""

UNSHARE = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private"]


def missing():
    """Why there can be no such Slurm here; None if there can."""
    if os.getuid() != 0:
        return "this needs root"
    for program in ["slurmctld", "slurmd", "srun", "sbatch", "munged", "unshare", "ip"]:
        if not shutil.which(program):
            return f"there is no {program}: scripts/install.sh --slurm installs it"
    mount = ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    tried = subprocess.run([*UNSHARE, "--net", *mount], capture_output=True, text=True)
    return f"namespaces are not permitted: {tried.stderr.strip()}" if tried.returncode else None


def leave_network():
    """Moves this process into a network of its own, with nothing in it but the loopback interface."""
    clone_newnet = 0x40000000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Slurm resolves names only where there is an address that is not a loopback one.
    subprocess.run(["ip", "address", "add", "10.0.0.1/32", "dev", "lo"], check=True)


def wait_until(condition, seconds, what):
    start = time.monotonic()
    while not (result := condition()):
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"waited {seconds} s in vain: {what}")
        time.sleep(0.1)
    return result


class TwoNodes:
    """`with TwoNodes() as slurm`: both nodes are idle and slurm.base is a directory that they see."""

    def __enter__(self):
        # Not below /tmp, of which each node has its own.
        self.base = tempfile.mkdtemp(prefix="two-nodes-", dir="/var/tmp")
        self.daemons = []
        try:
            self.start()
        except BaseException:
            self.logs()
            self.__exit__()
            raise
        return self

    def start(self):
        leave_network()
        os.chmod(self.base, 0o755)
        for name in ["state", "spool.n1", "spool.n2", "munge", "tmp.n1", "tmp.n2"]:
            os.mkdir(os.path.join(self.base, name))
        for node in ["n1", "n2"]:
            os.chmod(os.path.join(self.base, f"tmp.{node}"), 0o1777)
        self.write("slurm.conf", SLURM_CONF.format(base=self.base))
        self.write("cgroup.conf", "CgroupAutomount=no\n")
        with open("/etc/hosts", encoding="utf-8") as file:
            self.write("hosts", file.read() + "\n127.0.0.1 n1 n2\n")
        self.environment = os.environ | {"SLURM_CONF": os.path.join(self.base, "slurm.conf")}

        munge = os.path.join(self.base, "munge")
        key = os.path.join(munge, "key")
        with open(key, "wb") as file:
            file.write(os.urandom(64))
        os.chmod(key, 0o600)
        for path in [munge, key]:
            shutil.chown(path, "munge", "munge")
        files = [f"--{what}-file={munge}/{what}" for what in ["key", "pid", "log", "seed"]]
        self.daemon("munged", "--foreground", f"--socket={munge}/socket", *files, user="munge", group="munge")
        wait_until(lambda: os.path.exists(f"{munge}/socket"), 20, "the socket of munged")
        self.daemon("slurmctld", "-D", "-c")
        for node in ["n1", "n2"]:
            self.daemon(*UNSHARE, "bash", "-c", NODE.format(base=self.base, node=node))
        idle = lambda: self.run("sinfo", "-h", "-p", "low", "-o", "%D %T", check=False).split() == ["2", "idle"]
        wait_until(idle, 60, "both nodes idle")

    def __exit__(self, *_):
        # First those started last. A node's processes go with the first one of its namespace, which --kill-child ends.
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGKILL if daemon.args[0] == "unshare" else signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.base, ignore_errors=True)

    def write(self, name, text):
        with open(os.path.join(self.base, name), "w", encoding="utf-8") as file:
            file.write(text)

    def daemon(self, *command, **credentials):
        log = open(os.path.join(self.base, f"said.{len(self.daemons)}"), "wb")
        with log:
            self.daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **credentials,
                )
            )

    def run(self, *command, check=True, **environment):
        """What a command of Slurm says."""
        result = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=60, cwd=self.base
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def submit(self, *arguments, **environment):
        """sbatch; the job's number."""
        return self.run("sbatch", "--parsable", *arguments, **environment).strip()

    def state(self, job):
        """(state, restarts) of a job: ("RUNNING", 0), ..."""
        fields = dict(f.split("=", 1) for f in self.run("scontrol", "show", "job", job).split() if "=" in f)
        return fields["JobState"], int(fields["Restarts"])

    def steps(self, job):
        """The sockets of steps of a job, its batch script among them, that are not over on their nodes."""
        return glob.glob(os.path.join(self.base, "spool.n?", f"*_{job}.*"))

    def end_of(self, job, seconds=180):
        """The state of a job that has ended."""

        def ended():
            state = self.state(job)[0]
            return state if state not in ("PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING") else None

        return wait_until(ended, seconds, f"the end of job {job}")

    def cancel_all(self):
        def all_gone():
            self.run("scancel", "--user=root")
            return not self.run("squeue", "-h")

        wait_until(all_gone, 60, "no job left")

    def logs(self):
        """The last lines of the daemons' logs, for whoever looks for a fault."""
        for name in sorted(os.listdir(self.base)):
            if name.endswith(".log") or name.startswith("said."):
                with open(os.path.join(self.base, name), encoding="utf-8", errors="replace") as file:
                    print(f"--- {name}", *file.read().splitlines()[-20:], sep="\n", file=sys.stderr)
