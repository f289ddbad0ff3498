"""Makes a Job of what Slurm's queue says and of what the job noted in its own folder. Pure.

Slurm's word alone proves little: a restarted controller has forgotten the last seconds, COMPLETED is also a job whose
ranks never started, and a failure of the platform is often CANCELLED without a reason. So only the job's `done` file
with an exit code for each rank makes a success, and one table, `STATES`, says what every other state means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_aisbench.model.job import Job, Phase
from pytest_aisbench.platforms.slurm.script import NO_FOLDER, NO_RANKS, NO_TABLE, SIGNALLED, STARTED_TWICE, STOPPED

# What each state of Slurm means, and why, in words. A success needs the job's `done` file besides.
STATES: dict[str, tuple[Phase, str]] = {
    "PENDING": (Phase.PENDING, ""),
    "REQUEUED": (Phase.PENDING, ""),
    "REQUEUE_FED": (Phase.PENDING, ""),
    "REQUEUE_HOLD": (Phase.PENDING, ""),
    "SPECIAL_EXIT": (Phase.PENDING, ""),
    "RESV_DEL_HOLD": (Phase.PENDING, ""),
    "CONFIGURING": (Phase.RUNNING, ""),
    "RUNNING": (Phase.RUNNING, ""),
    "SUSPENDED": (Phase.RUNNING, ""),
    "STOPPED": (Phase.RUNNING, ""),
    "SIGNALING": (Phase.RUNNING, ""),
    "RESIZING": (Phase.RUNNING, ""),
    "STAGE_OUT": (Phase.RUNNING, ""),
    "COMPLETING": (Phase.RUNNING, ""),
    "COMPLETED": (Phase.LOST, "Slurm says COMPLETED, and the job left no record of its ranks"),
    "FAILED": (Phase.FAILED, ""),
    "OUT_OF_MEMORY": (Phase.FAILED, "a rank used more memory than Slurm gives the job"),
    "TIMEOUT": (Phase.FAILED, "the job ran longer than its time limit"),
    "CANCELLED": (Phase.CANCELLED, "the job was cancelled"),
    "DEADLINE": (Phase.LOST, "Slurm could not start the job in time for its deadline"),
    "PREEMPTED": (Phase.LOST, "another job took its nodes"),
    "NODE_FAIL": (Phase.LOST, "a node of the job failed"),
    "BOOT_FAIL": (Phase.LOST, "a node of the job did not boot"),
    "LAUNCH_FAILED": (Phase.LOST, "Slurm could not launch the job"),
    "RECONFIG_FAIL": (Phase.LOST, "a node of the job could not be configured"),
    "REVOKED": (Phase.LOST, "another cluster of the federation took the job"),
}
# Exit codes of the script itself.
_SCRIPT_CODES = {
    NO_TABLE: (Phase.FAILED, "no rank table could be made from the nodes' hccn.conf"),
    NO_RANKS: (Phase.LOST, "not every rank of the job was started"),
    NO_FOLDER: (Phase.LOST, "a node does not reach the shared folder, or has no room for the code"),
    STARTED_TWICE: (Phase.LOST, "Slurm started the job a second time, and what it did before is lost"),
    STOPPED: (Phase.CANCELLED, "the job had been stopped before it started"),
}
# Reasons of a job that waits: these never pass by themselves. Slurm has dozens of limits, so most are told by a part.
_NEVER = re.compile(
    r"PartitionTimeLimit|PartitionNodeLimit|PartitionConfig|DependencyNeverSatisfied|JobHeld(User|Admin)"
    r"|launch failed requeued held|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
    r"|ReservationDeleted|NodeDownTooBig|(QOS|Assoc)Max\w+Per(Job|Node)(Limit)?\b|(QOS|Assoc)Min\w+|AssocMaxWall"
    r"|QOSMaxWallDurationPerJobLimit"
)
_HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_UNTIL_REPAIR = re.compile(
    r"ReqNodeNotAvail|Nodes required for job are DOWN|PartitionDown|PartitionInactive|Reservation\b"
)
_FEW = 8  # ranks that a reason names


@dataclass(frozen=True)
class Row:
    """A job as Slurm's queue, or its record of ended jobs, lists it; times are in seconds since the epoch."""

    number: str
    name: str
    state: str
    reason: str = ""
    exit_code: int | None = None
    signal: int = 0  # that ended it
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    nodes: str = ""

    @property
    def word(self) -> str:
        """The state without what may follow it: `CANCELLED by 1000`."""
        return self.state.partition(" ")[0].rstrip("+")


