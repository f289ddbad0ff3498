"""The fixtures a suite may ask for. Each works alone; asking twice never submits twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aisbench.session import run_owner
from pytest_aisbench.stash import SETTINGS, VERDICT_DUE

if TYPE_CHECKING:
    from pytest_aisbench.model.case import Case
    from pytest_aisbench.model.job import Job, Stage
    from pytest_aisbench.model.ports import Platform, Store
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
def obs(_platform: Platform) -> Store:
    """The Store that the platform's nodes reach::
        def test_bucket(obs, stage):
            assert any(head.url.key.endswith("train.py") for head in obs.objects(stage.code))
    On ModelArts and the local cloud it is OBS.
    """
    return _platform.store


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
    Its results are not judged. If a person stopped it, the test is skipped and the run ends with exit code 2.
    """
    from pytest_aisbench.errors import PlatformError
    from pytest_aisbench.model.trial import Step

    trial = _reached(request, case, Step.HARVEST)
    if trial.stopped_by:
        pytest.skip(trial.stopped_by)
    if trial.job is None:
        raise PlatformError(str(trial.verdict))
    return trial.job


@pytest.fixture
def trial(request: pytest.FixtureRequest, case: Case) -> Trial:
    """The finished trial of this case, with its measurements and verdict::
        @pytest.mark.workload("resnet50", nodes=[1, 2])
        def test_trains(trial):
            trial.verdict.require()
    A BROKEN verdict is an error here, in the test's setup. One that is FAILED or INCONCLUSIVE fails the test in its
    call even if the test forgets to require it. If a person stopped the job, the test is skipped, the case has no
    verdict, and the run ends with exit code 2.
    """
    from pytest_aisbench.errors import PlatformError
    from pytest_aisbench.model.trial import Step
    from pytest_aisbench.model.verdict import Ruling

    judged = _reached(request, case, Step.DONE)
    if judged.stopped_by:
        pytest.skip(judged.stopped_by)
    request.node.stash[VERDICT_DUE] = True
    if judged.verdict.ruling is Ruling.BROKEN:
        raise PlatformError(str(judged.verdict))
    return judged


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
