"""What Apulis does that its documents do not say, against a scripted server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_aisbench import Settings
from pytest_aisbench.errors import AisbenchError, PlatformError, Refused, Rejected, Unreachable
from pytest_aisbench.model.case import Shape
from pytest_aisbench.model.job import JobSpec, LogPart, Phase, StoreUrl
from pytest_aisbench.platforms.apulis import watch
from pytest_aisbench.platforms.apulis.platform import Apulis
from pytest_aisbench.platforms.apulis.settings import ApulisAccess
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    from tests.contract.conftest import Server

PASSWORD, TOKEN = "the-password-of-the-test", "the.token.of-the-test"
HERE = StoreUrl("share", "aisbench/t/")
OPTIONS = {"image": "i", "device_type": "nvidia_gpu_amd64"}
SPEC = JobSpec("t-1", Shape(2, 1), HERE / "code/", "train.py", HERE / "out/", HERE / "logs/", options=OPTIONS)
RULES = "=" * 57 + "\n"


class Script:
    """Answers each call of the API by its name: with a value, or with what a function makes of the query."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answers: dict[str, Any] = {"GetAllDevice": {}, "GetJobLog": {"log": "", "cursor": None, "max_page": 0}}
        server.replies = self  # type: ignore[assignment]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> Any:
        from tests.contract.conftest import Reply

        path = self.server.seen[-1][1]
        name = urlsplit(path).path.rpartition("/")[2]
        answer = self.answers.get(name, (404, b"<html>no such page</html>"))
        if callable(answer):
            answer = answer({key: value[0] for key, value in parse_qs(urlsplit(path).query).items()})
        return Reply(*answer) if isinstance(answer, tuple) else Reply(200, answer)

    def calls(self, name: str) -> list[tuple[str, dict[str, str], bytes]]:
        return [(path, headers, body) for _, path, headers, body in self.server.seen if f"/{name}" in path]


@pytest.fixture
def script(server: Server) -> Script:
    return Script(server)


@pytest.fixture
def access(server: Server, tmp_path: Path) -> ApulisAccess:
    return ApulisAccess(server.url, user="admin", vc="platform", share=str(tmp_path))


@contextlib.contextmanager
def opened(access: ApulisAccess) -> Iterator[Apulis]:
    platform = Apulis(Settings(platform="apulis", tables={"apulis": access}))
    platform._http.patience_s = 0.0
    with contextlib.closing(platform):
        yield platform


@pytest.fixture
def platform(access: ApulisAccess, script: Script) -> Iterator[Apulis]:
    with opened(access) as platform:
        yield platform


def detail(word: str, spec: JobSpec = SPEC, platform: Apulis | None = None, **more: Any) -> dict[str, Any]:
    parameters = platform.render(spec).body if platform else {}
    return {"jobId": "j", "jobName": spec.name, "jobStatus": word, "jobParams": parameters, **more}


def log(**pods: str) -> str:
    def heading(text: str) -> str:
        return f"{RULES * 3}        {text}\n{RULES * 3}"

    return "".join(
        f"{heading(f'logs from pod: j-{pod}')}{text}{heading(f'end of logs from pod: j-{pod}')}"
        for pod, text in pods.items()
    )


# Trap 1: failure looks like success.


@pytest.mark.parametrize(
    "answer", [{"code": 0, "error": ""}, {"jobId": "", "code": 0, "error": ""}, {"error": "Cannot schedule job"}, None]
)
def test_only_an_id_is_a_job(platform: Apulis, script: Script, answer: Any) -> None:
    script.answers["PostJob"] = answer
    with pytest.raises(Rejected, match=r"made no job of t-1: (no reason given|Cannot schedule job)"):
        platform.submit(platform.render(SPEC))


@pytest.mark.parametrize("answer", [(500, b"<html>"), (200, b"<html>log in</html>"), (0,)])
def test_without_an_answer_nobody_knows_and_nothing_is_sent_twice(
    platform: Apulis, script: Script, answer: Any
) -> None:
    script.answers["PostJob"] = answer
    with pytest.raises(Unreachable):
        platform.submit(platform.render(SPEC))
    assert len(script.calls("PostJob")) == 1


