"""Every call of the platforms and stores through every fault of the local cloud, which counts the requests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from held_time import HeldTime
from waiting import wait_until

from pytest_aisbench import Access, Settings
from pytest_aisbench.errors import AisbenchError, Blame, Garbled, Refused, Throttled, Unreachable
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, Phase, Request, StoreUrl
from pytest_aisbench.model.ports import Upload
from pytest_aisbench.net import retry
from pytest_aisbench.platforms.modelarts.platform import ModelArts
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores import obs

OPTIONS = {
    "flavor": "modelarts.kat1.8xlarge",
    "framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64",
}
TIMES = 2  # that a fault strikes before it is over
_numbers = itertools.count()


class Bench(NamedTuple):
    """A platform with one job, and what its calls need."""

    cloud: LocalCloud
    platform: ModelArts
    job: str
    sent: Request  # that made it
    file: Path

    @property
    def place(self) -> StoreUrl:
        return self.platform.root / "kept/"

    def request(self) -> Request:
        return self.platform.render(_spec(self.platform, f"matrix-{next(_numbers)}", seconds=0.05))

    def requests(self, service: str, operation: str) -> int:
        return int(self.cloud.books()["requests"][service].get(operation, 0))


def _spec(platform: ModelArts, name: str, seconds: float) -> JobSpec:
    place = platform.root
    return JobSpec(
        name=name,
        shape=Shape(1, 8),
        code=place / "code/",
        entry="train.py",
        outputs=place / f"{name}/outputs/",
        logs=place / f"{name}/logs/",
        parameters={"seconds": str(seconds), "epochs": "100"},
        options=OPTIONS,
    )


def access_to(card: dict[str, str], **changes: Any) -> Access:
    return Access(
        access_key=Secret(card["access_key"]),
        secret_access_key=Secret(card["secret_key"]),
        bucket=card["bucket"],
        **{
            "region_name": card["region"],
            "project_id": card["project_id"],
            "iam_endpoint": card["iam_endpoint"],
            "obs_endpoint": card["obs_endpoint"],
            "modelarts_endpoint": card["modelarts_endpoint"],
            **changes,
        },
    )


@contextlib.contextmanager
def platform_of(cloud: LocalCloud, patience: float = 10.0, **changes: Any) -> Iterator[ModelArts]:
    class Hasty(ModelArts):
        patience_s = patience

    platform = Hasty(Settings(platform="modelarts", access=access_to(cloud.card(), **changes)))
    with contextlib.closing(platform):
        yield platform


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with LocalCloud(engine="simulated") as cloud, platform_of(cloud) as platform:
        platform.store.write(platform.root / "code/train.py", b"pass\n")
        for number in range(3):
            platform.store.write(platform.root / f"kept/{number}", b"0123456789")
        sent = platform.render(_spec(platform, "matrix", seconds=3600))
        job = platform.submit(sent)
        wait_until(lambda: platform.inspect([job])[job].phase is Phase.RUNNING and platform.logs(job).text)
        file = tmp_path_factory.mktemp("large") / "file"
        file.write_bytes(b"0123456789")
        yield Bench(cloud, platform, job, sent, file)


@pytest.fixture
def bench(made: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Nobody waits in truth, so that patience is a number of attempts on the slowest machine too."""
    clock = HeldTime()
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(made.platform.store._client, "_closed", clock)
    monkeypatch.setattr(obs, "_ONE_PUT", 100)
    yield made
    made.cloud.faults.clear()


# What a fault makes of a call, by the service and operation that it strikes.


def _upload_in_parts(bench: Bench) -> bool:
    url = bench.platform.root / f"large-{next(_numbers)}"
    with bench.file.open("wb") as file:
        file.write(b"0123456789" * 20)
    bench.platform.store.upload([Upload(str(bench.file), url, 200)])
    return bench.platform.store.read(url) == b"0123456789" * 20


def _write(bench: Bench) -> bool:
    url = bench.platform.root / f"small-{next(_numbers)}"
    bench.platform.store.write(url, b"0123456789", {"manifest": "m"})
    return bench.platform.store.read(url) == b"0123456789"


def _delete(bench: Bench) -> bool:
    url = bench.platform.root / f"gone-{next(_numbers)}"
    bench.platform.store.write(url, b"1")
    bench.platform.store.delete(url)
    return bench.platform.store.head(url) is None


def _cancel(bench: Bench) -> bool:
    job = bench.platform.submit(bench.request())
    bench.platform.cancel(job)
    return True


def _download(bench: Bench) -> bool:
    folder = bench.file.parent / f"home-{next(_numbers)}"
    names = bench.platform.store.download(bench.place, str(folder))
    return [(folder / name).read_bytes() for name in names] == [b"0123456789"] * 3


def _look_up_project(bench: Bench) -> bool:
    with platform_of(bench.cloud, bench.platform.session.patience_s, project_id="") as platform:
        return platform.session.project_id == bench.platform.session.project_id


def _inspect_many(bench: Bench) -> bool:
    wanted = [bench.job, "unknown-1", "unknown-2"]
    return [job.phase for job in bench.platform.inspect(wanted).values()] == [Phase.RUNNING, Phase.LOST, Phase.LOST]


