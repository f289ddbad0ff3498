"""Runs Slurm's commands and reads what they print.

We call the commands, not the REST service or a library: they exist wherever Slurm does, in every version. Text formats
with a separator stay the same from version to version; `--json` does not.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_aisbench.errors import (
    BadAnswer,
    OutOfQuota,
    PlatformError,
    Refused,
    Rejected,
    Throttled,
    Unreachable,
    UsageFault,
)
from pytest_aisbench.logs import get_logger
from pytest_aisbench.model.messages import plain
from pytest_aisbench.platforms.slurm.settings import Options
from pytest_aisbench.platforms.slurm.states import Row

_LOG = get_logger("platform")
_PATIENCE_S = 60.0
_JOB_S = 600.0  # until a job of seconds has had its turn
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "SLURM_CONF", "SLURM_JWT", "KRB5CCNAME")
# Of squeue: without a size a field is neither padded nor cut. The name is last: other users' hold any character.
_FIELDS = ("JobID", "State", "Reason", "exit_code", "SubmitTime", "StartTime", "EndTime", "NodeList", "Name")
_FORMAT = ",".join(f"{name}:|" for name in _FIELDS)
_RECORD = "jobid,state,exitcode,submit,start,end,nodelist,jobname"
_NAMES_AT_ONCE = 200  # in one sacct
_SILENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|failure|reset|timed out)|zero bytes"
    r"|transport endpoint|communication|network is unreachable|no route to host|unexpected message|munge|resource"
    r" temporarily unavailable|try again|controller .*(down|standby)",
    re.IGNORECASE,
)
_THROTTLED = re.compile(r"rate limit|too many requests|rpc limit", re.IGNORECASE)
_QUOTA = re.compile(r"job submit limit|MaxSubmit|MaxJobCount|maximum job count", re.IGNORECASE)
_REFUSED = re.compile(
    r"access/permission denied|invalid account or|user's group not permitted|not permitted", re.IGNORECASE
)


@dataclass(frozen=True)
class Config:
    """What `scontrol show config` says, as far as we use it."""

    version: str
    cluster: str
    accounting: bool  # sacct asks a database
    completions: bool  # sacct -c reads a file of ended jobs
    keeps_s: float  # how long the queue shows a job that has ended


class Commands:
    """Slurm's commands, as the user of this process. Several threads may call at once."""

    def __init__(self, poll_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._listed: tuple[float, Mapping[str, Sequence[Row]]] | None = None
        self._oldest_s = poll_s / 2  # callers that ask more often get the same answer
        self._clock = clock
        self._lock = threading.Lock()
        self._config: Config | None = None

    def run(self, *command: str, text: str = "", patience_s: float = _PATIENCE_S) -> str:
        """What a command prints. A failure raises the error of the tree that its text means."""
        _LOG.debug("%s", " ".join(command[:12]))
        try:
            done = subprocess.run(
                command, input=text.encode(), capture_output=True, check=False, timeout=patience_s, env=environment()
            )
        except FileNotFoundError:
            advice = "run it where Slurm's commands are, such as a login node"
            raise UsageFault(f"there is no {command[0]} on this machine", advice=advice) from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{command[0]} did not answer within {patience_s:g} s") from None
        except OSError as error:
            raise PlatformError(f"{command[0]}: {error.strerror or error}") from None
        output, errors = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
        if done.returncode:
            raise error_of(command[0], errors or output)
        return output if command[0] != "sbatch" or output.strip() else errors

    def submit(self, arguments: Sequence[str], script: str) -> str:
        """The number of the job. Unreachable means that it may exist."""
        answer = self.run("sbatch", *arguments, text=script).strip()
        number = answer.splitlines()[-1].partition(";")[0] if answer else ""
        if not number.isdecimal():
            raise Unreachable(f"whether the job was made is not known: sbatch said {plain(answer, 200)!r}")
        self.forget_listing()
        return number

    def test(self, arguments: Sequence[str], script: str) -> str:
        """What Slurm says of a job that is not submitted; raises Rejected where it could not run."""
        return self.run("sbatch", "--test-only", *arguments, text=script)

    def listing(self, *, fresh: bool = False) -> Mapping[str, Sequence[Row]]:
        """This user's jobs by name, with the ended ones that Slurm still shows: one request for all of them."""
        with self._lock:
            now = self._clock()
            if self._listed and not fresh and now - self._listed[0] < self._oldest_s:
                return self._listed[1]
            rows = parse_queue(self.run("squeue", "-h", "--me", "-t", "all", "-O", _FORMAT))
            self._listed = (now, by_name(rows))
            return self._listed[1]

    def forget_listing(self) -> None:
        with self._lock:
            self._listed = None

    def records(self, names: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        """Jobs that left the queue, by name, as far as this site records them: in a database, or in a file."""
        if not names:
            return {}
        config = self.config()
        if not (config.accounting or config.completions):
            return {}
        rows: list[Row] = []
        form = ("-n", "-P", "-o", _RECORD)
        if config.accounting:
            for first in range(0, len(names), _NAMES_AT_ONCE):
                some = ",".join(names[first : first + _NAMES_AT_ONCE])
                rows += parse_records(self.run("sacct", "-X", "-S", "now-30days", f"--name={some}", *form))
        else:
            rows = parse_records(self.run("sacct", "-c", *form))
        wanted = set(names)
        return by_name(row for row in rows if row.name in wanted)

    def cancel(self, name: str) -> None:
        """End this user's jobs of exactly this name, and no other."""
        self.run("scancel", f"--user={os.geteuid()}", f"--name={name}")
        self.forget_listing()

    def read_on_nodes(self, nodes: str, file: str) -> dict[str, str]:
        """What a file holds on each of these nodes, by the node's address, in Slurm's order: by a job of seconds."""
        names = self.run("scontrol", "show", "hostnames", nodes).split()
        count = str(len(names))
        task = 'printf "%s %s\\n" "$SLURMD_NODENAME" "$(base64 -w 0 "${1//%n/$SLURMD_NODENAME}")"'
        every = ("-N", count, "-n", count, "--ntasks-per-node=1", "-w", nodes, "--time=2", "--mpi=none")
        said = self.run("srun", *every, "bash", "-c", task, "read", file, patience_s=_JOB_S)
        texts = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        rows = parse_pairs(self.run("scontrol", "-o", "show", "nodes", nodes))
        addresses = {str(row.get("NodeName")): str(row.get("NodeAddr")) for row in rows}
        unique = len(set(addresses.values())) == len(addresses)
        found = {name: base64.b64decode(texts.get(name, "")).decode(errors="replace") for name in names}
        if missing := [name for name in names if not found[name]]:
            raise UsageFault(f"{', '.join(missing)}: there is no {file}", advice="name another with --hccn-conf")
        return {addresses.get(name, name) if unique else name: text for name, text in found.items()}

    def run_on_a_node(self, options: Options, script: str) -> str:
        """What a line of bash prints on any node of the partition, by a job of seconds."""
        given = {name: getattr(options, name) for name in ("partition", "account", "qos", "reservation", "constraint")}
        words = [f"--{name}={value}" for name, value in given.items() if value]
        one = ("-N", "1", "-n", "1", "--time=2", "--mpi=none")
        return self.run("srun", *words, *one, "bash", "-c", script, patience_s=_JOB_S)

    def config(self) -> Config:
        """Asked for once."""
        if self._config is None:
            text = self.run("scontrol", "show", "config")
            pairs = dict(re.findall(r"(?m)^(\w+)\s*=\s*(.*?)\s*$", text))
            if "ClusterName" not in pairs:
                raise BadAnswer(f"scontrol show config said {plain(text, 200)!r}")
            kept = re.match(r"\d+", pairs.get("MinJobAge", ""))
            self._config = Config(
                version=pairs.get("SLURM_VERSION", ""),
                cluster=pairs["ClusterName"],
                accounting=pairs.get("AccountingStorageType", "").endswith("slurmdbd"),
                completions=pairs.get("JobCompType", "").endswith("filetxt"),
                keeps_s=float(kept[0]) if kept else 300.0,
            )
        return self._config


def environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command, which a job inherits: SBATCH_ and SQUEUE_ would change what commands do, and the
    SLURM_ variables of a job around us would change the size of ours."""
    given = os.environ if own is None else own
    kept = {name: given[name] for name in _KEPT if name in given}
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}


def error_of(command: str, text: str) -> Exception:
    """The error that the text of a failed command means."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    reason = plain(re.sub(rf"^{command}: (error: )?", "", lines[-1]), 300)
    failure = f"{command}: {reason}"
    if _THROTTLED.search(text):
        return Throttled(failure)
    if _SILENT.search(text):
        return Unreachable(failure)
    if command != "sbatch":
        return Refused(failure) if _REFUSED.search(text) else PlatformError(failure)
    if _QUOTA.search(text):
        return OutOfQuota(failure, advice="lower --aisbench-max-jobs, or ask for a larger limit")
    return Rejected(
        failure, advice="check [slurm] in aisbench.toml and workload.toml: partition, account, qos, gres, memory"
    )


def parse_queue(text: str) -> list[Row]:
    """The rows of squeue; a line that is not one is left out, since a stranger's name may hold a line break."""
    rows = []
    for line in text.splitlines():
        parts = line.split("|", len(_FIELDS) - 1)
        if len(parts) == len(_FIELDS) and re.match(r"\d", parts[0]):
            number, state, reason, code, submitted, started, ended, nodes, name = parts
            status = int(code) if code.isdecimal() else 0  # as wait() returns it
            times = (_moment(submitted), _moment(started), _moment(ended))
            rows.append(Row(number, name.removesuffix("|"), state, reason, status >> 8, status & 127, *times, nodes))
        elif line.strip():
            _LOG.debug("a line of squeue is no job: %r", line[:200])
    return rows


def parse_records(text: str) -> list[Row]:
    """The rows of sacct -P."""
    rows = []
    for line in text.splitlines():
        parts = line.split("|", _RECORD.count(","))
        if len(parts) == _RECORD.count(",") + 1 and parts[0].isdecimal():
            number, state, code, submitted, started, ended, nodes, name = parts
            status = re.fullmatch(r"(\d+):(\d+)", code)
            exit_code, ended_by = (int(status[1]), int(status[2])) if status else (None, 0)
            places = "" if nodes in {"None assigned", "(null)"} else nodes
            times = (_moment(submitted), _moment(started), _moment(ended))
            rows.append(Row(number, name, state, "", exit_code, ended_by, *times, places))
    return rows


def by_name(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The jobs of each name, the newest first."""
    names: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: -int(re.match(r"\d+", row.number)[0])):  # type: ignore[index]
        names.setdefault(row.name, []).append(row)
    return names


def _moment(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{6,12}", text) else None


def parse_pairs(text: str) -> list[dict[str, Any]]:
    """The lines of `scontrol -o show …`, each as names and values."""
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines() if "=" in line]