def test_a_call_that_the_platform_does_not_have_is_not_made_again(platform: Apulis, script: Script) -> None:
    script.answers["GetJobDetailV2"] = (501, b'{"message": "GET /apis/GetJobDetailV2 is not served"}')
    with pytest.raises(PlatformError, match="is not served") as raised:
        platform.find(platform.render(SPEC))
    assert (type(raised.value), len(script.calls("GetJobDetailV2"))) == (PlatformError, 1)


def test_a_job_is_sent_with_its_id_and_found_by_it(platform: Apulis, script: Script) -> None:
    script.answers["PostJob"] = {"jobId": "given by us", "code": 0}
    request = platform.render(SPEC)
    platform.submit(request)
    ((_, _, body),) = script.calls("PostJob")
    assert json.loads(body)["jobId"] == request.body["jobId"]
    script.answers["GetJobDetailV2"] = lambda query: detail("queued") if query["jobId"] == request.body["jobId"] else {}
    assert platform.find(request) == request.body["jobId"]


def test_a_platform_that_gives_ids_itself_is_asked_by_name(platform: Apulis, script: Script) -> None:
    rows = [{"jobId": "other", "jobName": "t-1-1"}, {"jobId": "theirs", "jobName": "t-1"}]
    script.answers["GetJobDetailV2"] = {}
    # Of these lists only `allJobs` is right.
    script.answers["ListJobsV3"] = {"allJobs": rows, "queuedJobs": [], "finishedJobs": [{"jobName": "t-1"}]}
    assert platform.find(platform.render(SPEC)) == "theirs"
    assert platform.named("t-1") == "theirs"
    assert platform.named("t") is None


# Trap 2: the outer API exchanges workers and servers. Trap 3: the ps runs what the workers run.


def test_the_inner_api_is_told_one_ps_that_waits(platform: Apulis, script: Script) -> None:
    script.answers["PostJob"] = {"jobId": "j"}
    platform.submit(platform.render(replace(SPEC, shape=Shape(3, 2))))
    ((path, _, body),) = script.calls("PostJob")
    sent = json.loads(body)
    assert path == "/apis/PostJob"
    assert (sent["numps"], sent["numpsworker"], sent["resourcegpu"]) == (1, 3, 2)
    assert "sleep infinity" in sent["masterCmd"]
    assert "train.py" not in sent["masterCmd"]


# Trap 5: times are of two clocks, stamped as if they were UTC.


@pytest.mark.parametrize(
    ("started", "finished", "ran"),
    [
        ("2021-03-19T18:14:00.100000+00:00", "2021-03-19T18:15:40.350000+00:00", 100.25),
        ("2021-03-19T18:14:00Z", "2021-03-19T18:14:01Z", 1.0),
        ("2021-03-19T18:14:00.1234567+00:00", "2021-03-19T18:14:00.1234567+00:00", None),
        ("yesterday", None, None),
    ],
)
def test_only_differences_of_one_clock_are_told(
    platform: Apulis, script: Script, started: Any, finished: Any, ran: float | None
) -> None:
    records = [{"startedAt": started, "finishedAt": finished, "message": "finished"}]
    script.answers["GetJobDetailV2"] = detail(
        "finished", jobTime="Fri, 19 Mar 2021 10:14:00 GMT", jobStatusDetail=records
    )
    script.answers["GetJobStatus"] = {"jobStatus": "finished", "jobTime": "Fri, 19 Mar 2021 10:14:00 GMT"}
    job = platform.inspect(["j"])["j"]
    assert (job.phase, job.queued_s, job.ran_s) == (Phase.SUCCEEDED, None, ran)


def test_what_happened_is_told_once_and_without_the_servers_time(platform: Apulis, script: Script) -> None:
    records = [{"startedAt": "2021-03-19T18:14:00+00:00", "message": "pod failed"}, {"message": None}, "x"]
    script.answers["GetJobDetailV2"] = detail("failed", jobStatusDetail=records)
    script.answers["GetJobStatus"] = {"jobStatus": "failed", "errorMsg": "pod failed"}
    assert platform.events("j") == ["pod failed"]


