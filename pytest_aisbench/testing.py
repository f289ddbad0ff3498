"""Tests that every platform, store, reporter and clock must pass, for plugins of third parties and for our own.

Inherit the contract class of your port in a test module and give it its fixtures. This module imports `errors` and
`model` only, and nothing of ours but tests imports it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_aisbench.errors import AisbenchError, Blame, StagingFailed
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Phase, StoreUrl
from pytest_aisbench.model.metric import ACCURACY, THROUGHPUT
from pytest_aisbench.model.ports import Clock, Platform, Reporter, Store, Upload
from pytest_aisbench.model.results import SCHEMA, CaseEntry, RunEntry, TrialEntry, Value
from pytest_aisbench.model.verdict import Finding, Outcome, Ruling


class ClockContract:
    """What every Clock must do. Needs a fixture `clock`."""

    @pytest.fixture
    def clock(self) -> Clock:
        raise AssertionError("the test class that inherits ClockContract has a fixture `clock`")

    def test_time_does_not_run_backwards(self, clock: Clock) -> None:
        times = [clock.now() for _ in range(100)]
        assert times == sorted(times)
        assert times[0] > 0

    def test_sleeping_takes_its_time(self, clock: Clock) -> None:
        before = clock.now()
        clock.sleep(0.02)
        assert clock.now() - before >= 0.019  # a clock may count in steps


class PlatformContract:
    """What every Platform must do. Needs a fixture `platform`; the tests write below the root of its store.

    Jobs run plain Python."""

    OPTIONS: Mapping[str, Any] = {}  # the platform's own keys of workload.toml
    NODE = Shape(1, 1)
    TWO_NODES = Shape(2, 1)
    SECRETS: tuple[str, ...] = ()  # texts that no output may contain
    UNKNOWN = "00000000-0000-0000-0000-000000000000"
    PATIENCE_S = 60.0
    SAVE = "pathlib.Path(given['train_url'], name).write_text(text)"  # how a job leaves `text` as a result `name`

    @pytest.fixture
    def platform(self) -> Platform:
        raise AssertionError("the test class that inherits PlatformContract has a fixture `platform`")

    @pytest.fixture
    def spec(self, platform: Platform) -> Iterator[Callable[..., JobSpec]]:
        """`spec(code)` returns a new job that runs this code."""
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
        text = f"{request!r} {json.dumps(request.body)}"
        assert one.name in text
        assert not [secret for secret in self.SECRETS if secret in text]
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


HOSTILE = "<script>alert('x')</script> ]]> \x1b[31m \u202e \ud800 & 训练"


def case_entry(ruling: Ruling | None, reason: str = "as it was judged", measured: float | None = 1200.0) -> CaseEntry:
    """A case of two nodes with two cards each; one rank has no value if `measured` is None."""
    name = ruling.value.lower() if ruling else "unjudged"
    outcome = Outcome.MET if ruling is Ruling.PASSED else Outcome.UNMEASURED if measured is None else Outcome.MISSED
    finding = Finding(THROUGHPUT, outcome, measured, ">= 1000 images/s", f"{THROUGHPUT}: {reason}")
    share = None if measured is None else measured / 4
    trial = TrialEntry(
        trial=1,
        job_id="0b6c4f4e-0000-4000-8000-000000000001",
        platform_phase="Completed",
        phase="SUCCEEDED",
        queued_s=1.5,
        ran_s=60.0,
        throughput_by_rank=(300.0, 300.0, 300.0, share),
        throughput_by_server=(600.0, None if share is None else 300.0 + share),
        accuracy_by_server=(0.76,),
        stragglers=(),
        logs=(f"logs/{name}-2x2/1/worker-0.log",),
        stage=f"obs://bucket/aisbench/trials/run/{name}-2x2/1/",
        times={"stage": 1_700_000_000.0, "done": 1_700_000_060.0},
        notes=(reason,),
    )
    return CaseEntry(
        id=f"{name}-2x2",
        workload=name,
        nodes=2,
        devices_per_node=2,
        mode="cluster",
        verdict=ruling,
        reason=reason,
        card_hours=0.066667,
        metrics={THROUGHPUT: Value(measured, "images/s"), ACCURACY: Value(0.76, "")},
        findings=(finding,) if ruling else (),
        trials=(trial,) if ruling else (),
    )


class ReporterContract:
    """What every Reporter must do. Needs a fixture `reporter`, built as the plugin would build it."""

    @pytest.fixture
    def reporter(self) -> Reporter:
        raise AssertionError("the test class that inherits ReporterContract has a fixture `reporter`")

    def run_of(self, *cases: CaseEntry, exit_code: int | None) -> RunEntry:
        finished = None if exit_code is None else "2023-11-14T22:14:20.000Z"
        settings = {"platform": "local", "nodes": [2]}
        return RunEntry(SCHEMA, "run", "2023-11-14T22:13:20.000Z", finished, exit_code, settings, cases)

    @pytest.mark.parametrize("ruling", [*Ruling, None])
    def test_every_verdict_is_taken(self, reporter: Reporter, ruling: Ruling | None) -> None:
        entry = case_entry(ruling)
        reporter.case(entry)
        reporter.run(self.run_of(entry, exit_code=0))

    def test_what_was_not_measured_is_taken(self, reporter: Reporter) -> None:
        entry = case_entry(Ruling.FAILED, "throughput_3.json is missing", measured=None)
        reporter.case(entry)
        reporter.run(self.run_of(entry, exit_code=1))

    def test_text_that_a_job_wrote_is_taken(self, reporter: Reporter) -> None:
        entry = case_entry(Ruling.FAILED, HOSTILE)
        reporter.case(entry)
        reporter.run(self.run_of(entry, exit_code=1))

    def test_a_case_may_end_twice(self, reporter: Reporter) -> None:
        """Another test of the same case failed after the first had passed."""
        reporter.case(case_entry(Ruling.PASSED))
        reporter.case(case_entry(Ruling.FAILED))
        reporter.run(self.run_of(case_entry(Ruling.FAILED), exit_code=1))

    def test_a_run_may_end_without_a_case_or_in_its_middle(self, reporter: Reporter) -> None:
        reporter.run(self.run_of(exit_code=None))
        reporter.run(self.run_of(case_entry(None), exit_code=2))


class StoreContract:
    """What every Store must do. Needs two fixtures: `store`, and `place`, a folder in it that only this test uses."""

    HOSTILE = ("../outside", "a/../../outside", "/absolute", "a\\..\\outside", "a//b", "./c")

    @pytest.fixture
    def store(self) -> Store:
        raise AssertionError("the test class that inherits StoreContract has a fixture `store`")

    @pytest.fixture
    def place(self) -> StoreUrl:
        raise AssertionError("the test class that inherits StoreContract has a fixture `place`")

    def test_what_is_written_is_read(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "a.json", b"14151.0")
        assert store.read(place / "a.json") == b"14151.0"
        head = store.head(place / "a.json")
        assert head is not None
        assert (head.url, head.size) == (place / "a.json", 7)
        assert head.md5 in {None, hashlib.md5(b"14151.0", usedforsecurity=False).hexdigest()}

    def test_a_second_write_replaces_the_first(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "a", b"first and longer")
        store.write(place / "a", b"second")
        assert store.read(place / "a") == b"second"

    def test_what_is_missing_is_none(self, store: Store, place: StoreUrl) -> None:
        assert store.head(place / "missing") is None
        assert store.read(place / "missing") is None
        assert list(store.objects(place / "missing/")) == []
        store.delete(place / "missing")
        store.delete(place / "missing/")

    def test_a_bucket_that_is_not_there_is_the_users_to_mend(self, store: Store, place: StoreUrl) -> None:
        store.check(place)
        nowhere = StoreUrl("no-such-bucket-here", "a")
        asks: list[Callable[[], object]] = [
            lambda: store.check(nowhere),
            lambda: store.read(nowhere),
            lambda: store.write(nowhere, b"1"),
            lambda: list(store.objects(nowhere)),
        ]
        for ask in asks:
            with pytest.raises(AisbenchError, match="no-such-bucket-here") as refused:
                ask()
            assert refused.value.blame is Blame.USER

    def test_metadata_comes_back(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "marked", b"1", {"manifest": "0123abcd", "note": "50 % of α & ω"})
        head = store.head(place / "marked")
        assert head is not None
        assert dict(head.metadata or {}) == {"manifest": "0123abcd", "note": "50 % of α & ω"}

    @pytest.mark.parametrize("name", ["模型/训练.py", "a b+c&d=e?f#g%h.txt", "ü~(1)*'!;@,$.txt", "a%2Fb"])
    def test_any_name_is_a_key(self, store: Store, place: StoreUrl, tmp_path: Path, name: str) -> None:
        store.write(place / name, name.encode())
        assert store.read(place / name) == name.encode()
        assert [head.url for head in store.objects(place)] == [place / name]
        assert store.download(place, str(tmp_path)) == [name]
        assert (tmp_path / name).read_text() == name

    def test_nothing_is_something(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        store.upload([Upload(str(tmp_path / "empty"), place / "empty", 0)])
        assert store.read(place / "empty") == b""
        store.download(place, str(tmp_path / "home"))
        assert (tmp_path / "home/empty").read_bytes() == b""

    def test_a_listing_is_whole_and_in_key_order(self, store: Store, place: StoreUrl) -> None:
        """Beyond the 1,000 keys that one answer holds."""
        names = [f"{number:04d}" for number in range(1000)] + ["a/b", "a/c/d"]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: store.write(place / name, name.encode()), reversed(names)))
        objects = list(store.objects(place))
        assert [head.url for head in objects] == [place / name for name in names]
        assert [head.size for head in objects] == [len(name) for name in names]
        store.delete(place / "a/")
        assert [head.url for head in store.objects(place / "a/")] == []
        store.delete(place)
        assert list(store.objects(place)) == []

    def test_a_folder_is_not_its_namesakes(self, store: Store, place: StoreUrl) -> None:
        for name in ("run/1", "run-2/1", "running"):
            store.write(place / name, b"1")
        assert [head.url for head in store.objects(place / "run/")] == [place / "run/1"]
        store.delete(place / "run/")
        assert {head.url for head in store.objects(place)} == {place / "run-2/1", place / "running"}

    def test_files_go_up_and_come_home(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        content = {f"d{number % 3}/f{number}": bytes([number]) * (number * 7001) for number in range(40)}
        uploads = []
        for (name, data), with_md5 in zip(content.items(), itertools.cycle([True, False])):
            file = tmp_path / "from" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest() if with_md5 else None
            uploads.append(Upload(str(file), place / name, len(data), md5))
        store.upload(uploads)
        assert sorted(store.download(place, str(tmp_path / "to"))) == sorted(content)
        landed = {str(file.relative_to(tmp_path / "to")) for file in (tmp_path / "to").rglob("*") if file.is_file()}
        assert landed == set(content)
        assert all((tmp_path / "to" / name).read_bytes() == data for name, data in content.items())

    def test_bytes_that_changed_on_the_way_are_noticed(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"what is there")
        other = hashlib.md5(b"what was meant", usedforsecurity=False).hexdigest()
        with pytest.raises(StagingFailed):
            store.upload([Upload(str(tmp_path / "a"), place / "a", 13, other)])

    def test_a_file_that_is_not_as_long_as_it_was_is_noticed(
        self, store: Store, place: StoreUrl, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"short")
        with pytest.raises(StagingFailed, match=str(tmp_path / "a")):
            store.upload([Upload(str(tmp_path / "a"), place / "a", 50_000_000)])
        with pytest.raises(StagingFailed, match=str(tmp_path / "gone")):
            store.upload([Upload(str(tmp_path / "gone"), place / "a", 1)])
        assert store.head(place / "a") is None

    @pytest.mark.parametrize("key", HOSTILE)
    def test_no_key_leads_out_of_the_folder(self, store: Store, place: StoreUrl, tmp_path: Path, key: str) -> None:
        hostile = StoreUrl(place.bucket, place.key + key)
        try:
            store.write(hostile, b"evil")
        except AisbenchError:
            pytest.skip(f"this store takes no key such as {key!r}")
        store.write(place / "good", b"good")
        if hostile not in [head.url for head in store.objects(place)]:
            pytest.skip(f"this store keeps {key!r} under another key")
        with pytest.raises(StagingFailed) as refused:
            store.download(place, str(tmp_path / "home"))
        assert repr(hostile.key) in str(refused.value)
        assert not [file for file in tmp_path.rglob("*") if file.is_file()]

    def test_no_link_leads_out_of_the_folder(self, store: Store, place: StoreUrl, tmp_path: Path) -> None:
        store.write(place / "sub/file", b"1")
        (tmp_path / "home").mkdir()
        (tmp_path / "outside").mkdir()
        (tmp_path / "home/sub").symlink_to(tmp_path / "outside")
        with pytest.raises(StagingFailed, match="sub/file"):
            store.download(place, str(tmp_path / "home"))
        assert list((tmp_path / "outside").iterdir()) == []

    def test_closing_twice_is_fine(self, store: Store, place: StoreUrl) -> None:
        store.write(place / "a", b"1")
        store.close()
        store.close()
        with pytest.raises(AisbenchError, match="closed"):
            store.read(place / "a")
