"""`aisbench cloud conform`: how far the local cloud is the vendor's.

A probe sends one request, or a few, to a local cloud of its own and says what is wrong with the answers. `operations`
has one for every operation of the vendor's SDKs, `errors` one for every error code that the vendor documents, `rules`
the rest; `Scene` is the client that they all use. `run` carries them out, `scores` counts them.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pytest_aisbench.localcloud import vendor_operations as vendor

if TYPE_CHECKING:
    from pytest_aisbench.localcloud.server import LocalCloud


OPERATION, RULE = "operation", "rule"
ERROR = "error"
INJECTED = "injected error"
"""An error that the cloud gives only where a fault says so."""
DOCUMENT, OURS = "vendor's document", "ours"
APULIS = "Apulis"


class Probe(NamedTuple):
    api: str
    kind: str
    """OPERATION, ERROR, INJECTED or RULE."""
    name: str
    source: str
    """Who says that it should be so: an SDK's name and version, DOCUMENT or OURS."""
    fault: Callable[[Scene], str]
    """Returns what is wrong; an empty text where the probe holds."""
    served: bool = True
    """False where it holds if the cloud says 501."""


class Outcome(NamedTuple):
    probe: Probe
    fault: str


class Score(NamedTuple):
    api: str
    served: int
    operations: int
    sdk: str
    own_errors: int
    documented_errors: int
    """How many the vendor documents, where the probes have them all; otherwise 0."""
    probes: int
    held: int

    @property
    def percent(self) -> str:
        return f"{100 * self.served / self.operations:.0f} %" if self.operations else ""


def probes() -> list[Probe]:
    from pytest_aisbench.localcloud.conform import errors, operations, rules

    return [*operations.probes(), *errors.probes(), *rules.probes()]


def run(wanted: Iterable[Probe] | None = None) -> Iterator[Outcome]:
    """Carry out all probes, or these, on one cloud that ends with them."""
    from pytest_aisbench.localcloud.server import LocalCloud

    with tempfile.TemporaryDirectory() as data, LocalCloud(Path(data), engine="simulated") as cloud:
        scene = Scene(cloud)
        for probe in probes() if wanted is None else wanted:
            yield Outcome(probe, _fault(probe, scene))


def scores(outcomes: Iterable[Outcome]) -> list[Score]:
    outcomes = list(outcomes)
    return [_score(api, [each for each in outcomes if each.probe.api == api]) for api in (*vendor.APIS, APULIS)]


def table(rows: Iterable[Score]) -> str:
    """The scores as Markdown, for docs/local-cloud.md and for the terminal."""
    head = ("API", "operations served", "of the vendor's SDK", "errors of its own accord", "probes that hold")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        served = f"{row.served} of {row.operations} ({row.percent})" if row.operations else f"{row.served}"
        errors = f"{row.own_errors} of {row.documented_errors}" if row.documented_errors else f"{row.own_errors}"
        held = f"{row.held} of {row.probes}"
        lines.append(f"| {row.api} | {served} | {row.sdk or 'there is none'} | {errors} | {held} |")
    return "\n".join(lines)


def _fault(probe: Probe, scene: Scene) -> str:
    try:
        return probe.fault(scene)
    except Exception as error:  # noqa: BLE001 (an answer of another form than the probe reads is what it looks for)
        return f"{type(error).__name__}: {error}"


def _score(api: str, outcomes: list[Outcome]) -> Score:
    sdk = vendor.sdks().get(api)
    operations = sdk.operations if sdk else {}
    served = [
        each.probe.name
        for each in outcomes
        if each.probe.kind == OPERATION and each.probe.served and not each.fault
        if each.probe.name in operations or not sdk
    ]
    injected = any(each.probe.kind == INJECTED for each in outcomes)
    return Score(
        api,
        len(served),
        len(operations),
        f"{sdk.name} {sdk.version}" if sdk else "",
        own_errors=sum(each.probe.kind == ERROR and not each.fault for each in outcomes),
        documented_errors=sum(each.probe.kind in {ERROR, INJECTED} for each in outcomes) if injected else 0,
        probes=len(outcomes),
        held=sum(not each.fault for each in outcomes),
    )


# The client of the probes: plain HTTP, and what the probes ask about, made when it is first asked for.