@dataclass(frozen=True)
class RankEnd:
    code: int
    at: float
    node: str


@dataclass(frozen=True)
class Notes:
    """What the job noted in its folder; empty before it started."""

    number: str = ""
    started: float | None = None
    ended: float | None = None
    nodes: tuple[str, ...] = ()
    logs: str = ""  # where its logs are, as the nodes see it
    store: str = ""  # where they belong
    tasks: int | None = None  # None until it is done
    rc: int | None = None
    stopped: bool = False  # we asked for its end
    ranks: dict[int, RankEnd] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.rc is not None

    @property
    def succeeded(self) -> bool:
        """By the record of each rank, not by one number."""
        everyone = self.tasks is not None and self.ranks.keys() == set(range(self.tasks))
        return self.rc == 0 and everyone and not any(end.code for end in self.ranks.values())

    @property
    def first_failure(self) -> tuple[int, RankEnd] | None:
        """The rank that failed first, by itself."""
        failed = [(rank, end) for rank, end in self.ranks.items() if end.code]
        return min(failed, key=lambda each: (each[1].code == SIGNALLED, each[1].at), default=None)


def read_notes(started: bytes | None, done: bytes | None, *, stopped: bool = False) -> Notes:
    """Read the two files; lines that a broken disk garbled are left out, so that a rank is missing rather than fine."""
    pairs: dict[str, str] = {}
    ranks: dict[int, RankEnd] = {}
    for line in ((started or b"") + b"\n" + (done or b"")).decode(errors="replace").splitlines():
        if match := re.fullmatch(r"rank=(\d{1,7}) (\d{1,3}) (\d+(?:\.\d+)?) ?(\S*)", line):
            ranks[int(match[1])] = RankEnd(int(match[2]), float(match[3]), match[4])
        elif "=" in line:
            key, _, value = line.partition("=")
            pairs[key] = value
    return Notes(
        number=pairs.get("job", ""),
        started=_number(pairs.get("started")),
        ended=_number(pairs.get("ended")),
        nodes=tuple(filter(None, pairs.get("nodes", "").split(","))),
        logs=pairs.get("logs", ""),
        store=pairs.get("store", ""),
        tasks=_whole(pairs.get("tasks")),
        rc=_whole(pairs.get("rc")),
        stopped=stopped,
        ranks=ranks,
    )


def describe(job_id: str, name: str, row: Row | None, notes: Notes, *, settled: bool) -> Job:
    """What is known of a job. `settled` is False while Slurm may still be ending it: then a failure may get a better
    reason in a moment."""
    word = row.word if row else "gone"
    phase, reason, code = _phase(row, notes, settled=settled)
    stuck = why_stuck(row) if row and phase is Phase.PENDING else ""
    waiting = row.reason if row and phase is Phase.PENDING and row.reason not in {"", "None"} else ""
    began = notes.started or (row.started if row and phase is not Phase.PENDING else None)
    ended = notes.ended or (row.ended if row else None)
    return Job(
        id=job_id,
        phase=phase,
        platform_phase=word,
        known=row is None or row.word in STATES,
        reason="" if phase is Phase.SUCCEEDED else reason or waiting,
        exit_code=0 if phase is Phase.SUCCEEDED else code,
        queued_s=max(0.0, began - row.submitted) if row and row.submitted and began else None,
        ran_s=(ended - began if began and ended and ended > began else None) if phase.is_final else None,
        name=name,
        stuck=stuck,
        hosts=notes.nodes,
    )


