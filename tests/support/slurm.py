"""A private Slurm: munge, a controller and two to eight nodes on loopback, everything in one folder, gone at the end.

`scripts/slurm [--nodes N] COMMAND…` installs Debian's packages where it may, starts a cluster, runs the command with
SLURM_CONF and an aisbench.toml for it, and ends the cluster, also after a failure or a signal. Tests share the cluster
of the command that started them, or else one of their session. A keeper process ends a cluster when the last process
that uses it is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SLURM_PRIVATE_CLUSTER"  # the folder of a cluster that runs
ABSENT = "no Slurm on this machine: run scripts/slurm true as root"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol", "sacct")
MOST_NODES = 8
CARDS = 8
_START_S, _END_S = 20.0, 20.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"  # an ordinary user's PATH lacks the daemons'
_CONF = """\
ClusterName=aisbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp
ReturnToService=2
KillWait=2
SlurmdTimeout=10
MessageTimeout=3
MailProg=/bin/true
GresTypes=npu
{nodes}
PartitionName=acceptance Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=9
PartitionName=short Nodes=ALL MaxTime=5 MaxNodes=1
PartitionName=closed Nodes=ALL State=DOWN
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4000 Gres=npu:{cards}"
_TOML = """\
# Of a private Slurm that scripts/slurm started: the suites' miniatures run on it.
[slurm]
share = "{folder}/share"
partition = "acceptance"
gres = "npu"
python = "{python}"
poll = "0.2s"
miniature = "yes"
"""


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]


def install() -> None:
    """Install Debian's packages if this process may; their services are not started."""
    if not missing_programs() or os.geteuid() or not shutil.which("apt-get"):
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=False, env=quiet)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    done = subprocess.run(command, check=False, env=quiet, capture_output=True, text=True)
    if done.returncode:
        print(f"apt-get could not install {' '.join(PACKAGES)}: {done.stderr.strip()[-500:]}", file=sys.stderr)


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs in a folder."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "AISBENCH_CONFIG": str(self.folder / "aisbench.toml"),
            VARIABLE: str(self.folder),
        }

    @property
    def share(self) -> Path:
        return self.folder / "share"

    @property
    def nodes(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "spool").iterdir())

    def run(self, *command: str, check: bool = True) -> str:
        """What a command of Slurm prints."""
        environment = {**os.environ, **self.environment, "PATH": _PATH}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start_controller(self, *options: str) -> None:
        self.run("slurmctld", *options)

    def start_node(self, name: str) -> None:
        self.run("slurmd", "-N", name)

    def signal(self, daemon: str, number: int) -> int:
        """Send a signal to `slurmctld`, or to `slurmd-NODE`; returns its process id, 0 if there is none."""
        pid = self._pid(self.folder / f"{daemon}.pid")
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, number)
        return pid

    def _pid(self, file: Path) -> int:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            return 0

    def wait_for_nodes(self, count: int) -> bool:
        """True once so many nodes are idle."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if (
                len(self.run("sinfo", "-hN", "-p", "acceptance", "-t", "idle", "-o", "%N", check=False).split())
                >= count
            ):
                return True
            time.sleep(0.1)
        return False

    def end(self) -> None:
        """End the jobs first: daemons that stop leave them running."""
        if self._pid(self.folder / "slurmctld.pid"):
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.run("scancel", "-u", getpass.getuser())
                deadline = time.monotonic() + _END_S
                while self.run("squeue", "-h") and time.monotonic() < deadline:
                    time.sleep(0.1)
        files = [*self.folder.glob("slurmd-*.pid"), self.folder / "slurmctld.pid", self.folder / "munge/pid"]
        for number in (signal.SIGTERM, signal.SIGKILL):
            pids = [pid for pid in map(self._pid, files) if pid and _is_daemon(pid)]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + 5
            while any(map(_is_daemon, pids)) and time.monotonic() < deadline:
                time.sleep(0.05)


def _is_daemon(pid: int) -> bool:
    """Whether the process is still one of Slurm's or munge's, and no other that got its number."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith(("slurm", "munged"))
    except OSError:
        return False


