"""What every Platform must do."""

from __future__ import annotations

import json
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_aisbench.domain.case import Shape
from pytest_aisbench.domain.job import Job, JobSpec, LogPart, Phase
from pytest_aisbench.domain.ports import Platform


class PlatformContract:
    """Needs a fixture `platform`, whose store holds what the tests put below its root. Jobs run plain Python."""

    OPTIONS: Mapping[str, Any] = {}  # the platform's own keys of workload.toml
    NODE = Shape(1, 1)
    TWO_NODES = Shape(2, 1)
    SECRETS: tuple[str, ...] = ()  # texts that nothing may show
    UNKNOWN = "00000000-0000-0000-0000-000000000000"
    PATIENCE_S = 60.0
    SAVE = "pathlib.Path(given['train_url'], name).write_text(text)"  # how a job leaves `text` as a result `name`

    @pytest.fixture
    def platform(self) -> Platform:
        raise AssertionError("the test class that inherits PlatformContract has a fixture `platform`")

    @pytest.fixture
    def spec(self, platform: Platform) -> Iterator[Callable[..., JobSpec]]:
        """`spec(code)`: a job of its own that runs this code."""
        places = []

        def make(code: str, **changed: Any) -> JobSpec:
            name = f"contract-{uuid.uuid4().hex[:12]}"
            place = platform.root / f"{name}/"
            places.append(place)
            platform.store.write(place / "code/train.py", textwrap.dedent(code).encode())
            fields = {"name": name, "shape": self.NODE, "options": self.OPTIONS, **changed}
            return JobSpec(
                code=place / "code/", entry="train.py", outputs=place / "outputs/", logs=place / "logs/", **fields
            )

        yield make
        for place in places:
            platform.store.delete(place)

    def ended(self, platform: Platform, job_id: str) -> Job:
        deadline = time.monotonic() + self.PATIENCE_S
        while not (job := platform.inspect([job_id])[job_id]).phase.is_final:
            assert time.monotonic() < deadline, f"still {job}"
            time.sleep(0.05)
        return job

    def test_its_access_works(self, platform: Platform) -> None:
        platform.check()

    def test_a_healthy_job_passes_its_lists(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        checks = list(platform.vet(spec("pass")))
        assert [check for check in checks if check.failed] == []
        assert all(check.name and check.text for check in checks)
        assert not [secret for secret in self.SECRETS if secret in repr(checks)]

    def test_rendering_is_pure(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        one = spec("pass", parameters={"epochs": "3"}, environment={"GLOG_v": "3"}, max_run_s=60.0)
        request = platform.render(one)
        assert request == platform.render(one)
        shown = f"{request!r} {json.dumps(request.body)}"
        assert one.name in shown
        assert not [secret for secret in self.SECRETS if secret in shown]
        assert platform.find(request) is None

    def test_a_job_runs_and_stays_ended(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        one = spec(
            f"""
            import os, pathlib, sys
            given = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
            name, text = "said.txt", given["word"] + os.environ.get("SECOND_WORD", "")
            {self.SAVE}
            """,
            parameters={"word": "α & ω, "},
            environment={"SECOND_WORD": "$HOME"},
        )
        job_id = platform.submit(platform.render(one))
        job = self.ended(platform, job_id)
        assert (job.id, job.phase, job.known, job.reason) == (job_id, Phase.SUCCEEDED, True, "")
        assert job.exit_code in {0, None}
        assert job.queued_s is None or job.queued_s >= 0
        assert job.ran_s is None or job.ran_s > 0
        variable = "$HOME" if platform.takes_environment else ""
        assert platform.store.read(one.outputs / "said.txt") == f"α & ω, {variable}".encode()
        platform.cancel(job_id)
        assert platform.inspect([job_id])[job_id] == job

    def test_a_failure_is_the_jobs_own(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        job = self.ended(platform, platform.submit(platform.render(spec("raise SystemExit(3)"))))
        assert job.phase is Phase.FAILED
        assert job.exit_code in {3, None}
        assert job.reason

    def test_a_job_is_found_by_its_whole_name_only(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        one = spec("pass")
        longer = replace(one, name=f"{one.name}-1")
        sent = platform.render(longer)
        job_id = platform.submit(sent)
        assert platform.find(platform.render(one)) is None
        assert platform.find(sent) == job_id
        assert (platform.named(one.name), platform.named(longer.name)) == (None, job_id)
        self.ended(platform, job_id)
        assert platform.find(sent) == job_id

    def test_stopping_twice_or_nothing_is_harmless(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        job_id = platform.submit(platform.render(spec("import time; time.sleep(600)")))
        platform.cancel(job_id)
        platform.cancel(job_id)
        assert self.ended(platform, job_id).phase is Phase.CANCELLED
        platform.cancel(job_id)
        platform.cancel(self.UNKNOWN)

    def test_many_are_inspected_at_once(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        bodies = ["pass", "raise SystemExit(3)", "pass"]
        ids = [platform.submit(platform.render(spec(body))) for body in bodies]
        for job_id in ids:
            self.ended(platform, job_id)
        jobs = platform.inspect([*ids, self.UNKNOWN])
        phases = [Phase.SUCCEEDED, Phase.FAILED, Phase.SUCCEEDED, Phase.LOST]
        assert {job_id: job.phase for job_id, job in jobs.items()} == dict(
            zip([*ids, self.UNKNOWN], phases, strict=True)
        )
        assert jobs[self.UNKNOWN].reason
        assert platform.inspect([]) == {}

    def test_logs_go_on_where_they_ended(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        one = spec("import time; print('Größe 1', flush=True); time.sleep(0.5); print('Größe 2')")
        job_id = platform.submit(platform.render(one))
        read = platform.logs(job_id)
        deadline = time.monotonic() + self.PATIENCE_S
        while "Größe 1" not in read.text:
            assert time.monotonic() < deadline, "the first line never came"
            read = platform.logs(job_id)
        self.ended(platform, job_id)
        rest = platform.logs(job_id, since=read.next)
        whole = platform.logs(job_id)
        assert read.text + rest.text == whole.text
        assert whole.text.count("Größe 2") == self.NODE.devices
        assert platform.logs(job_id, since=whole.next) == LogPart("", whole.next)

    def test_usage_is_in_percent_by_names_we_know(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        job_id = platform.submit(platform.render(spec("import time; time.sleep(2.5)", shape=self.TWO_NODES)))
        self.ended(platform, job_id)
        for node in range(self.TWO_NODES.nodes):
            usage = platform.usage(job_id, node)  # empty where the platform samples nothing, or not so soon
            assert usage.keys() <= {"cpu", "memory", "npu", "npu memory", "gpu", "gpu memory"}
            assert all(0 <= value <= 100 for samples in usage.values() for value in samples)
            assert all(usage.values()), "a name without samples is left out"

    def test_nodes_have_ranks_and_logs_of_their_own(self, platform: Platform, spec: Callable[..., JobSpec]) -> None:
        one = spec(
            "import os; print('rank', os.environ['RANK_ID'], 'of', os.environ['RANK_SIZE'])", shape=self.TWO_NODES
        )
        job_id = platform.submit(platform.render(one))
        assert self.ended(platform, job_id).phase is Phase.SUCCEEDED
        ranks = [
            {line for line in platform.logs(job_id, node).text.splitlines() if line.startswith("rank ")}
            for node in range(self.TWO_NODES.nodes)
        ]
        assert all(len(of_node) == self.TWO_NODES.devices for of_node in ranks)
        assert set.union(*ranks) == {f"rank {rank} of {self.TWO_NODES.world}" for rank in range(self.TWO_NODES.world)}
