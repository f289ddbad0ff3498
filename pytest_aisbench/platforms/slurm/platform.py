"""Slurm as a Platform: jobs are batch scripts, and reach our files by a folder that all nodes mount, or by OBS.

The name of a job is its key. Numbers come back after a controller's crash, so the id of a job here is `NUMBER/NAME`,
and its number is believed only where Slurm lists it with its name.
"""

from __future__ import annotations

import getpass
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_aisbench.config.options import machine_cores, python_by_framework
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import AisbenchError, Rejected, UsageFault
from pytest_aisbench.logs import get_logger, ignored
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Phase, Request, StoreUrl
from pytest_aisbench.model.ports import Check, Health, Store, checked, failure, ok, warning
from pytest_aisbench.platforms.slurm import script
from pytest_aisbench.platforms.slurm.commands import Commands, parse_pairs
from pytest_aisbench.platforms.slurm.script import Folders
from pytest_aisbench.platforms.slurm.settings import NAME, OPTION_KEYS, Options, read_options, require_slurm, slurm_site
from pytest_aisbench.platforms.slurm.states import Notes, Row, describe, read_notes
from pytest_aisbench.stores.obs import Obs
from pytest_aisbench.stores.shared_folder import BUCKET, SharedFolder

_LOG = get_logger("platform")
_ID = re.compile(r"(\d{1,12})/([A-Za-z0-9_-]{1,64})")
_SETTLE_S = 10.0  # so long after the job's own end, Slurm's word for it may still come
_AGAIN_S = 1.0  # between two looks for a job whose submission had no answer
_LONGEST_READ = 4 << 20  # bytes of a log at once


