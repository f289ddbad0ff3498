"""The fixtures a suite may ask for. Each works alone; asking twice never submits twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.session import run_owner
from pytest_aisbench.stash import SETTINGS, VERDICT_DUE

if TYPE_CHECKING:
    from pytest_aisbench.model.case import Case
    from pytest_aisbench.model.job import Job, Stage, StoreUrl
    from pytest_aisbench.model.ports import Head, Platform, Store, Upload
    from pytest_aisbench.model.trial import Step, Trial
    from pytest_aisbench.tester.uploader import TesterClient


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case of this test, by its marker `workload`::
        @pytest.mark.workload("resnet50", nodes=[1, 2])
        def test_width(case):
            assert case.shape.world == case.shape.nodes * 8
    It knows the workload, the shape and the thresholds.
    """
    from pytest_aisbench.errors import UsageFault

    parameter: Case | None = getattr(request, "param", None)
    if parameter is None:
        raise UsageFault(
            f"{request.node.nodeid} has no workload", advice='mark it @pytest.mark.workload("name", nodes=[1])'
        )
    request.node.user_properties.append(("aisbench.case", parameter.id))
    return parameter


@pytest.fixture(scope="session")
def _platform(request: pytest.FixtureRequest) -> Platform:
    return run_owner(request.config).platform()


@pytest.fixture(scope="session")
def modelarts_session(_platform: Platform) -> Any:
    """A signed session with ModelArts, or with the local cloud in its place::
        def test_flavors(modelarts_session):
            assert modelarts_session.call("GET", "/v2/{project_id}/training-job-flavors")["flavors"]
    Calls are retried where that is safe, and answer with plain JSON data.
    """
    from pytest_aisbench.errors import UsageFault
    from pytest_aisbench.model.ports import HasVendorSession

    if not isinstance(_platform, HasVendorSession):
        raise UsageFault(f"platform {_platform.name!r} has no ModelArts session", advice="use local or modelarts")
    return _platform.session


@pytest.fixture(scope="session")
def obs(_platform: Platform) -> SuiteStore:
    """The Store that the platform's nodes reach::
        def test_bucket(obs, stage):
            assert any(head.url.key.endswith("train.py") for head in obs.objects(stage.code))
            obs.write(obs.root / "of-a-test/hello.txt", b"hello")
            assert obs.read("obs://bucket/aisbench/of-a-test/hello.txt") == b"hello"
    On ModelArts and the local cloud it is OBS. An address is text, `"obs://bucket/key"`, or a `StoreUrl` such as
    `obs.root`, below which trials are staged.
    """
    return SuiteStore(_platform.store, _platform.root)