def _check(bench: Bench) -> bool:
    bench.platform.check()
    return True


def _check_bucket(bench: Bench) -> bool:
    bench.platform.store.check(bench.place)
    return True


Call = Callable[[Bench], bool]
CALLS: dict[str, tuple[str, str, Call]] = {
    "find": ("modelarts", "search", lambda bench: bench.platform.find(bench.sent) == bench.job),
    "inspect one": ("modelarts", "show", lambda bench: bench.platform.inspect([bench.job])[bench.job].id == bench.job),
    "inspect many": ("modelarts", "search", _inspect_many),
    "logs": ("modelarts", "log", lambda bench: bool(bench.platform.logs(bench.job).text)),
    "cancel": ("modelarts", "stop", _cancel),
    "check": ("modelarts", "flavors", _check),
    "project": ("iam", "projects", _look_up_project),
    "check bucket": ("obs", "get-bucket", _check_bucket),
    "head": ("obs", "head-object", lambda bench: bench.platform.store.head(bench.place / "1") is not None),
    "get": ("obs", "get-object", lambda bench: bench.platform.store.read(bench.place / "1") == b"0123456789"),
    "put": ("obs", "put-object", _write),
    "list": ("obs", "get-bucket", lambda bench: len(list(bench.platform.store.objects(bench.place))) == 3),
    "download": ("obs", "get-object", _download),
    "delete": ("obs", "delete-object", _delete),
    "multipart begin": ("obs", "post-object-uploads", _upload_in_parts),
    "multipart part": ("obs", "put-object-uploadId", _upload_in_parts),
    "multipart end": ("obs", "post-object-uploadId", _upload_in_parts),
}
FAULTS: dict[str, tuple[dict[str, Any], type[AisbenchError]]] = {
    "500": ({"status": 500}, Unreachable),
    "502 page": ({"status": 502, "html": True}, Unreachable),
    "503": ({"status": 503}, Unreachable),
    "429": ({"status": 429}, Throttled),
    "reset": ({"drop": "request"}, Unreachable),
    "lost answer": ({"drop": "answer"}, Unreachable),
    "cut short": ({"truncate": 1}, Unreachable),
    "page": ({"html": True}, Garbled),
}
_BODILESS = {"head", "put", "delete", "multipart part"}  # whose good answers cannot be cut short


def struck(call: str, fault: str) -> bool:
    return not (fault == "cut short" and call in _BODILESS)


MATRIX = [pytest.param(call, fault, id=f"{call}-{fault}") for call in CALLS for fault in FAULTS if struck(call, fault)]


@pytest.mark.parametrize(("call", "fault"), MATRIX)
def test_a_fault_that_passes_is_sat_out(bench: Bench, call: str, fault: str) -> None:
    service, operation, action = CALLS[call]
    bench.cloud.faults.set([Fault(service=service, operation=operation, times=TIMES, **FAULTS[fault][0])])
    before = bench.requests(service, operation)
    assert action(bench)
    assert bench.cloud.faults.as_json()[0]["struck"] == TIMES
    assert bench.requests(service, operation) > before + TIMES


@pytest.mark.parametrize(("call", "fault"), MATRIX)
def test_a_fault_that_stays_is_the_platforms_in_one_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str, fault: str
) -> None:
    service, operation, action = CALLS[call]
    rule, kind = FAULTS[fault]
    bench.cloud.faults.set([Fault(service=service, operation=operation, **rule)])
    for owner, name in ((bench.platform.session, "patience_s"), (bench.platform.store._client, "_patience")):
        monkeypatch.setattr(owner, name, 10.0)
    before = bench.requests(service, operation)
    with pytest.raises(AisbenchError) as raised:
        action(bench)
    assert type(raised.value) is kind
    assert raised.value.blame is Blame.PLATFORM
    assert "\n" not in str(raised.value)
    assert bench.requests(service, operation) > before + 1, "it was not tried again"


# What must not be sent twice.


@pytest.mark.parametrize("fault", FAULTS)
def test_a_create_is_sent_once_and_the_job_found_by_its_name_if_it_was_made(bench: Bench, fault: str) -> None:
    request = bench.request()
    name = request.body["metadata"]["name"]
    before = bench.requests("modelarts", "create")
    bench.cloud.faults.set([Fault(service="modelarts", operation="create", **FAULTS[fault][0])])
    with pytest.raises((Unreachable, Throttled)) as raised:
        bench.platform.submit(request)
    assert raised.value.blame is Blame.PLATFORM
    assert bench.requests("modelarts", "create") == before + 1
    bench.cloud.faults.clear()
    made = [job["id"] for job in bench.cloud.books()["jobs"] if job["name"] == name]
    assert made == ([bench.platform.find(request)] if fault in {"lost answer", "cut short"} else [])


# Keys that fail for a while.

KEYS = {
    "modelarts": ("modelarts", "show", {"status": 401, "code": "APIGW.0301"}, lambda b: b.platform.inspect([b.job])),
    "obs": (
        "obs",
        "get-object",
        {"status": 403, "code": "InvalidAccessKeyId"},
        lambda b: b.platform.store.read(b.place / "1"),
    ),
    "obs head": ("obs", "head-object", {"status": 403}, lambda b: b.platform.store.head(b.place / "1")),
}