def start(folder: Path, nodes: int = 2) -> Cluster:
    """Start a cluster in an empty folder."""
    for name in ("state", "log", "munge", "share", *(f"spool/node{number}" for number in range(1, nodes + 1))):
        (folder / name).mkdir(parents=True)
    for name in (".", "munge"):
        (folder / name).chmod(0o755)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    (folder / "gres.conf").write_text(f"Name=npu Count={CARDS}\n")
    (folder / "aisbench.toml").write_text(_TOML.format(folder=folder, python=sys.executable))
    cluster = Cluster(folder)
    munge = [f"--{name}={folder}/munge/{file}" for name, file in _MUNGE_FILES.items()]
    cluster.run("munged", f"--key-file={key}", *munge)
    for _ in range(5):  # another process may take a port meanwhile
        _configure(folder, _free_ports(nodes + 1), nodes)
        cluster.start_controller("-c")
        for name in cluster.nodes:
            cluster.start_node(name)
        if cluster.wait_for_nodes(nodes):
            return cluster
        for name in ("slurmctld", *(f"slurmd-{node}" for node in cluster.nodes)):
            cluster.signal(name, signal.SIGKILL)
    logs = "\n".join(file.read_text()[-2000:] for file in (folder / "log").iterdir())
    raise RuntimeError(f"Slurm did not start within {_START_S:g} s:\n{logs}")


_MUNGE_FILES = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _configure(folder: Path, port: int, nodes: int) -> None:
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    rows = [
        _NODE.format(name=f"node{number}", host=host, port=port + number, cards=CARDS) for number in range(1, nodes + 1)
    ]
    text = _CONF.format(folder=folder, host=host, user=user, port=port, nodes="\n".join(rows))
    (folder / "slurm.conf").write_text(text)


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(200):
        first = random.randrange(20000, 32000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports for Slurm")


# A cluster that several processes use: its keeper ends it when none of them holds the lock any more.


@contextlib.contextmanager
def shared(folder: Path, nodes: int = 2) -> Iterator[Cluster]:
    """The cluster of the processes that name this folder; the first of them starts it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "starting").open("w") as starting, (folder / "used").open("w") as used:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(used, fcntl.LOCK_SH)
        ready = folder / "ready"
        if not ready.exists():
            keeper = [sys.executable, __file__, "--keep", str(folder), "--nodes", str(nodes)]
            with (folder / "log").open("w") as log:
                started = subprocess.Popen(
                    keeper, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            while not ready.exists() and started.poll() is None:
                time.sleep(0.05)
            started.returncode = 0  # it outlives us, on purpose
        fcntl.flock(starting, fcntl.LOCK_UN)
        if not ready.exists():
            raise RuntimeError(f"no private Slurm: {(folder / 'log').read_text()}")
        yield Cluster(Path(ready.read_text()))


def keep(folder: Path, nodes: int) -> None:
    """Start the cluster, and end it when no process uses it; the work of the keeper."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with tempfile.TemporaryDirectory(prefix="aisbench-slurm-", ignore_cleanup_errors=True) as name:
        cluster = Cluster(Path(name))
        try:
            start(cluster.folder, nodes)
            (folder / "draft").write_text(name)
            (folder / "draft").rename(folder / "ready")
            with (folder / "used").open() as used:
                fcntl.flock(used, fcntl.LOCK_EX)
        finally:
            cluster.end()
    (folder / "ended").touch()


def running(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster of the command that started this process."""
    folder = environment.get(VARIABLE)
    return Cluster(Path(folder)) if folder else None


def main(arguments: list[str]) -> int:
    nodes = 2
    if arguments[:1] == ["--keep"]:
        keep(Path(arguments[1]), int(arguments[3]))
        return 0
    if arguments[:1] == ["--nodes"]:
        if len(arguments) < 2 or not arguments[1].isdecimal() or not 2 <= int(arguments[1]) <= MOST_NODES:
            print(f"scripts/slurm: --nodes takes a number from 2 to {MOST_NODES}", file=sys.stderr)
            return 4
        nodes, arguments = int(arguments[1]), arguments[2:]
    if not arguments:
        print("usage: scripts/slurm [--nodes N] COMMAND…", file=sys.stderr)
        return 4
    install()
    if missing := missing_programs():
        needs = f"Slurm is not installed ({', '.join(missing)}), and only root can install it"
        print(f"scripts/slurm: {needs}: apt-get install {' '.join(PACKAGES)}; skipped", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="aisbench-slurm-run-") as name:
        folder = Path(name)
        try:
            with shared(folder, nodes) as cluster:
                return _run(arguments, cluster)
        finally:
            deadline = time.monotonic() + 3 * _END_S
            while not (folder / "ended").exists() and time.monotonic() < deadline:
                time.sleep(0.05)


def _run(command: list[str], cluster: Cluster) -> int:
    """The command's exit code; signals that we get are for it."""
    with subprocess.Popen(command, env={**os.environ, **cluster.environment}) as process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda got, _: process.send_signal(got))
        code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
