"""Several hosts on one machine: namespaces of Linux behind a switch, each with a link of a given rate.

    with hosts.Cluster(4, rate="1gbit") as cluster:
        result = cluster.run(1, [sys.executable, "program.py"])  # ranks 0 to 3, one on each host

By hand: `python tests/support/harness/hosts.py --hosts 4 --rate 1gbit -- PROGRAM ARGS`. How it works: docs/hosts.md.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    if importlib.util.find_spec("psgd") is None:
        sys.path.insert(0, str(Path(__file__).parents[3]))

from harness import job, mpi, processes

TOOLS = ("hostname", "ip", "mount", "nsenter", "setpriv", "tc", "unshare")
HEAD = "head"
NETWORK = "10.77.0"  # seen by nobody else: it ends at the switch, which has a network namespace of its own
BURST = "128kb"  # above the 64 KiB that the kernel hands to a link at once
LATENCY = "20ms"  # of data at most in a full queue of the switch
MOST = 200
READY_S = 20.0


class UnavailableError(RuntimeError):
    """This machine does not let us make hosts; the text says why."""


class _Machine:
    """Namespaces that live as long as their keeper, which lives as long as the pipe from this process is open.

    They have no name anywhere, so nothing of them can stay: when this process ends, even by SIGKILL, the pipe
    closes, the keeper ends, and as it is process 1 of its PID namespace the kernel kills all others there.
    """

    def __init__(self, name: str, table: Path, own_processes: bool) -> None:
        kinds = ["--net", "--uts", "--ipc", "--mount"]
        apart = ["--pid", "--fork", "--mount-proc", "--kill-child"] if own_processes else []
        script = (
            f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && mount --bind {shlex.quote(str(table))} /etc/hosts"
            " && ip link set lo up && echo ready && exec cat"
        )
        self.name = name
        self.keeper = subprocess.Popen(
            ["unshare", *kinds, *apart, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the job
            text=True,
        )
        self.own_processes = own_processes
        self.pid = 0

    def meet(self) -> None:
        """Waits for the namespaces, and finds the process that keeps them."""
        assert self.keeper.stdout is not None
        assert self.keeper.stderr is not None
        if self.keeper.stdout.readline() != "ready\n":
            raise UnavailableError(f"cannot make namespaces: {self.keeper.stderr.read().strip()}")
        self.pid = self.keeper.pid
        if self.own_processes:
            self.pid = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def enter(self) -> list[str]:
        """Words to put before a command that is to run there."""
        apart = ["--pid"] if self.own_processes else []
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--ipc", "--mount", *apart]

    def batch(self, program: str, lines: Sequence[str]) -> None:
        """Runs lines of `ip` or `tc` there."""
        text = "".join(line + "\n" for line in lines)
        words = [*self.enter(), program, "-batch", "-"]
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=READY_S, check=False)
        if done.returncode:
            raise UnavailableError(f"{program} refused on {self.name}: {done.stderr.strip()}\n{text}")

    def close(self) -> None:
        """Ends the keeper, and with it the namespaces and all that runs there. Blocks until that is done."""
        for pipe in (self.keeper.stdin, self.keeper.stdout, self.keeper.stderr):
            assert pipe is not None
            pipe.close()
        try:
            self.keeper.wait(timeout=READY_S)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()


class Cluster:
    """Hosts `host0`, `host1`, ... joined by a switch, and the machine `head`, on it too, where mpiexec runs.

    Args:
        n: hosts, 1 to 200.
        rate: of every host's link, each way, as `tc` writes it: `1gbit`, `200mbit`. It counts the headers of
            Ethernet, IP and TCP too, as a real link does; at 1500 bytes a packet 95.6 % of it is payload.

    Raises:
        ValueError: n or rate is not such.
        UnavailableError: on entering, where the system does not let us.
    """

    def __init__(self, n: int, rate: str = "1gbit") -> None:
        if not 1 <= n <= MOST:
            raise ValueError(f"hosts: expected 1 to {MOST}, got {n}")
        if not re.fullmatch(r"[1-9]\d*[kmg]?bit", rate):  # what tc refuses must not look like a machine without tc
            raise ValueError(f"rate: expected a number and bit, kbit, mbit or gbit, like 1gbit, got {rate!r}")
        self.n = n
        self.rate = rate
        self.names = [f"host{k}" for k in range(n)]
        self.folder = Path()
        self._machines: list[_Machine] = []
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        if os.geteuid() != 0:
            raise UnavailableError("needs root")
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise UnavailableError(f"not installed: {', '.join(missing)}")
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"psgd-hosts-{os.getpid()}-")))
            self._make(stack)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _make(self, stack: contextlib.ExitStack) -> None:
        addresses = {name: f"{NETWORK}.{k + 1}" for k, name in enumerate([*self.names, HEAD])}
        table = self.folder / "hosts"
        table.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in addresses.items()))
        self._machines = []
        for name in [*self.names, HEAD]:
            self._machines.append(_Machine(name, table, own_processes=name != HEAD))
            stack.callback(self._machines[-1].close)
        for machine in self._machines:
            machine.meet()
        *hosts, head = self._machines
        plug = [
            "link add eth0 type bridge",
            "link set eth0 addrgenmode none",
            f"addr add {addresses[HEAD]}/24 dev eth0",
        ]
        for k, host in enumerate(hosts):
            plug.append(f"link add port{k} type veth peer name eth0 netns {host.pid}")
            plug.append(f"link set port{k} master eth0 addrgenmode none up")
        head.batch("ip", [*plug, "link set eth0 up"])
        limit = f"root tbf rate {self.rate} burst {BURST} latency {LATENCY}"
        head.batch("tc", [f"qdisc add dev port{k} {limit}" for k in range(self.n)])
        for host in hosts:
            ready = ["link set eth0 addrgenmode none up", f"addr add {addresses[host.name]}/24 dev eth0"]
            host.batch("ip", ready)
            host.batch("tc", [f"qdisc add dev eth0 {limit}"])
        self._write_agent(hosts)

    def _write_agent(self, hosts: Sequence[_Machine]) -> None:
        """A program that takes the place of ssh: AGENT [-OPTION ...] HOST WORDS, the words for a shell there."""
        lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', "host=$1", "shift", "case $host in"]
        for host in hosts:
            own = self.folder / host.name
            own.mkdir()
            into = shlex.join(host.enter())
            lines.append(f'{host.name}) TMPDIR={own} exec {into} sh -c "$*";;')
        self.agent = self.folder / "agent"
        self.agent.write_text("\n".join([*lines, '*) echo "$host: no such host" >&2; exit 255;;', "esac", ""]))
        self.agent.chmod(0o755)

    def command(self, ranks_per_host: int, argv: Sequence[str]) -> list[str]:
        """Words that run a program under mpiexec, ranks k * ranks_per_host and on on host k."""
        slots = ",".join(f"{name}:{ranks_per_host}" for name in self.names)
        if mpi.is_open_mpi():
            words = ["--allow-run-as-root", "--bind-to", "none", "--host", slots]
            words += ["--map-by", f"ppr:{ranks_per_host}:node"]
            words += ["--prtemca", "plm_ssh_agent", str(self.agent), "--prtemca", "plm_ssh_no_tree_spawn", "1"]
            words += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self,sm", "--mca", "btl_tcp_if_include", "eth0"]
            if self.n * ranks_per_host > len(os.sched_getaffinity(0)):  # mpirun cannot know that hosts share cores
                words += ["--mca", "mpi_yield_when_idle", "1"]
        else:
            words = ["-launcher", "ssh", "-launcher-exec", str(self.agent), "-hosts", slots, "-iface", "eth0"]
        # mpiexec is in no PID namespace of ours, as it has to enter them all, so it must learn of our end itself.
        start = [*self._machines[-1].enter(), "setpriv", "--pdeathsig", "TERM", mpi.mpiexec()]
        return [*start, *words, "-n", str(self.n * ranks_per_host), *argv]

    def environment(self) -> dict[str, str]:
        """Variables that the ranks need: TCP over the link between hosts."""
        mpich = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}
        return {"TMPDIR": str(self.folder), **({} if mpi.is_open_mpi() else mpich)}

    def run(
        self,
        ranks_per_host: int,
        code_or_argv: str | Sequence[str],
        timeout: float = 60.0,
        env: dict[str, str] | None = None,
        check: bool = False,
    ) -> job.Result:
        """Runs Python code (a string) or a program across the hosts, as `harness.job.Jobs` does on one."""
        if isinstance(code_or_argv, str):
            script = self.folder / f"job-{uuid.uuid4().hex[:8]}.py"
            script.write_text(code_or_argv)
            code_or_argv = [sys.executable, str(script)]
        words = self.command(ranks_per_host, code_or_argv)
        return job.Jobs(self.folder)(None, words, timeout, {**self.environment(), **(env or {})}, check=check)


def main() -> int:
    """The command line; returns mpiexec's exit code."""
    parser = argparse.ArgumentParser(
        prog="hosts.py", description="Runs an MPI program on hosts made up on this machine."
    )
    parser.add_argument("--hosts", type=int, default=2, help="how many (2)")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, each way, as tc writes it (1gbit)")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="(1)")
    parser.add_argument("program", nargs="+", metavar="PROGRAM ARGS", help="behind --")
    given = parser.parse_args()
    token = uuid.uuid4().hex
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with Cluster(given.hosts, given.rate) as cluster:
            words = cluster.command(given.ranks_per_host, given.program)
            env = {**mpi.environment(token), **cluster.environment()}
            try:
                code = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, check=False).returncode
            finally:
                processes.kill(token)
    except (UnavailableError, ValueError) as error:
        parser.exit(2, f"hosts.py: {error}\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