# Trap 6: nearly everything is HTTP 200; a miss is `null`, `{}` or a page.


@pytest.mark.parametrize("missing", [{}, None])
def test_an_unknown_job_is_lost_and_asked_for_without_a_500(platform: Apulis, script: Script, missing: Any) -> None:
    script.answers |= {"GetJobDetailV2": missing, "GetJobStatus": None, "GetJobDetail": (500, b"<html>")}
    job = platform.inspect(["j"])["j"]
    assert (job.phase, job.reason) == (Phase.LOST, "the platform does not know the job")
    script.answers["KillJob"] = {"result": "Cannot Kill the job. Job ID:j"}
    platform.cancel("j")


@pytest.mark.parametrize(
    ("word", "error", "phase"),
    [
        ("unapproved", None, Phase.PENDING),
        ("queued", None, Phase.PENDING),
        ("scheduling", None, Phase.PENDING),
        ("paused", None, Phase.PENDING),
        ("running", None, Phase.RUNNING),
        ("killing", None, Phase.RUNNING),
        ("finished", None, Phase.SUCCEEDED),
        ("failed", "pod failed", Phase.FAILED),
        ("killed", None, Phase.CANCELLED),
        ("Killed", None, Phase.CANCELLED),  # so it is spelled where the vc is gone
        ("killed", "running exceed pre-defined 60s", Phase.FAILED),
        ("error", "can't allocate resources", Phase.LOST),
        ("error", "ImagePullBackOff: no such image", Phase.FAILED),
        ("dreaming", None, Phase.RUNNING),
    ],
)
def test_every_word_has_a_phase(platform: Apulis, script: Script, word: str, error: str | None, phase: Phase) -> None:
    script.answers |= {"GetJobDetailV2": detail(word), "GetJobStatus": {"jobStatus": word, "errorMsg": error}}
    job = platform.inspect(["j"])["j"]
    assert (job.phase, job.platform_phase, job.known) == (phase, word, word != "dreaming")
    if error:
        assert error in job.reason
        assert platform.events("j") == [error]


def test_killing_is_a_success_only_if_it_says_so(platform: Apulis, script: Script) -> None:
    script.answers["KillJob"] = {"result": "Success, the job is scheduled to be terminated."}
    platform.cancel("j")
    script.answers |= {"KillJob": {"result": "Cannot Kill the job. Job ID:j"}, "GetJobStatus": {"jobStatus": "running"}}
    with pytest.raises(PlatformError, match="is running and was not stopped: 'Cannot Kill"):
        platform.cancel("j")
    script.answers["GetJobStatus"] = {"jobStatus": "Killed"}
    platform.cancel("j")


# Logs: pages that are written anew, a whole that is in the wrong order, a pod that was silent.


def test_pages_are_read_in_their_order_and_none_twice(platform: Apulis, script: Script) -> None:
    lines = log(worker0="".join(f"{number}\n" for number in range(12)) + "AISBENCH_DONE node=0 rc=0\n")
    pages = lines.splitlines(keepends=True)
    parts = ["".join(pages[start : start + 2]) for start in range(0, len(pages), 2)]

    def page(query: dict[str, str]) -> Any:
        return {"log": parts[min(int(query["page"]), len(parts)) - 1], "cursor": None, "max_page": len(parts)}

    script.answers["GetJobLog"] = page
    assert platform.logs("j").text.split()[:12] == [str(number) for number in range(12)]
    assert len(script.calls("GetJobLog")) == len(parts)


