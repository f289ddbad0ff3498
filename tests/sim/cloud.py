"""The platforms of a simulation: ModelArts V2, V1 and Apulis, by the rules of the local cloud's services, in memory.

The services are those that the adapters' tests talk to over HTTP. Here their requests come over the `Wire`, their jobs
end in virtual time, and each job has an outcome of its own, so that a verdict tells from which job it was made.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aisbench.config.access import Access
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.localcloud.apulis import VC
from pytest_aisbench.localcloud.apulis import service as apulis_service
from pytest_aisbench.localcloud.engine.launch import Launch, Report
from pytest_aisbench.localcloud.engine.simulated import SimulatedEngine
from pytest_aisbench.localcloud.iam import Account, Accounts
from pytest_aisbench.localcloud.messages import Request, Response, WholeBody
from pytest_aisbench.localcloud.modelarts import jobs as queue
from pytest_aisbench.localcloud.modelarts import v2
from pytest_aisbench.localcloud.tester import Tester
from pytest_aisbench.model.ports import Platform
from pytest_aisbench.platforms.apulis.platform import Apulis
from pytest_aisbench.platforms.apulis.settings import ApulisAccess
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret
from tests.sim.faults import Faults
from tests.sim.machine import Machine
from tests.sim.wire import Delivered, HttpSession, ModelArtsHttp, Objects, RemoteStore, Wire

BUCKET = "acceptance"
ACCOUNT = Account(
    access_key="AKIA-OF-THE-SIMULATION",
    secret_key="sk-that-no-report-may-show",
    project_id="0123456789abcdef",
    region="local-1",
    domain="aisbench",
    user="aisbench",
    password="password-that-no-report-may-show",
    bucket=BUCKET,
)
TESTER_TOKEN = Secret("token-of-the-tester-that-no-report-may-show")
SECRETS = (ACCOUNT.secret_key, ACCOUNT.password, TESTER_TOKEN.reveal())
VERSION = "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"
PLATFORMS = ("V2", "V1", "apulis")
_ADDRESS = "http://127.0.0.1:9"
_LIST_LAG_S = 8.0
GOOD, SLOW, FAILED, INCOMPLETE, LOST = "good", "slow", "failed", "incomplete", "lost"
_OUTCOMES = (GOOD,) * 11 + (SLOW, FAILED, INCOMPLETE, LOST)
WANTED = 100.0  # the throughput that thresholds ask of each rank; a good job has more, a slow one less


class Outcome(NamedTuple):
    """What a job really was."""

    kind: str
    throughput: float  # of each rank, another one for each job


class SeededEngine(SimulatedEngine):
    """The engine without processes, whose jobs end as the seed says."""

    def __init__(self, objects: Any, faults: Faults) -> None:
        super().__init__(objects)
        self._faults = faults
        self.outcomes: dict[str, Outcome] = {}

    def start(self, launch: Launch, report: Report) -> None:
        number = len(self.outcomes)
        kind = GOOD if self._faults.is_calm() else self._faults.pick("job.outcome", list(_OUTCOMES))
        speed = (WANTED / 2 if kind == SLOW else WANTED * 2) + (1 + number) / 16
        self.outcomes[launch.job_id] = Outcome(kind, speed)
        given = {
            "seconds": f"{self._faults.between('job.seconds', 2.0, 60.0):.3f}",
            "epochs": "1",
            "throughput": str(speed),
            "exit_code": "1" if kind == FAILED else "0",
        }
        super().start(dataclasses.replace(launch, parameters=tuple(given.items())), report)

    def _write_results(self, job: Any) -> None:
        super()._write_results(job)
        if self.outcomes[job.launch.job_id].kind == INCOMPLETE:
            for output in job.launch.outputs[:1]:
                self._objects.contents.pop(f"{output.place.prefix}throughput_1.json", None)  # type: ignore[attr-defined]


class Entry(NamedTuple):
    """A job in the platform's books."""

    id: str
    name: str
    trial: str  # what its request says of itself: the description, or what only one trial has
    phase: str
    outcome: Outcome | None
    gone: str

    @property
    def is_over(self) -> bool:
        return self.phase in queue.FINAL


def _name(row: dict[str, Any]) -> str:
    return str(row.get("job_name") or row.get("jobName") or row.get("metadata", {}).get("name"))