def _phase(row: Row | None, notes: Notes, *, settled: bool) -> tuple[Phase, str, int | None]:
    if notes.succeeded:
        return Phase.SUCCEEDED, "", 0
    word = row.word if row else ""
    phase, text = STATES.get(word, (Phase.RUNNING, "")) if row else (Phase.LOST, "Slurm does not know the job any more")
    if phase in {Phase.PENDING, Phase.RUNNING} and not (notes.is_done and settled):
        return phase, "", None
    if word in {"", "COMPLETED", "FAILED", *_open_states()} and notes.is_done:
        return _by_ranks(notes)
    if word == "FAILED" and row:
        return _failed(row)
    if notes.stopped and phase in {Phase.LOST, Phase.CANCELLED} and word in {"", "CANCELLED"}:
        return Phase.CANCELLED, "the job was stopped", None
    if phase is Phase.CANCELLED and row and row.nodes and not row.signal:
        # It had nodes, and no signal ended it: a prolog or a launch failed, also that of a second copy.
        return Phase.LOST, f"Slurm could not launch the job, and cancelled it{_because(row)}", None
    if phase is Phase.LOST and not row and notes.number:
        return phase, "the job left Slurm's queue without an end", None
    return phase, f"{text}{_because(row)}" if row else text, notes.rc or None


def _open_states() -> set[str]:
    return {word for word, (phase, _) in STATES.items() if not phase.is_final}


def _by_ranks(notes: Notes) -> tuple[Phase, str, int | None]:
    """The end of a job that is done and did not succeed, by what its ranks noted."""
    failed = notes.first_failure
    if failed and failed[1].code == NO_FOLDER:
        phase, text = _SCRIPT_CODES[NO_FOLDER]
        return phase, f"{text}: {failed[1].node}", NO_FOLDER
    if failed and failed[1].code != SIGNALLED:
        rank, end = failed
        log = f" (worker-{notes.nodes.index(end.node)})" if end.node in notes.nodes else ""  # reports look there first
        return Phase.FAILED, f"rank {rank} on {end.node or 'its node'}{log} ended with exit code {end.code}", end.code
    missing = sorted(set(range(notes.tasks or 0)) - notes.ranks.keys())
    if failed and not missing:
        return Phase.LOST, f"Slurm told rank {failed[0]} on {failed[1].node or 'its node'} to end", SIGNALLED
    if not missing:
        return Phase.LOST, f"srun ended with exit code {notes.rc}, though every rank ended well", notes.rc
    few = ", ".join(map(str, missing[:_FEW])) + (", …" if len(missing) > _FEW else "")
    return Phase.LOST, f"{len(missing)} of {notes.tasks} ranks left no exit code: {few}", notes.rc


def _failed(row: Row) -> tuple[Phase, str, int | None]:
    code = row.exit_code
    if code in _SCRIPT_CODES:
        phase, text = _SCRIPT_CODES[code]
        return phase, text, code
    if not code:  # a signal ended the script, or it never began
        return Phase.LOST, f"Slurm could not run the job's script{_because(row)}", None
    return Phase.FAILED, f"the job's script ended with exit code {code}", code


def why_stuck(row: Row) -> str:
    """Why a job that waits can never start; empty if it can."""
    if row.word in _HELD:
        return row.word
    return row.reason if _NEVER.search(row.reason) else ""


def needs_repair(row: Row) -> bool:
    """True if the job waits until a node or a partition is repaired."""
    return bool(_UNTIL_REPAIR.search(row.reason))


def _because(row: Row | None) -> str:
    return f" ({row.reason})" if row and row.reason not in {"", "None"} else ""


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,12}(\.\d*)?", text) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,9}", text) else None