_PATIENCE = 60.0  # seconds
ENGINE = "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"
FOREVER, AT_ONCE = "3600", "0"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def __str__(self) -> str:
        return f"{self.status} {self.text[:200]}"


class Scene:
    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud = cloud
        self.card = cloud.card()
        self.project, self.bucket = self.card["project_id"], self.card["bucket"]
        self._numbers = itertools.count(1)
        self.put("code/train.py", b"pass")
        self.put("data/file", b"x")

    # Requests.

    def send(self, service: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """A dict as body is sent as JSON; `_` in the name of a header stands for `-`."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        netloc = urlsplit(self.card[f"{service}_endpoint"]).netloc
        with closing(http.client.HTTPConnection(netloc, timeout=_PATIENCE)) as connection:
            connection.request(method, path, content, named)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())

    def modelarts(self, method: str, path: str, body: Any = None) -> Answer:
        """`path` may leave out the version and the project: `v2:training-jobs`."""
        version, colon, rest = path.partition(":")
        path = f"/{version}/{self.project}/{rest}" if colon and "/" not in version else path
        return self.send("modelarts", method, path, body, X_Auth_Token=self.token)

    def iam(self, method: str, path: str, body: Any = None) -> Answer:
        return self.send("iam", method, path, body, X_Auth_Token=self.token)

    def obs(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Signed by the vendor's client. `path` is `/bucket/key?policy`, neither quoted nor with the bucket's name:
        `{bucket}` stands for it."""
        path, _, query = path.format(bucket=self.bucket).partition("?")
        bucket, _, key = path.lstrip("/").partition("/")
        pairs = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        signed = self._signer.createSignedUrl(
            method, bucket or None, key or None, headers=named, queryParams={k: v or None for k, v in pairs.items()}
        )
        return self.send("obs", method, _target(signed.signedUrl), body, **headers)

    @functools.cached_property
    def _signer(self) -> Any:
        from obs import ObsClient

        return ObsClient(
            access_key_id=self.card["access_key"],
            secret_access_key=self.card["secret_key"],
            server=self.card["obs_endpoint"],
        )

    @functools.cached_property
    def token(self) -> str:
        keys = {"access": {"key": self.card["access_key"]}, "secret": {"key": self.card["secret_key"]}}
        body = {"auth": {"identity": {"methods": ["hw_ak_sk"], "hw_ak_sk": keys}}}
        return self.send("iam", "POST", "/v3/auth/tokens", body).headers["X-Subject-Token"]

    def apulis(self, method: str, path: str, body: Any = None) -> Answer:
        user = f"userName={self.card['apulis_user']}&vcName={self.card['apulis_vc']}"
        path = f"{path}{'&' if '?' in path else '?'}{user}"
        return self.send("apulis", method, path, body, Authorization=f"Bearer {self.apulis_token}")

    @functools.cached_property
    def apulis_token(self) -> str:
        body = {"userName": self.card["apulis_user"], "password": self.password_md5}
        return str(self.send("apulis", "POST", "/custom-user-dashboard-backend/auth/login", body).json["token"])

    # What the probes ask about.

    def name(self, kind: str = "probe") -> str:
        return f"{kind}-{next(self._numbers)}"

    def put(self, key: str, content: bytes) -> None:
        answer = self.obs("PUT", f"/{self.bucket}/{key}", content)
        if answer.status != 200:
            raise RuntimeError(f"PUT of an object: {answer}")

    def bucket_of_its_own(self) -> str:
        name = self.name("bucket")
        self.obs("PUT", f"/{name}")
        return name

    def upload(self, key: str, content: bytes | None = b"part") -> str:
        """The id of a multipart upload, with one part."""
        text = self.obs("POST", f"/{self.bucket}/{key}?uploads").text
        upload = text.partition("<UploadId>")[2].partition("<")[0]
        if content is not None:
            self.obs("PUT", f"/{self.bucket}/{key}?partNumber=1&uploadId={upload}", content)
        return upload

    def v2_body(self, seconds: str = FOREVER, **changes: Any) -> dict[str, Any]:
        """A request for a job; `spec__resource__flavor_id="x"` changes what is there, None removes it."""
        body: dict[str, Any] = {
            "kind": "job",
            "metadata": {"name": self.name(), "description": "a probe"},
            "algorithm": {
                "code_dir": f"/{self.bucket}/code/",
                "boot_file": f"/{self.bucket}/code/train.py",
                "engine": {"engine_name": "Ascend-Powered-Engine", "engine_version": ENGINE},
                "outputs": [{"name": "train_url", "remote": {"obs": {"obs_url": f"/{self.bucket}/out/"}}}],
                "parameters": [{"name": "seconds", "value": seconds}],
            },
            "spec": {
                "resource": {"flavor_id": "modelarts.kat1.xlarge", "node_count": 1},
                "log_export_path": {"obs_url": f"/{self.bucket}/log/"},
            },
        }
        return _changed(body, changes)

    def v2_job(self, seconds: str = FOREVER, **changes: Any) -> str:
        return str(self.modelarts("POST", "v2:training-jobs", self.v2_body(seconds, **changes)).json["metadata"]["id"])

    @functools.cached_property
    def running(self) -> str:
        return self.v2_job()

    @functools.cached_property
    def ended(self) -> str:
        job = self.v2_job(AT_ONCE)
        self.wait(lambda: self.phase(job) == "Completed")
        return job

    def phase(self, job: str) -> str:
        return str(self.modelarts("GET", f"v2:training-jobs/{job}").json["status"]["phase"])

    def v1_body(self, seconds: str = FOREVER, **changes: Any) -> dict[str, Any]:
        body = {
            "job_name": self.name(),
            "job_desc": "a probe",
            "config": {
                "worker_server_num": 1,
                "app_url": f"/{self.bucket}/code/",
                "boot_file_url": f"/{self.bucket}/code/train.py",
                "parameter": [{"label": "seconds", "value": seconds}],
                "data_url": f"/{self.bucket}/data/",
                "train_url": f"/{self.bucket}/{self.name('out')}/",
                "log_url": f"/{self.bucket}/log/",
                "spec_id": 1,
                "engine_id": 1,
            },
        }
        return _changed(body, changes)

    def v1_job(self, seconds: str = FOREVER, **changes: Any) -> tuple[str, str]:
        """The ids of a job and of its version."""
        answer = self.modelarts("POST", "v1:training-jobs", self.v1_body(seconds, **changes)).json
        return answer["job_id"], answer["version_id"]

    def v1_status(self, job: str, version: str) -> int:
        return int(self.modelarts("GET", f"v1:training-jobs/{job}/versions/{version}").json["status"])

    @functools.cached_property
    def v1_running(self) -> tuple[str, str]:
        return self.v1_job()

    @functools.cached_property
    def v1_ended(self) -> tuple[str, str]:
        job, version = self.v1_job(AT_ONCE)
        self.wait(lambda: self.v1_status(job, version) == 10)
        return job, version

    def v1_config(self) -> str:
        name = self.name("config")
        config = self.v1_body()["config"]
        self.modelarts("POST", "v1:training-job-configs", {"config_name": name, "config": config})
        return name

    def apulis_job(self) -> str:
        body = {
            "userName": self.card["apulis_user"],
            "vcName": self.card["apulis_vc"],
            "jobName": self.name(),
            "jobType": "training",
            "jobtrainingtype": "RegularJob",
            "image": "apulistech/mindspore:1.1.1",
            "gpuType": "huawei_npu_arm64",
            "resourcegpu": 1,
            "cmd": f"train --seconds={FOREVER}",
            "preemptionAllowed": "False",
        }
        return str(self.apulis("POST", "/apis/PostJob", body).json["jobId"])

    @property
    def password_md5(self) -> str:
        return hashlib.md5(self.card["apulis_password"].encode(), usedforsecurity=False).hexdigest()

    def wait(self, done: Any) -> None:
        """Ask until it is so; the simulated engine needs no more than a moment."""
        end = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > end:
                raise TimeoutError("a job does not get into the state that the probe needs")
            time.sleep(0.01)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _changed(body: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for place, value in changes.items():
        *folders, last = place.split("__")
        inner = functools.reduce(lambda at, name: at[name], folders, body)
        inner[last] = value
        if value is None:
            del inner[last]
    return body