def test_a_log_that_is_written_anew_goes_on_where_it_was(platform: Apulis, script: Script) -> None:
    """Text is put in between, where an earlier pod says more; and a line may be half there."""
    script.answers["GetJobStatus"] = {"jobStatus": "running"}
    script.answers["GetJobLog"] = {"log": log(worker0="a\n", worker1="one\ntw\n"), "max_page": 0}
    first = platform.logs("j", 1)
    script.answers["GetJobLog"] = {"log": log(worker0="a\nb\nc\n", worker1="one\ntwo\nAISBENCH_DONE node=1 rc=0\n")}
    rest = platform.logs("j", 1, first.next)
    assert (first.text, first.text + rest.text) == ("one\n", "one\ntwo\nAISBENCH_DONE node=1 rc=0\n")
    assert platform.logs("j", 1, rest.next) == LogPart("", rest.next)
    script.answers |= {"GetJobStatus": {"jobStatus": "failed"}, "GetJobLog": {"log": log(worker1="last words\n")}}
    assert platform.logs("j", 1).text == "last words\n"


def test_logs_by_pod_are_read_too(platform: Apulis, script: Script) -> None:
    """As DLWorkspace has them."""
    script.answers |= {"GetJobStatus": {"jobStatus": "finished"}}
    script.answers["GetJobLog"] = {"log": {"j-worker0": "a\nMY_TOKEN=abc\n", "j-worker1": "b\n"}, "cursor": None}
    assert platform.logs("j", 0).text == "a\nMY_TOKEN=***\n"
    assert platform.logs("j", 1).text == "b\n"


def test_the_log_says_which_node_failed_and_comes_home(platform: Apulis, script: Script) -> None:
    failed = "no memory\nAISBENCH_DONE node=1 rc=3\n"
    pages = log(ps0="AISBENCH_IDLE\n", worker0="PASSWORD=x1y2\nwaits\n", worker1=failed)
    script.answers |= {
        "GetJobDetailV2": detail("failed", platform=platform),
        "GetJobStatus": {"jobStatus": "failed", "errorMsg": "pod failed"},
        "GetJobLog": {"log": pages, "max_page": 1},
    }
    job = platform.inspect(["j"])["j"]
    assert (job.exit_code, job.reason) == (3, "worker-1 ended with exit code 3: pod failed")
    assert platform.store.read(SPEC.logs / "worker-0.log") == b"PASSWORD=***\nwaits\n"
    assert platform.store.read(SPEC.logs / "worker-1.log") == b"no memory\n"


def test_a_job_ends_though_its_log_cannot_be_had(platform: Apulis, script: Script) -> None:
    script.answers |= {
        "GetJobDetailV2": detail("finished", platform=platform),
        "GetJobStatus": {"jobStatus": "finished"},
        "GetJobLog": (404, b"gone"),
    }
    assert platform.inspect(["j"])["j"].phase is Phase.SUCCEEDED


