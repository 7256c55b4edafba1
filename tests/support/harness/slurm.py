"""A SLURM cluster on one machine: munged, slurmctld and a slurmd on each of the harness's hosts.

    with slurm.Slurm(2) as cluster:
        cluster.run("sbatch", "--parsable", "job.sbatch")  # on `head`, as from a login node

All lies in one temporary folder, which is gone with the cluster, as all processes are. How it works: docs/cluster.md.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import hosts, mpi, processes

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scontrol")
DEBIAN = "slurm-wlm munge libpmix2 libpmix-dev"  # Slurm loads libpmix.so, which is in the last one
READY_S = 30.0
PAUSE_S = 2.0
CPUS = 16  # that each node says it has; nothing is bound

# linuxproc finds a job's processes by their parents: no cgroups, which hosts made of namespaces do not have.
CONFIG = """
ClusterName=psgd
SlurmctldHost=head({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
TmpFS={folder}/%n/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
KillWait=5
MinJobAge=600
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={names} CPUs={cpus} RealMemory=1000 Gres=gpu:4
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10
PartitionName=cheap Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime=10
"""


class Slurm:
    """A cluster of n nodes `host0`, `host1`, ... and a login node, which runs its controller too.

    Args:
        n: nodes.

    Raises:
        hosts.UnavailableError: on entering, where the system does not let us or programs are missing.
    """

    def __init__(self, n: int) -> None:
        self.hosts = hosts.Cluster(n, rate="10gbit")
        self.token = uuid.uuid4().hex
        self.folder = Path()
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._requeued: dict[tuple[str, str], float] = {}
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> "Slurm":
        if missing := [name for name in DAEMONS if shutil.which(name, path=_path()) is None]:
            raise hosts.UnavailableError(f"not installed: {', '.join(missing)} (Debian: {DEBIAN})")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.hosts)
            self.folder = self.hosts.folder
            stack.callback(processes.kill, self.token)  # a job's processes carry it too
            stack.callback(self._stop)
            self._start()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _start(self) -> None:
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                folder=self.folder,
                address=f"{hosts.NETWORK}.{self.hosts.n + 1}",
                names=f"host[0-{self.hosts.n - 1}]",
                cpus=CPUS,
            )
        )
        for k in range(4):  # nothing stands behind them
            (self.folder / f"gpu{k}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        words = [f"--{name.replace('log', 'log')}-file={path}" for name, path in files.items() if name != "socket"]
        self._daemon(
            "head", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={files['socket']}", *words
        )
        self._wait(files["socket"].exists, "munged")
        self._daemon("head", "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        for name in self.hosts.names:
            for own in ("spool", "tmp"):
                (self.folder / name / own).mkdir(parents=True)
            self._daemon(name, "slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf"))
        self._wait(self._idle, "the nodes")

    def _idle(self) -> bool:
        said = self.run("sinfo", "--noheader", "--partition=main", "--format=%T %D", check=False).stdout
        return said.split() == ["idle", str(self.hosts.n)]

    def _daemon(self, machine: str, *words: str) -> None:
        # As the test's process ends, so do they; those on hosts end with the host too.
        argv = [*self._enter(machine), "setpriv", "--pdeathsig", "KILL", *words]
        with (self.folder / f"{Path(words[0]).name}-{machine}.out").open("wb") as out:
            started = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment(), start_new_session=True
            )
        self._daemons.append(started)

    def lose(self, name: str) -> None:
        """A node is lost: all its processes end at once, its daemon too."""
        machine = next(one for one in self.hosts._machines if one.name == name)
        network, keep = os.readlink(f"/proc/{machine.pid}/ns/net"), {str(machine.pid), str(machine.keeper.pid)}
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and folder.name not in keep and os.readlink(folder / "ns/net") == network:
                    os.kill(int(folder.name), signal.SIGKILL)

    def bring_back(self, name: str) -> None:
        """A node that was lost is there again. The controller is told that it was away, which it finds out late."""
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost")
        self._daemon(name, "slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf"))

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_S
        while not ready():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self._daemons):
                said = "".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.out")))
                raise hosts.UnavailableError(f"SLURM: {what} not ready: {said}")
            time.sleep(0.1)

    def _enter(self, machine: str) -> list[str]:
        return next(one.enter() for one in self.hosts._machines if one.name == machine)

    def environment(self, extra: dict[str, str | None] | None = None) -> dict[str, str]:
        """Variables of a user on the login node, with the psgd under test; None takes one away."""
        env = {k: v for k, v in mpi.environment(self.token).items() if not k.startswith(("SLURM_", *mpi.THREADS))}
        env |= {"PATH": f"{_path()}", "SLURM_CONF": str(self.folder / "slurm.conf")}
        env |= {name: value for name, value in self.hosts.environment().items() if name != "TMPDIR"}
        if mpi.is_open_mpi():
            env |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self,sm", "OMPI_MCA_btl_tcp_if_include": "eth0"}
            env |= {"OMPI_MCA_mpi_yield_when_idle": "1"}  # it cannot know that the nodes share cores
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env |= {"NUMBA_CACHE_DIR": ""}  # what was compiled already, unless a test wants other
        del env["TMPDIR"]  # a node's own
        return {name: value for name, value in (env | (extra or {})).items() if value is not None}

    def run(
        self,
        *words: str,
        env: dict[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on the login node and waits for it."""
        done = subprocess.run(
            [*self._enter("head"), "env", f"--chdir={cwd or self.folder}", *words],
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of a job: JobState, ExitCode, Restarts, ..."""
        lines = [line.strip() for line in self.run("scontrol", "show", "job", number).stdout.splitlines()]
        paths = [line for line in lines if line.startswith(("Command=", "StdErr=", "StdOut=", "WorkDir="))]
        words = [word for line in lines if line not in paths for word in line.split() if "=" in word]
        return dict(word.partition("=")[::2] for word in [*paths, *words])  # paths may have blanks

    def wait(
        self,
        number: str,
        states: Sequence[str] = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"),
        timeout_s: float = 60.0,
    ) -> dict[str, str]:
        """Waits until a job is in one of the states."""
        deadline = time.monotonic() + timeout_s
        while (found := self.job(number))["JobState"] not in states:
            if time.monotonic() > deadline:
                raise AssertionError(f"job {number}: not {states} after {timeout_s} s: {found}\n{self.log(found)}")
            time.sleep(0.2)
        return found

    def start_now(self, number: str) -> None:
        """Lets a requeued job start some seconds later instead of after two minutes; to be called until it does.

        Not at once: slurmd takes a start in the second in which it ended the last turn for a part of that one.
        """
        job = self.job(number)
        if job["JobState"] == "PENDING":
            seen = self._requeued.setdefault((number, job["Restarts"]), time.monotonic())
            if time.monotonic() - seen > PAUSE_S:
                self.run("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)

    def log(self, job: dict[str, str]) -> str:
        """A job's output so far."""
        path = Path(job.get("StdOut", "/nonexistent"))
        return path.read_text() if path.is_file() else f"(no {path})"


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
