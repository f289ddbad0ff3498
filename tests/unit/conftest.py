"""Doubles for what nobody can install: a platform that misbehaves on cue, and a clock that stands still."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from factories import make_case
from hypothesis import settings
from memory_store import MemoryStore

from pytest_aisbench.model.case import Case
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Phase, Request, StoreUrl
from pytest_aisbench.model.ports import Check
from pytest_aisbench.model.verdict import Threshold

# A busy machine is no fault of what is tested: how fast it is, tests/bench tells.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

_ELSEWHERE = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind"}
_running: list[str] = []  # the unit test that is running


def _refuse(event: str, _: object) -> None:
    if _running and event in _ELSEWHERE:
        pytest.fail(f"{event} in a unit test: tests that start a process or a server belong into another folder")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _in_this_process_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """A unit test starts neither a process nor a server: it fails if it does."""
    _running.append(request.node.nodeid)
    yield
    _running.clear()


class StandingClock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class ScriptedPlatform:
    """Says of every job what the script says next; an exception in the script is raised."""

    name = "scripted"
    options = frozenset({"flavor"})
    max_jobs = 8
    poll_s = 0.001
    platform_id = "scripted"
    takes_environment = True

    def __init__(self, *script: Phase | Job | Exception) -> None:
        self.store = MemoryStore()
        self.root = StoreUrl.parse("obs://bucket/aisbench/")
        self.script: list[Phase | Job | Exception] = list(script)
        self.submit_errors: list[Exception] = []  # raised by submit, after the job was made if told so
        self.arrives_anyway = False
        self.after_loss: list[Phase | Job | Exception] = []  # the script of the job that follows a lost one
        self.jobs: dict[str, str] = {}  # id → name
        self.cancelled: list[str] = []
        self.vetted: list[Check] = []
        self.on_submit: Callable[[Request], None] = lambda request: None

    def share(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> None: ...

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        return self.vetted

    def render(self, spec: JobSpec) -> Request:
        return Request("POST", "/jobs", {"name": spec.name, "outputs": str(spec.outputs), "world": spec.shape.world})

    def submit(self, request: Request) -> str:
        error = self.submit_errors.pop(0) if self.submit_errors else None
        if error is None or self.arrives_anyway:
            if self.jobs and self.after_loss:
                self.script = self.after_loss
            self.jobs[f"job-{len(self.jobs) + 1}"] = request.body["name"]
            self.on_submit(request)
        if error:
            raise error
        return f"job-{len(self.jobs)}"

    def find(self, request: Request) -> str | None:
        return next((job_id for job_id, known in self.jobs.items() if known == request.body["name"]), None)

    def named(self, name: str) -> str | None:
        return next((job_id for job_id, known in self.jobs.items() if known == name), None)

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Job):
            return dict.fromkeys(job_ids, said)
        ended = dict.fromkeys(self.cancelled, said if said.is_final else Phase.CANCELLED)
        phases = {job_id: ended.get(job_id, said) for job_id in job_ids}
        return {job_id: Job(job_id, phase, phase.value.title()) for job_id, phase in phases.items()}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        return LogPart("", since)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        return {}

    def events(self, job_id: str) -> Sequence[str]:
        return ()

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)

    def close(self) -> None: ...


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    code = tmp_path / "suite" / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text("print('training')\n")
    claims = (Threshold("throughput", "images/s", at_least=40.0), Threshold("accuracy", at_least=0.9))
    return make_case("2x2", *claims, folder=str(code.parent))


def write_results(platform: ScriptedPlatform, request: Request, *, without: Sequence[str] = (), **other: bytes) -> None:
    """What a healthy script leaves in its outputs, except as told."""
    outputs = StoreUrl.parse(request.body["outputs"])
    files = {f"throughput_{rank}.json": b"12.5" for rank in range(request.body["world"])}
    files |= {"ranksize.json": str(request.body["world"]).encode(), "accuracy.json": b"0.95"}
    files |= {f"{name}.json": data for name, data in other.items()}
    for name, data in files.items():
        if name.removesuffix(".json") not in without:
            platform.store.write(outputs / name, data)


@pytest.fixture
def healthy() -> Callable[..., ScriptedPlatform]:
    def make(*script: Phase | Job | Exception, **results: Any) -> ScriptedPlatform:
        platform = ScriptedPlatform(*(script or (Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED)))
        platform.on_submit = lambda request: write_results(platform, request, **results)
        return platform

    return make