def test_an_outage_at_the_end_of_a_job_does_not_cost_its_log(
    platform: Apulis, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    platform._http.patience_s = 60.0
    script.answers |= {
        "GetJobDetailV2": detail("failed", platform=platform),
        "GetJobStatus": {"jobStatus": "failed", "errorMsg": "pod failed"},
        "GetJobLog": (502, b"<html>"),
    }
    assert platform.inspect(["j"])["j"].phase is Phase.RUNNING
    script.answers["GetJobLog"] = {"log": log(worker0="no memory\nAISBENCH_DONE node=0 rc=3\n")}
    job = platform.inspect(["j"])["j"]
    assert (job.phase, job.exit_code) == (Phase.FAILED, 3)
    assert platform.store.read(SPEC.logs / "worker-0.log") == b"no memory\n"
    script.answers["GetJobLog"] = (404, b"gone")
    assert platform.inspect(["k"])["k"].phase is Phase.FAILED, "what is gone does not come back"
    platform._http.patience_s = 0.0
    script.answers["GetJobLog"] = (502, b"<html>")
    assert platform.inspect(["l"])["l"].phase is Phase.FAILED, "nor is it waited for without end"


@pytest.mark.parametrize(
    ("said", "killed"),
    [
        ({"worker0": "ALL DONE rc=0\n", "worker1": "still at it\n"}, False),
        ({"worker0": "ALL DONE rc=0\n", "worker1": "+ echo ALL DONE\nALL DONE\n"}, True),
        ({"worker0": "ALL DONE rc=2\n", "worker1": "waits for ever\n"}, True),
    ],
    ids=["one of two", "both", "one failed"],
)
def test_what_never_ends_is_ended_when_it_is_done(
    platform: Apulis, script: Script, said: dict[str, str], *, killed: bool
) -> None:
    spec = replace(SPEC, options={**OPTIONS, "command": "./run_8p.sh", "done": "ALL DONE"})
    script.answers |= {
        "GetJobDetailV2": detail("running", spec, platform),
        "GetJobLog": {"log": log(ps0="AISBENCH_IDLE\n", **said), "max_page": 1},
        "KillJob": {"result": "Success, the job is scheduled to be terminated."},
    }
    assert platform.inspect(["j"])["j"].phase is Phase.RUNNING
    assert bool(script.calls("KillJob")) == killed
    script.answers |= {"GetJobDetailV2": detail("killed", spec, platform), "GetJobStatus": {"jobStatus": "killed"}}
    expected = Phase.CANCELLED if not killed else Phase.FAILED if "rc=2" in said["worker0"] else Phase.SUCCEEDED
    assert platform.inspect(["j"])["j"].phase is expected


ALL_DONE = "AISBENCH_DONE node=0 rc={rc}\n", "AISBENCH_DONE node=1 rc=0\n"


@pytest.mark.parametrize(("word", "phase"), [("running", Phase.RUNNING), ("killed", Phase.CANCELLED)])
@pytest.mark.parametrize("rc", [0, 1])
def test_a_job_that_ends_by_itself_is_neither_killed_nor_judged_by_its_log(
    platform: Apulis, script: Script, word: str, phase: Phase, rc: int
) -> None:
    """Its pods are done before the platform knows; and who killed it was not us."""
    first, second = ALL_DONE
    script.answers |= {
        "GetJobDetailV2": detail(word, platform=platform),
        "GetJobStatus": {"jobStatus": word},
        "GetJobLog": {"log": log(ps0="AISBENCH_IDLE\n", worker0=first.format(rc=rc), worker1=second), "max_page": 1},
    }
    job = platform.inspect(["j"])["j"]
    assert (job.phase, job.exit_code) == (phase, None)
    assert not script.calls("KillJob")


def test_what_was_killed_since_it_was_done_is_judged_by_its_log_or_not_at_all(platform: Apulis, script: Script) -> None:
    spec = replace(SPEC, options={**OPTIONS, "command": "./run_8p.sh", "done": "ALL DONE"})
    script.answers |= {
        "GetJobDetailV2": detail("killing", spec, platform),
        "GetJobLog": {"log": log(worker0="ALL DONE\n", worker1="ALL DONE\n"), "max_page": 1},
    }
    assert platform.inspect(["j"])["j"].phase is Phase.RUNNING
    assert not script.calls("KillJob"), "it was asked for already"
    script.answers |= {
        "GetJobDetailV2": detail("killed", spec, platform),
        "GetJobStatus": {"jobStatus": "killed"},
        "GetJobLog": (404, b"gone"),
    }
    with pytest.raises(AisbenchError):
        platform.inspect(["j"])
    script.answers["GetJobDetailV2"] = detail("failed", spec, platform)
    assert platform.inspect(["j"])["j"].phase is Phase.FAILED


def test_a_job_that_only_its_state_is_told_of_is_known_and_looked_for_again(platform: Apulis, script: Script) -> None:
    script.answers |= {"GetJobDetailV2": {}, "GetJobStatus": None}
    assert platform.inspect(["j"])["j"].phase is Phase.LOST
    script.answers["GetJobStatus"] = {"jobStatus": "running"}
    assert platform.inspect(["j"])["j"].phase is Phase.RUNNING


# The login.


def logins(script: Script, answer: Any) -> None:
    script.answers["login"] = answer
    script.answers["currentUser"] = {"success": True, "userName": "admin", "currentVC": ["platform"]}


def test_one_login_does_for_all_and_the_password_is_not_sent(access: ApulisAccess, script: Script) -> None:
    logins(script, {"success": True, "token": TOKEN})
    with opened(replace(access, password=Secret(PASSWORD))) as platform:
        platform.check()
        script.answers["PostJob"] = {"jobId": "j"}
        platform.submit(platform.render(SPEC))
    ((_, _, body),) = script.calls("login")
    digest = hashlib.md5(PASSWORD.encode(), usedforsecurity=False).hexdigest()
    assert json.loads(body) == {"userName": "admin", "password": digest}
    ((_, headers, _),) = script.calls("PostJob")
    assert headers["Authorization"] == f"Bearer {TOKEN}"


def test_a_token_that_has_run_out_is_renewed_once(access: ApulisAccess, script: Script) -> None:
    logins(script, lambda _: {"success": True, "token": f"{TOKEN}{len(script.calls('login'))}"})
    answers = [(401, {"success": False}), {"jobStatus": "running"}]
    script.answers["GetJobStatus"] = lambda _: answers.pop(0) if len(answers) > 1 else answers[0]
    with opened(replace(access, password=Secret(PASSWORD))) as platform:
        assert platform._watch.status("j") == {"jobStatus": "running"}
        script.answers["GetJobStatus"] = (401, {"success": False})
        with pytest.raises(Refused):
            platform._watch.status("j")
    assert len(script.calls("login")) == 3


def test_a_submission_that_a_stale_token_made_fail_is_sent_again_with_a_good_one(
    access: ApulisAccess, script: Script
) -> None:
    """Its answer is that of every refusal; so whoever has no other token is told why."""
    logins(script, lambda _: {"success": True, "token": f"{TOKEN}{len(script.calls('login'))}"})

    def is_stale() -> bool:
        _, _, headers, _ = script.server.seen[-1]
        return headers.get("Authorization") != f"Bearer {TOKEN}2"

    script.answers["PostJob"] = lambda _: {"code": 0, "error": "", **({} if is_stale() else {"jobId": "j"})}
    user = {"success": True, "currentVC": ["platform"]}
    script.answers["currentUser"] = lambda _: (401, {"success": False}) if is_stale() else user
    with opened(replace(access, password=Secret(PASSWORD))) as platform:
        assert platform.submit(platform.render(SPEC)) == "j"
    assert (len(script.calls("PostJob")), len(script.calls("login"))) == (2, 2)
    with opened(replace(access, token=Secret(TOKEN))) as platform, pytest.raises(Refused, match="password or token"):
        platform.submit(platform.render(SPEC))


def test_where_no_more_logins_are_taken_the_name_will_do(access: ApulisAccess, script: Script) -> None:
    logins(script, (429, {"success": False}))
    with opened(replace(access, password=Secret(PASSWORD))) as platform:
        platform.check()
        platform.check()
    assert len(script.calls("login")) == 1
    assert not script.calls("currentUser")


@pytest.mark.parametrize("answer", [(401, {"success": False, "message": "UNAUTHORIZED"}), {"success": False}])
def test_a_wrong_password_is_the_users_to_mend(access: ApulisAccess, script: Script, answer: Any) -> None:
    logins(script, answer)
    with opened(replace(access, password=Secret(PASSWORD))) as platform, pytest.raises(Refused, match="password"):
        platform.check()


def test_a_vc_that_is_not_ours_is_named(access: ApulisAccess, script: Script) -> None:
    logins(script, {"success": True, "token": TOKEN})
    refused = pytest.raises(Refused, match="does not belong to the vc theirs; known: platform")
    with opened(replace(access, token=Secret(TOKEN), vc="theirs")) as platform, refused:
        platform.check()
    assert not script.calls("login")


def test_nothing_that_is_said_holds_a_secret(access: ApulisAccess, script: Script) -> None:
    digest = hashlib.md5(PASSWORD.encode(), usedforsecurity=False).hexdigest()
    logins(script, {"success": True, "token": TOKEN})
    with opened(replace(access, password=Secret(PASSWORD))) as platform:
        for status in (200, 400, 401, 500):
            script.answers["GetJobStatus"] = (status, f"{TOKEN} {PASSWORD} {digest}".encode())
            with pytest.raises(AisbenchError) as said:
                platform._watch.status("j", 0.0)
            assert TOKEN not in str(said.value)
            assert PASSWORD not in str(said.value)
        assert TOKEN not in f"{platform.__dict__!r} {platform._http.__dict__!r}"


# Devices.


@pytest.mark.parametrize(
    ("wanted", "shape", "said"),
    [
        ("nvidia", Shape(1, 1), "nvidia is not there; known: huawei_npu_arm64"),
        ("huawei_npu_arm64", Shape(3, 8), "3x8 needs 3 nodes with 8 of huawei_npu_arm64, and there are 2"),
        ("huawei_npu_arm64", Shape(2, 8), ""),
    ],
)
def test_devices_are_looked_up_before_anything_is_paid_for(
    platform: Apulis, script: Script, wanted: str, shape: Shape, said: str
) -> None:
    nodes = [{"allocatable": 6, "capacity": 8, "nodeName": name} for name in ("atlas01", "atlas02")]
    script.answers["GetAllDevice"] = {"huawei_npu_arm64": {"capacity": 16, "detail": nodes}}
    checks = list(platform.vet(replace(SPEC, shape=shape, options={"image": "i", "device_type": wanted})))
    assert [check.text for check in checks if check.failed] == ([said] if said else [])
    list(platform.vet(SPEC))
    assert len(script.calls("GetAllDevice")) == 1


def test_the_use_of_cards_is_their_mean_by_node(platform: Apulis, script: Script) -> None:
    def series(query: dict[str, str]) -> Any:
        assert 'job_name="j"' in query["query"]
        if not query["query"].startswith("task_device_percent"):
            return {"status": "success", "data": {"result": []}}
        rows = [("j-worker0", ["10", "20"]), ("j-worker0", ["30", "NaN"]), ("j-worker1", ["90", "200"])]
        result = [
            {"metric": {"pod_name": pod}, "values": [[1000 + 60 * at, value] for at, value in enumerate(values)]}
            for pod, values in rows
        ]
        return {"status": "success", "data": {"result": result}}

    script.answers["query_range"] = series
    assert platform.usage("j", 0) == {"npu": [20.0, 20.0]}
    assert platform.usage("j", 1) == {"npu": [90.0, 100.0]}
    by_task = [{"metric": {"task_index": node}, "values": [[0, value]]} for node, value in (("0", "1"), ("1", "2"))]
    script.answers["query_range"] = {"data": {"result": by_task}}
    assert platform.usage("j", 1)["npu"] == [2.0]
    script.answers["query_range"] = (404, b"no charts here")
    assert platform.usage("j", 0) == {}


def test_endpoints_are_asked_for_and_are_no_condition(platform: Apulis, script: Script) -> None:
    script.answers |= {"PostJob": {"jobId": "j"}, "endpoints": (500, b"<html>")}
    spec = replace(SPEC, options={**OPTIONS, "endpoints": ["ssh", "tensorboard"]})
    assert platform.submit(platform.render(spec)) == "j"
    ((path, _, body),) = script.calls("endpoints")
    assert re.search(r"[?&]userName=admin", path)
    assert json.loads(body) == {"jobId": "j", "endpoints": ["ssh", "tensorboard"]}


ASKED = ["ssh", "ipython", "tensorboard", "vscode"]
OPEN = {"status": "running", "username": "ann", "nodeName": "gpu01", "domain": "example", "password": PASSWORD}
ENDPOINTS = [
    {**OPEN, "name": "ssh", "port": 40022, "podName": "j-worker0"},
    {**OPEN, "name": "ssh", "port": 40023, "podName": "j-worker1"},
    {**OPEN, "name": "ipython", "port": "40024", "domain": None},
    {**OPEN, "name": "tensorboard", "port": "ZXhhbXBsZQ=="},  # newer ones: a part of a path
    {**OPEN, "name": "vscode", "port": 40025, "status": "pending"},
    {**OPEN, "name": "not asked for", "port": 40026},
]


def test_endpoints_have_the_addresses_of_the_platforms_own_page(platform: Apulis, script: Script) -> None:
    script.answers["endpoints"] = ENDPOINTS
    request = platform.render(replace(SPEC, options={**OPTIONS, "endpoints": ASKED}))
    assert platform.job_endpoints(request, "j") == {
        "ssh worker0": "ssh -p 40022 ann@gpu01.example",
        "ssh worker1": "ssh -p 40023 ann@gpu01.example",
        "ipython": "http://gpu01:40024/",
        "tensorboard": "http://gpu01.example/endpoints/ZXhhbXBsZQ==/",
        "vscode": "",
    }
    hostile = {"nodeName": "x; rm -rf /", "port": "1 2", "username": "$(id)"}
    script.answers["endpoints"] = [{**OPEN, "name": "ssh", "port": 1, key: value} for key, value in hostile.items()]
    assert set(platform.job_endpoints(request, "j").values()) == {""}
    script.answers["endpoints"] = []
    assert platform.job_endpoints(request, "j") == dict.fromkeys(ASKED, "")
    before = len(script.calls("endpoints"))
    assert platform.job_endpoints(platform.render(SPEC), "j") == {}
    assert len(script.calls("endpoints")) == before, "it asked for none"


def test_an_outage_is_sat_out_by_what_changes_nothing(platform: Apulis, script: Script) -> None:
    answers: list[Any] = [(502, b"<html>"), (0,), None]
    script.answers["GetJobStatus"] = lambda _: answers.pop(0) if len(answers) > 1 else answers[0]
    assert platform._watch.status("j") == {}
    assert len(script.calls("GetJobStatus")) == 3


# Whatever it answers, an error of ours is all that comes of it.


def usual(platform: Apulis) -> dict[str, Any]:
    moments = {"startedAt": "2021-03-19T18:14:00+00:00", "finishedAt": "2021-03-19T18:15:00+00:00", "message": "m"}
    sample = {"metric": {"pod_name": "j-worker0", "task_index": "0"}, "values": [[1000, "10"], [1060, "20"]]}
    return {
        "GetAllDevice": {OPTIONS["device_type"]: {"capacity": 16, "detail": [{"capacity": 8}, {"capacity": 8}]}},
        "GetJobDetailV2": detail("killed", platform=platform, jobStatusDetail=[moments]),
        "GetJobStatus": {"jobStatus": "killed", "errorMsg": "running exceed pre-defined 60s"},
        "GetJobLog": {"log": log(worker0="AISBENCH_DONE node=0 rc=1\n"), "max_page": 1},
        "ListJobsV3": {"allJobs": [{"jobId": "j", "jobName": "t-1"}]},
        "KillJob": {"result": "Cannot Kill the job"},
        "PostJob": {"jobId": "", "error": "no"},
        "query_range": {"data": {"result": [sample]}},
        "endpoints": [ENDPOINTS[0]],
    }


GARBAGE: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.5, float("nan"), "", "x", "\x00", "9" * 30, [], [None], [[]], {}, {"x": 1}]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_no_answer_breaks_it(platform: Apulis, script: Script, data: st.DataObject) -> None:
    platform._devices = None
    platform._watch._ended.clear()
    answers: Any = json.loads(json.dumps(usual(platform)))
    where, key = answers, data.draw(st.sampled_from(sorted(answers)))
    while isinstance(where[key], (dict, list)) and where[key] and data.draw(st.integers(0, 3)):
        where = where[key]
        key = data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else range(len(where))))
    where[key] = data.draw(GARBAGE)
    platform._http._send_patiently = lambda _, path, *__: answers[path.rpartition("/")[2]]  # type: ignore[method-assign]
    for act in (
        lambda: platform.inspect(["j"]),
        lambda: platform.logs("j"),
        lambda: platform.events("j"),
        lambda: platform.usage("j"),
        lambda: platform.job_endpoints(platform.render(replace(SPEC, options={**OPTIONS, "endpoints": ASKED})), "j"),
        lambda: platform.named("t-1"),
        lambda: platform.cancel("j"),
        lambda: list(platform.vet(SPEC)),
        lambda: platform.submit(platform.render(SPEC)),
    ):
        with contextlib.suppress(AisbenchError):
            act()