@dataclass
class Cloud:
    """One platform with its Store and a Tester."""

    kind: str  # one of PLATFORMS
    machine: Machine
    faults: Faults
    folder: Path
    step: Callable[[], str]
    seen: list[Delivered] = field(default_factory=list)

    def __post_init__(self) -> None:
        objects: Any = Objects(BUCKET)  # as far as the services use the local cloud's own
        self.objects = objects
        self.wire = Wire(self.machine, self.faults, self.step, self.seen.append, self._lagging)
        self.strangers: set[str] = set()  # the ids of jobs that are not ours
        self.engine = SeededEngine(objects, self.faults)
        self._accounts = Accounts([ACCOUNT])
        self.modelarts = v2.ModelArts(self._accounts, objects, self.folder, _ADDRESS, engine=self.engine, capacity=1000)
        self.tester = Tester(self.folder / "tester", TESTER_TOKEN.reveal())
        self.jobs = self.modelarts.jobs
        self._apulis: Any = None
        if self.kind == "apulis":
            self._apulis = apulis_service.Apulis(
                ACCOUNT, self.jobs, self.engine, self.folder / "apulis", self.modelarts.catalog
            )
            self._apulis.serve_at(_ADDRESS)
        self.tester_session = HttpSession(self.wire, "tester", self.tester)

    def settings(self, reports: Path, **options: Any) -> Settings:
        access = Access(
            access_key=Secret(ACCOUNT.access_key),
            secret_access_key=Secret(ACCOUNT.secret_key),
            project_id=ACCOUNT.project_id,
            bucket=BUCKET,
            obs_endpoint=_ADDRESS,
            modelarts_endpoint=_ADDRESS,
        )
        apulis = ApulisAccess(
            _ADDRESS, user=ACCOUNT.user, password=Secret(ACCOUNT.password), vc=VC, results="obs", send_obs_keys=True
        )
        return Settings(
            platform="apulis" if self.kind == "apulis" else "modelarts",
            modelarts_version="V1" if self.kind == "V1" else "V2",
            access=access,
            reports=reports,
            tables={"apulis": apulis},
            tester=_ADDRESS,
            **options,
        )

    def connect(self, settings: Settings) -> Platform:
        """The production adapter of the platform, with the wire below it."""
        store = RemoteStore(self.wire, self.objects)
        if self._apulis:
            apulis = Apulis(settings)
            apulis.store = store
            apulis._watch._store = store
            apulis._http._session = HttpSession(self.wire, "apulis", self._apulis)  # type: ignore[assignment]
            return apulis
        platform: Any = ModelArts(settings)
        platform.store = store
        token, _ = self._accounts.issue_token(ACCOUNT)  # one lasts for a day
        platform.session._client = ModelArtsHttp(self.wire, self.modelarts, token)
        if self.kind == "V1":
            platform.jobs._store = store
        made: Platform = platform
        return made

    def books(self) -> list[Entry]:
        """Every job that the platform ever accepted, as it really is."""
        return [
            Entry(
                row["id"],
                row["name"],
                row["description"] if self.kind != "apulis" else row["name"],
                row["phase"],
                self.engine.outcomes.get(job.id),
                row["gone"],
            )
            for row, job in zip(self.jobs.books(), self.jobs._accepted, strict=True)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """What the Tester has stored."""
        return list(self.tester._stored.values())

    def add_stranger(self, created: Delivered) -> None:
        """Let another person start a job like the one that was just created, with a name that contains its name."""
        known = {entry.id for entry in self.books()}
        text = created.request.bytes().decode().replace("/trials/", "/strange/").replace("aisbench toy", "stranger toy")
        body = json.loads(text)
        if self.kind == "apulis":
            body |= {"jobName": f"{body['jobName']}x", "jobId": f"{body['jobId'][:-6]}abcdef"}
        elif self.kind == "V1":
            body["job_name"] = f"{body['job_name']}x"
        else:
            body["metadata"]["name"] += "x"
        service, old = self._apulis or self.modelarts, created.request
        data = json.dumps(body).encode()
        service.answer(Request(old.method, old.path, old.raw_path, old.query, old.headers, WholeBody(data), len(data)))
        self.strangers |= {entry.id for entry in self.books()} - known

    def _lagging(self, answer: Response) -> Response:
        """The answer of a list without the jobs of the last few seconds."""
        now = queue.now_ms()
        young = {job.name for job in self.jobs._accepted if now - job.created < 1000 * _LIST_LAG_S}
        old = {job.name for job in self.jobs._accepted} - young
        try:
            content = json.loads(bytes(answer.body))  # type: ignore[arg-type]
        except ValueError:
            return answer
        for key in ("items", "jobs", "allJobs"):
            if key in content:
                content[key] = [row for row in content[key] if _name(row) not in young - old]
        return answer._replace(body=json.dumps(content).encode())

    def plan_losses(self) -> None:
        """Let the platform forget each job that is to be lost, some time after its start."""
        for job in list(self.jobs._jobs.values()):
            outcome = self.engine.outcomes.get(job.id)
            if outcome and outcome.kind == LOST and not job.gone and job.phase not in queue.FINAL:
                self.machine.after(self.faults.between("job.lost", 0.0, 20.0), partial(self._lose, job))

    def _lose(self, job: Any) -> None:
        if not job.gone and job.phase not in queue.FINAL:
            self.jobs._remove(job, "lost")