class Slurm:
    """A Platform; see the port for its methods."""

    name = NAME
    options = OPTION_KEYS
    takes_environment = True

    def __init__(self, settings: Settings, sleep: Callable[[float], None] = time.sleep) -> None:
        self._site = slurm_site(settings)
        require_slurm(self._site, settings.access, settings.sources.get("platform", "platform"))
        self._pythons = python_by_framework(settings.frameworks)
        self.poll_s = self._site.poll_s
        self.max_jobs = machine_cores() if self._site.miniature else 8
        self._files = SharedFolder(Path(self._site.share))
        self._own = StoreUrl(BUCKET, "aisbench/")  # where jobs keep their own records, also if results go to OBS
        self.store: Store = self._files
        self.root = self._own
        if self._site.by_obs:
            self.store = Obs.of(settings.access, 60.0)
            self.root = StoreUrl(settings.access.bucket, settings.access.folder.strip("/")) / "aisbench/"
        self._commands = Commands(self.poll_s)
        self._sleep = sleep
        self._ended: dict[str, Job] = {}
        self._done_since: dict[str, float] = {}  # when we first saw that a job was done
        self._tested: dict[tuple[str, ...], Check] = {}
        self._partitions: Mapping[str, Mapping[str, Any]] | None = None
        self._lock = threading.Lock()

    @property
    def platform_id(self) -> str:
        return f"{self.name} {getpass.getuser()} {self._site.seen_by_nodes} {self.root}"

    def share(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> None:
        self._commands.config()
        self._files.check(self._own)
        if self._site.by_obs:
            self.store.check(self.root)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        options = self._options(spec)
        partition = self._partition(options.partition)
        if isinstance(partition, Check):
            yield partition
            return
        yield from _partition_checks(partition, spec, self.render(spec).body["arguments"])
        yield self._test(spec)

    def render(self, spec: JobSpec) -> Request:
        return Request("sbatch", NAME, script.request_body(spec, self._options(spec), self._folders(spec)))

    def submit(self, request: Request) -> str:
        """The script lies in the job's folder before sbatch runs: a job whose folder is missing could not start."""
        name, text = str(request.body["name"]), str(request.body["script"])
        self._files.write(script.work_url(self._own, name) / "job.sh", text.encode())
        return f"{self._commands.submit(request.body['arguments'], text)}/{name}"

    def find(self, request: Request) -> str | None:
        """In the queue, in Slurm's records of ended jobs, or by the job's own note. None needs two looks: a controller
        that stood still may carry a submission out after it answers again."""
        name = str(request.body["name"])
        for look in range(2):
            if look:
                self._sleep(_AGAIN_S)
            if number := self._number(name, self._commands.listing(fresh=True)):
                return f"{number}/{name}"
        return None

    def named(self, name: str) -> str | None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            return None
        number = self._number(name, self._commands.listing())
        return f"{number}/{name}" if number else None

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        wanted = list(dict.fromkeys(job_ids))
        ended = {job_id: self._ended[job_id] for job_id in wanted if job_id in self._ended}
        open_ids = [job_id for job_id in wanted if job_id not in ended]
        if not open_ids:
            return ended
        listed = self._commands.listing()
        gone = [match[2] for job_id in open_ids if (match := _ID.fullmatch(job_id)) and match[2] not in listed]
        recorded = self._records(gone)
        return ended | {job_id: self._job(job_id, listed, recorded) for job_id in open_ids}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        name = self._name(job_id)
        notes = self._notes(name)
        if not notes.logs:
            return LogPart("", since)
        data = self._files.read_from(self._url(notes.logs) / f"worker-{node}.log", since, _LONGEST_READ)
        if not (job_id in self._ended or notes.is_done):
            data = data[: data.rfind(b"\n") + 1]  # the last line may still grow
        return LogPart(data.decode(errors="replace"), since + len(data))

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        return {}  # Slurm samples by its accounting plugin at most, and then without the cards

    def events(self, job_id: str) -> Sequence[str]:
        """What Slurm and its srun said of the job, which is in a log of their own."""
        with ignored(_LOG, AisbenchError, "the log of Slurm for job %s", job_id):
            data = self._files.read(script.work_url(self._own, self._name(job_id)) / "slurm.log") or b""
            return [line for line in data.decode(errors="replace").splitlines() if line.strip()]
        return []

    def cancel(self, job_id: str) -> None:
        """The note first: a controller that forgets the cancellation may start the job, whose script then ends."""
        if not (name := self._name(job_id)):
            return
        url = script.work_url(self._own, name)
        if self._files.head(url / "job.sh") is None:
            return  # no job of ours
        self._files.write(url / script.STOP, b"")
        self._commands.cancel(name)

    def close(self) -> None:
        self._files.close()
        self.store.close()

    def connection_checks(self) -> Iterator[Check]:
        answered = checked("controller", self._describe_cluster)
        yield answered
        if answered.failed:
            return
        yield checked("shared folder", self._try_share)
        config = self._commands.config()
        if config.accounting or config.completions:
            yield ok("ended jobs", "sacct knows jobs that left the queue")
        else:
            yield warning("ended jobs", "this Slurm keeps no record of jobs that left the queue; their own notes do")
        yield from self._node_checks()
        if self._site.by_obs:
            yield checked("bucket", self._try_bucket)

    def probe(self) -> Iterator[Check]:
        yield checked("a node", self._write_on_a_node)

    def _write_on_a_node(self) -> str:
        """A job of seconds writes to the shared folder, and we read it here."""
        url = self._own / f"jobs/.node-test-{uuid.uuid4().hex[:8]}"
        self._files.write(url, b"")
        options = read_options(self._site.defaults, {})
        try:
            node = self._commands.run_on_a_node(options, f'echo "$SLURMD_NODENAME" | tee {self._seen(url)}').strip()
            said = (self._files.read(url) or b"").decode(errors="replace").strip()
        finally:
            self._files.delete(url)
        if said != node:
            advice = "check share_on_nodes: it must be the same folder"
            raise UsageFault(f"{node} wrote to {self._seen(url)}, which is not {self._site.share} here", advice=advice)
        return f"{node} writes to the shared folder, as {self._site.seen_by_nodes}"

    # What is known of a job.

    def _job(self, job_id: str, listed: Mapping[str, Sequence[Row]], recorded: Mapping[str, Sequence[Row]]) -> Job:
        match = _ID.fullmatch(job_id)
        if not match:
            return Job(job_id, Phase.LOST, "", reason="no job of ours has such an id")
        number, name = match[1], match[2]
        rows = listed.get(name) or recorded.get(name, ())
        notes = Notes()
        row = _row(rows, number)
        if row is None or row.word != "PENDING":
            notes = self._notes(name)
            row = _row(rows, notes.number or number)
        job = describe(job_id, name, row, notes, settled=self._is_settled(job_id, notes))
        if job.phase.is_final and (row is not None or notes.is_done):
            self._ended[job_id] = job
            self._save_logs(notes)
        return job

    def _is_settled(self, job_id: str, notes: Notes) -> bool:
        if not notes.is_done:
            return False
        now = time.monotonic()
        return now - self._done_since.setdefault(job_id, now) >= _SETTLE_S

    def _records(self, names: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        """An error hides nothing: what Slurm does not list is then judged by the job's own notes."""
        with ignored(_LOG, AisbenchError, "Slurm's records of ended jobs"):
            return self._commands.records(names)
        return {}

    def _number(self, name: str, listed: Mapping[str, Sequence[Row]]) -> str:
        """The number of the job with this name, empty if there is none; of two, the one that started."""
        rows = listed.get(name) or self._records([name]).get(name, ())
        return self._notes(name).number or (rows[0].number if rows else "")

    def _notes(self, name: str) -> Notes:
        if not name:
            return Notes()
        url = script.work_url(self._own, name)
        started, done = (self._files.read(url / name) for name in (script.STARTED, script.DONE))
        stopped = done is None and self._files.head(url / script.STOP) is not None
        return read_notes(started, done, stopped=stopped)

    def _name(self, job_id: str) -> str:
        """The name in an id. A person may type the number alone: then Slurm's list has the name."""
        if match := _ID.fullmatch(job_id):
            return match[2]
        if not job_id.isdecimal():
            return ""
        names = self._commands.listing()
        return next((name for name, rows in names.items() if any(row.number == job_id for row in rows)), "")

    def _save_logs(self, notes: Notes) -> None:
        """Copy the logs to the Store if that is not where the nodes wrote them. A failure is only logged."""
        if not self._site.by_obs or not notes.store:
            return
        with ignored(_LOG, AisbenchError, "%s in the Store", notes.store):
            for head in self._files.objects(self._url(notes.logs)):
                data = self._files.read(head.url)
                self.store.write(StoreUrl.parse(notes.store) / head.url.key.rpartition("/")[2], data or b"")

    # Folders and options.

    def _options(self, spec: JobSpec) -> Options:
        own = self._pythons.get(spec.framework)
        return read_options(self._site.defaults, {**({"python": own} if own else {}), **spec.options})

    def _folders(self, spec: JobSpec) -> Folders:
        options, work = self._options(spec), self._seen(script.work_url(self._own, spec.name))
        return Folders(
            work=work.rstrip("/"),
            code=self._seen(spec.code),
            outputs=self._seen(spec.outputs),
            logs=f"{work}logs" if self._site.by_obs else self._seen(spec.logs).rstrip("/"),
            data=options.data_dir or (self._seen(spec.inputs) if spec.inputs else ""),
            share=self._site.seen_by_nodes,
        )

    def _seen(self, url: StoreUrl) -> str:
        """An address as the nodes see it."""
        return f"{self._site.seen_by_nodes}/{url.key}" if url.bucket == BUCKET else str(url)

    def _url(self, path: str) -> StoreUrl:
        """The address of a folder that the nodes call so."""
        return StoreUrl(BUCKET, path.removeprefix(f"{self._site.seen_by_nodes}/") + "/")

    # Preflight.

    def _partition(self, name: str) -> Mapping[str, Any] | Check:
        if self._partitions is None:
            rows = parse_pairs(self._commands.run("scontrol", "-o", "show", "partition"))
            self._partitions = {str(row.get("PartitionName")): row for row in rows}
        default = next((each for each, row in self._partitions.items() if row.get("Default") == "YES"), "")
        names = (name or default).split(",")
        for each in names:
            if each not in self._partitions:
                choices = f"known: {', '.join(sorted(self._partitions)) or 'none'}"
                return failure("partition", f"{each or 'a default one'} is not there; {choices}", "correct partition")
        return self._partitions[names[0]]

    def _test(self, spec: JobSpec) -> Check:
        """What sbatch --test-only says, once for jobs that ask for the same."""
        body = self.render(spec).body
        varied = ("--job-name=", "--comment=", "--chdir=", "--output=")
        key = tuple(word for word in body["arguments"] if not word.startswith(varied))
        with self._lock:
            if key not in self._tested:
                arguments = [word for word in body["arguments"] if not word.startswith(varied[2:])]
                check = self._ask(spec, arguments)
                if not check.lasting:
                    return check
                self._tested[key] = check
            return self._tested[key]

    def _ask(self, spec: JobSpec, arguments: Sequence[str]) -> Check:
        try:
            lines = self._commands.test(arguments, "#!/bin/bash\n").strip().splitlines()
        except Rejected as error:
            fix = f"choose fewer --nodes, or correct [slurm]: it asks for {' '.join(arguments[2:])}"
            check = failure("sbatch --test-only", f"{spec.shape}: {error.message}", fix)
            # Slurm says the same of nodes that are down, or not back yet after its own restart: these may return.
            return replace(check, lasting=not any(each.health is Health.WARNING for each in self._node_checks()))
        return ok("sbatch --test-only", lines[-1].removeprefix("sbatch: ") if lines else "it can run")

    def _describe_cluster(self) -> str:
        config = self._commands.config()
        own = self._commands.run("sinfo", "--version").strip()
        return f"cluster {config.cluster} answers, with slurm {config.version}; the commands here are {own}"

    def _try_share(self) -> str:
        self._files.check(self._own)
        url = self._own / f"jobs/.write-test-{getpass.getuser()}"
        self._files.write(url, b"1")
        self._files.delete(url)
        return f"{self._site.share} can be written; the nodes see it as {self._site.seen_by_nodes}"

    def _try_bucket(self) -> str:
        self.store.check(self.root)
        return f"{self.root} can be used"

    def _node_checks(self) -> Iterator[Check]:
        """A line for each partition, and one for each node that takes no job."""
        text = self._commands.run("sinfo", "-hN", "-O", "NodeList:|,PartitionName:|,StateLong:|,Gres:|,Reason:|")
        rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 5]
        wanted = set(filter(None, read_options(self._site.defaults, {}).partition.split(",")))
        by_partition: dict[str, list[list[str]]] = {}
        for row in rows:
            by_partition.setdefault(row[1], []).append(row)
        bad: dict[str, str] = {}
        for name, nodes in by_partition.items():
            if wanted and name not in wanted:
                continue
            well = [
                row
                for row in nodes
                if re.match(r"idle|mixed|allocated|completing|planned", row[2]) and row[2][-1] != "*"
            ]
            cards = ", ".join(sorted({row[3] for row in nodes} - {"(null)"})) or "no gres"
            yield ok("partition", f"{name}: {len(well)} of {len(nodes)} nodes take jobs, with {cards}")
            bad.update({row[0]: f"{row[0]} is {row[2]}: {row[4]}" for row in nodes if row not in well})
        for text in bad.values():
            yield warning("node", text, "exclude it, or ask for its repair")


def _row(rows: Sequence[Row], number: str) -> Row | None:
    """The job of this number among those of one name; without it, the newest: a lost answer may have made another."""
    return next((row for row in rows if row.number == number), rows[0] if rows else None)


def _partition_checks(partition: Mapping[str, Any], spec: JobSpec, arguments: Sequence[str]) -> Iterator[Check]:
    """What sbatch --test-only does not look at: a partition that is down, and its limits."""
    name, state = partition.get("PartitionName"), str(partition.get("State") or "UP")
    if state != "UP":
        yield failure("partition", f"{name} is {state}: no job starts there", "choose another partition")
    longest = _minutes(str(partition.get("MaxTime") or ""))
    asked = next((int(word.partition("=")[2]) for word in arguments if word.startswith("--time=")), 0)
    if longest and asked > longest:
        fix = f"choose --aisbench-run-timeout {max(1, longest - 1)}m, or write time in [slurm]"
        yield failure("partition", f"{name} lets a job run for {longest} minutes, and this one asks for {asked}", fix)
    most = str(partition.get("MaxNodes") or "")
    if most.isdecimal() and spec.shape.nodes > int(most):
        yield failure(
            "partition", f"{name} gives a job {most} nodes at most, and {spec.shape} needs more", "choose fewer --nodes"
        )


def _minutes(text: str) -> int:
    """Of Slurm's [days-]hours:minutes:seconds; 0 for UNLIMITED."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    return (int(match[1] or 0) * 24 + int(match[2])) * 60 + int(match[3]) if match else 0