class SuiteStore:
    """A Store whose methods take addresses as text too; all else is the Store's own."""

    def __init__(self, store: Store, root: StoreUrl) -> None:
        self._store = store
        self.root = root

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return f"<{type(self._store).__name__} with root {self.root}>"

    def check(self, url: StoreUrl | str) -> None:
        self._store.check(_address(url))

    def head(self, url: StoreUrl | str) -> Head | None:
        return self._store.head(_address(url))

    def read(self, url: StoreUrl | str) -> bytes | None:
        return self._store.read(_address(url))

    def write(self, url: StoreUrl | str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        self._store.write(_address(url), data, metadata)

    def upload(self, uploads: Sequence[Upload]) -> None:
        self._store.upload([replace(each, url=_address(each.url)) for each in uploads])

    def objects(self, url: StoreUrl | str) -> Iterator[Head]:
        return self._store.objects(_address(url))

    def download(self, url: StoreUrl | str, folder: str) -> list[str]:
        return self._store.download(_address(url), folder)

    def delete(self, url: StoreUrl | str) -> None:
        self._store.delete(_address(url))


def _address(url: StoreUrl | str) -> StoreUrl:
    from pytest_aisbench.model.job import StoreUrl

    return StoreUrl.parse(url) if isinstance(url, str) else url


@pytest.fixture(scope="session")
def tester(request: pytest.FixtureRequest) -> Iterator[TesterClient]:
    """The Tester that results are uploaded to, to hand in more::
        def test_room(tester):
            assert tester.upload("room", {"celsius": 21.5}).state.value == "delivered"
    It is written to disk before it is sent, sent again until the Tester has it, and stored there once. Results of cases
    need no test: they are uploaded by the run.
    """
    from pytest_aisbench.tester.uploader import TesterClient

    owner = run_owner(request.config)
    client = TesterClient(request.config.stash[SETTINGS], owner.platform, owner.run_name())
    yield client
    client.close()


@pytest.fixture
def stage(request: pytest.FixtureRequest, case: Case) -> Stage:
    """The place of this case's trial in the Store, with its code and data there::
        @pytest.mark.workload("resnet50", nodes=[1])
        def test_code_arrives(stage, obs):
            assert obs.head(stage.code / "train.py")
    Nothing is submitted for it.
    """
    from pytest_aisbench.errors import PlatformError
    from pytest_aisbench.model.trial import Step

    trial = _reached(request, case, Step.SUBMIT)
    if trial.stage is None:
        raise PlatformError(str(trial.verdict))
    return trial.stage


@pytest.fixture
def job(request: pytest.FixtureRequest, case: Case) -> Job:
    """This case's job, ended::
        @pytest.mark.workload("resnet50", nodes=[1])
        def test_ends_well(job):
            assert job.phase is Phase.SUCCEEDED, job.reason
    `job.reason` says why it did not succeed, by its log where that tells. Its logs are in the reports. Its results are
    not judged: the case has no verdict, and exit code 0 means that the tests passed, no more. If a person stopped the
    job, the test is skipped and the run ends with exit code 2.
    """
    from pytest_aisbench.errors import PlatformError
    from pytest_aisbench.model.trial import Step
    from pytest_aisbench.model.verdict import Ruling

    trial = _reached(request, case, Step.JUDGE)
    if trial.stopped_by:
        pytest.skip(trial.stopped_by)
    if trial.job is None or (trial.judged and trial.judged.ruling is Ruling.BROKEN):
        raise PlatformError(str(trial.verdict))
    return replace(trial.job, reason=trial.fault.text) if trial.fault else trial.job


@pytest.fixture
def trial(request: pytest.FixtureRequest, case: Case) -> Trial:
    """The finished trial of this case, with its measurements and verdict::
        @pytest.mark.workload("resnet50", nodes=[1, 2])
        def test_trains(trial):
            trial.verdict.require()
            assert trial.throughput > 1000 and trial.metrics["loss"] < 2.5
    `trial.metrics` has every metric of the workload as the reports show it, and the last `loss` of the log where the
    workload measures none. A BROKEN verdict is an error here, in the test's setup. One that is FAILED or INCONCLUSIVE
    fails the test in its call even if the test forgets to require it. If a person stopped the job, the test is skipped,
    the case has no verdict, and the run ends with exit code 2.
    """
    from pytest_aisbench.errors import PlatformError
    from pytest_aisbench.judge.values import with_metrics
    from pytest_aisbench.model.trial import Step
    from pytest_aisbench.model.verdict import Ruling

    judged = _reached(request, case, Step.DONE)
    if judged.stopped_by:
        pytest.skip(judged.stopped_by)
    request.node.stash[VERDICT_DUE] = True
    if judged.verdict.ruling is Ruling.BROKEN:
        raise PlatformError(str(judged.verdict))
    return with_metrics(judged)


def _reached(request: pytest.FixtureRequest, case: Case, until: Step) -> Trial:
    from pytest_aisbench.errors import AisbenchError, Crashed, GivenUp, LedgerError, PlatformError
    from pytest_aisbench.report.host_plugins import TRIAL, replace_properties, trial_properties

    try:
        trial = run_owner(request.config).reached(case, until)
    except (LedgerError, Crashed) as error:
        # Without its ledger the run cannot say what it started; the jobs are stopped and nothing more is tried.
        # A worker of xdist may not end the run; its controller does.
        if not hasattr(request.config, "workerinput"):
            pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)
        raise
    except GivenUp as ended:
        pytest.skip(str(ended))
    except AisbenchError as error:
        raise PlatformError(str(error)) from None
    request.node.stash[TRIAL] = trial
    replace_properties(request.node.user_properties, trial_properties(trial, request.config.stash[SETTINGS].platform))
    return trial