@pytest.mark.parametrize(("service", "operation", "rule", "action"), KEYS.values(), ids=KEYS)
def test_keys_that_were_good_are_tried_again_and_those_that_never_were_are_not(
    bench: Bench, service: str, operation: str, rule: dict[str, Any], action: Callable[[Bench], Any]
) -> None:
    assert action(bench)
    bench.cloud.faults.set([Fault(service=service, operation=operation, times=TIMES, **rule)])
    assert action(bench)
    before = bench.requests(service, operation)
    with platform_of(bench.cloud) as stranger:
        bench.cloud.faults.set([Fault(service=service, operation=operation, **rule)])
        with pytest.raises(Refused):
            action(bench._replace(platform=stranger))
    assert bench.requests(service, operation) == before + 1


def test_a_right_that_is_missing_is_not_asked_for_again(bench: Bench) -> None:
    bench.platform.store.read(bench.place / "1")
    before = bench.requests("obs", "get-object")
    bench.cloud.faults.set([Fault(service="obs", operation="get-object", status=403, code="AccessDenied")])
    with pytest.raises(Refused, match="owner of bucket"):
        bench.platform.store.read(bench.place / "1")
    assert bench.requests("obs", "get-object") == before + 1


# Clocks that are apart.


@pytest.mark.parametrize("skew", [2400.0, -86400.0])
def test_a_clock_that_is_wrong_costs_one_more_request(skew: float) -> None:
    with LocalCloud(engine="simulated", clock_skew=skew) as cloud, platform_of(cloud, project_id="") as platform:
        platform.check()
        requests = cloud.books()["requests"]
        assert (requests["iam"]["projects"], requests["modelarts"]["flavors"], requests["obs"]["get-bucket"]) == (
            2,
            1,
            2,
        )
        platform.store.write(platform.root / "code/train.py", b"pass\n", {"manifest": "m"})
        assert platform.store.read(platform.root / "code/train.py") == b"pass\n"
        job = platform.submit(platform.render(_spec(platform, "late", seconds=0)))
        assert platform.inspect([job])[job].id == job
        requests = cloud.books()["requests"]
        assert (requests["modelarts"]["create"], requests["obs"]["put-object"], requests["obs"]["get-object"]) == (
            1,
            1,
            1,
        )


def test_a_create_that_was_refused_for_its_date_is_made_once() -> None:
    with LocalCloud(engine="simulated", clock_skew=2400) as cloud, platform_of(cloud) as platform:
        platform.store.write(platform.root / "code/train.py", b"pass\n")
        job = platform.submit(platform.render(_spec(platform, "late", seconds=0)))
        assert [each["id"] for each in cloud.books()["jobs"]] == [job]
        assert cloud.books()["requests"]["modelarts"]["create"] == 2


def test_many_uploads_at_once_learn_of_a_wrong_clock_together(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with LocalCloud(engine="simulated", clock_skew=-2400) as cloud:
        through = cloud.card()["obs_endpoint"].removeprefix("http://")
        keys = (Secret(cloud.card()["access_key"]), Secret(cloud.card()["secret_key"]))
        # By a domain's name the vendor's client asks which signature to use, and dates by another header.
        for endpoint, tunnel in ((cloud.card()["obs_endpoint"], ""), ("http://obs.local-1.test", through)):
            with contextlib.closing(obs.Obs(endpoint, *keys, through=tunnel, patience=0.0)) as store:
                urls = [StoreUrl("aisbench", f"{len(tunnel)}/{number}") for number in range(64)]
                store.upload([Upload(str(tmp_path / "file"), url, 1) for url in urls])
                assert {head.url for head in store.objects(StoreUrl("aisbench", f"{len(tunnel)}/"))} == set(urls)


def test_wrong_keys_are_refused_whatever_the_clocks_say() -> None:
    with LocalCloud(engine="simulated", clock_skew=2400) as cloud:
        card = {**cloud.card(), "secret_key": "guessed"}
        with contextlib.closing(ModelArts(Settings(platform="modelarts", access=access_to(card)))) as platform:
            with pytest.raises(Refused, match="verify aksk signature fail"):
                platform.check()
            with pytest.raises(Refused, match="check secret_access_key"):
                platform.store.read(platform.root / "code/train.py")
        assert cloud.books()["requests"]["modelarts"]["flavors"] == 2


@pytest.mark.slow
def test_an_answer_that_takes_too_long_is_asked_for_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with platform_of(bench.cloud) as platform:
        monkeypatch.setattr(platform.session, "_timeout", (5.0, 0.3))
        platform.store._client._vendor(platform.root.bucket).timeout = 0.3
        slow = bench._replace(platform=platform)
        for call in ("inspect one", "get", "put", "list"):
            service, operation, action = CALLS[call]
            bench.cloud.faults.set([Fault(service=service, operation=operation, times=1, delay=1.0)])
            before = bench.requests(service, operation)
            assert action(slow)
            assert bench.requests(service, operation) > before + 1, call
