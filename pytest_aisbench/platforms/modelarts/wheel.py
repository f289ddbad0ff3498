"""Uses the vendor's `modelarts` wheel instead of HTTP: starts its process, calls it, and translates its answers.

`WheelSessionV2` and `WheelSessionV1` look like a `Session`: they map each request that `jobs.py` makes to a call.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from pytest_aisbench.config.access import Access
from pytest_aisbench.errors import AisbenchError, BadAnswer, Unreachable, UsageFault
from pytest_aisbench.logs import Exchange, get_logger, log_ignored
from pytest_aisbench.model.job import LogPart
from pytest_aisbench.net import retry
from pytest_aisbench.net.http import mask
from pytest_aisbench.net.huawei import error_for, reading
from pytest_aisbench.platforms.modelarts import wheel_process
from pytest_aisbench.platforms.modelarts.catalog import JOBS_V1
from pytest_aisbench.platforms.modelarts.jobs import NO_LOG_YET, JobsV1
from pytest_aisbench.platforms.modelarts.session import Session
from pytest_aisbench.secret import NO_SECRET, Secret

_LOG = get_logger("platform")
_PAGE = "https://support.huaweicloud.com/sdkreference-modelarts/modelarts_04_0004.html"
_FIRST_MODULES = {"modelarts", "modelarts.session"}  # every wheel has them
_INSTALL = f"download it as {_PAGE} says and `pip install modelarts-*.whl`, or choose --aisbench-modelarts-client sdk"
_START_S = 60.0  # it imports much, and may ask IAM
_END_S = 5.0
MODULES_V1 = ("modelarts.estimator",)
MODULES_V2 = ("modelarts.estimatorV2", "modelarts.train_params")
_ESTIMATOR_V1 = "modelarts.estimator.Estimator"
_ESTIMATOR_V2 = "modelarts.estimatorV2.Estimator"
_TIMEOUT_S = 120.0  # of one call, which may be several requests
SESSION = {"$": "session"}
_CODE = re.compile(r"\b(?:ModelArts|APIGW?)\.[0-9]{4}\b")
_BROKEN_WIRE = {"OSError", "HTTPException", "HTTPError", "RequestException"}
_SERVERS_FAULT = re.compile(r"ModelArts\.(0010|295[0-9])")
_MESSAGES = ("error_msg", "error_message")


def wheel_object(kind: str, **arguments: Any) -> dict[str, Any]:
    """An object that the wheel's process makes of one of its classes; None leaves an argument to its default."""
    return {"$": kind, "with": {key: value for key, value in arguments.items() if value is not None}}


class Wheel:
    """The wheel's process. Starts at the first call, and makes one call at a time: the wheel may not be thread-safe."""

    def __init__(
        self,
        python: str,
        modules: Sequence[str],
        access: Access,
        endpoints: Mapping[str, str],
        project: Callable[[], str],
    ) -> None:
        """`endpoints` are empty for the public cloud. `project` returns the id of our project."""
        self._python = python or sys.executable
        self._modules = ["modelarts.session", *modules]
        self._endpoints = dict(endpoints)
        self._access = access
        self._project = project
        self._keys = {access.access_key, access.secret_access_key}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, of: str | Mapping[str, Any], name: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Call a method of a class, or of an object that the process makes for it. Raises the error in an answer."""
        asked = {"of": of, "call": name, "args": arguments}
        kind = of if isinstance(of, str) else of["$"]
        with self._lock:
            if self._process is None:
                self._open()
            with Exchange("wheel", f"{kind}.{name}") as exchange:
                reply = self._exchange(asked, timeout_s)
                exchange.status = "an error" if "raised" in reply else "an answer"
        if "raised" in reply:
            raise self._raised(name, reply)
        answer = reply["answer"]
        if isinstance(answer, dict) and (answer.get("is_success") is False or any(map(answer.get, _MESSAGES))):
            message = next((str(answer[key]) for key in _MESSAGES if answer.get(key)), "no reason given")
            raise self._fault(name, str(answer.get("error_code") or ""), message)
        return answer

    def lend(self) -> Access:
        """Access with keys. If it has none, with those of the notebook's user: our Store needs them to sign."""
        if self._access.access_key:
            return self._access
        with self._lock:
            self._end()
            session = self._open()  # it stays open for the first call
        keys = {key: Secret(str(value or "")) for key, value in session.items()}
        self._keys |= set(keys.values())
        if not (keys.get("access_key") and keys.get("secret_key")):
            self.close()
            advice = "write access_key and secret_access_key to [access]: OBS needs them"
            raise UsageFault("the notebook's session does not tell its keys", advice=advice)
        return replace(
            self._access,
            access_key=keys["access_key"],
            secret_access_key=keys["secret_key"],
            security_token=keys.get("security_token", NO_SECRET),
        )

    def close(self) -> None:
        with self._lock:
            self._end()

    def _open(self) -> dict[str, Any]:
        """Start the process and open the wheel's session; returns the session's own keys, if it has any."""
        opening = {"modules": self._modules, "endpoints": self._endpoints, "credentials": self._credentials()}
        try:
            self._process = subprocess.Popen(
                [self._python, wheel_process.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which stops jobs first
                cwd=os.sep,
            )
        except OSError as error:
            raise UsageFault(f"--aisbench-modelarts-python {self._python}: {error.strerror}") from None
        with Exchange("wheel", "modelarts.session.Session") as exchange:
            reply = self._exchange({"open": opening}, _START_S)
            exchange.status = "a session" if "answer" in reply else "an error"
        if "answer" in reply:
            return dict(reply["answer"])
        self._end()
        raise self._unloaded(reply) if "unloaded" in reply else self._raised("Session", reply)

    def _credentials(self) -> dict[str, str]:
        """Empty in a notebook, whose session knows its user."""
        access = self._access
        if not access.access_key:
            return {}
        if access.security_token:
            advice = "use keys that last, or --aisbench-modelarts-client sdk"
            raise UsageFault("the modelarts wheel takes no temporary keys", advice=advice)
        return {
            "access_key": access.access_key.reveal(),
            "secret_key": access.secret_access_key.reveal(),
            "project_id": self._project(),
            "region_name": access.region_name,
        }

    def _exchange(self, asked: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            reply: dict[str, Any] = json.loads(_read_line(process, timeout_s))
            return reply
        except BaseException as error:
            self._end()  # else the next call would read the answer to this one
            if isinstance(error, TimeoutError):
                raise Unreachable(f"the modelarts wheel: no answer within {timeout_s:g} s") from None
            if isinstance(error, (OSError, ValueError)):
                raise Unreachable("the modelarts wheel: its process ended") from None
            raise

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired as error:
            log_ignored(_LOG, error, "the orderly end of the modelarts wheel's process")
            process.kill()
            process.communicate()
        except (OSError, ValueError) as error:  # the process ended before it read the call
            log_ignored(_LOG, error, "the rest of a call of the modelarts wheel")
            process.wait()

    def _unloaded(self, reply: Mapping[str, Any]) -> UsageFault:
        name = str(reply["unloaded"])
        if name in _FIRST_MODULES:
            return UsageFault(f"the modelarts wheel is not installed in {self._python}", advice=_INSTALL)
        if name == "modelarts.estimatorV2":
            advice = "install a newer one, or choose --aisbench-modelarts-version V1"
            return UsageFault(f"the modelarts wheel in {self._python} does not know API V2", advice=advice)
        return UsageFault(f"the modelarts wheel in {self._python} does not load: {self._one_line(reply['said'])}")

    def _raised(self, name: str, reply: Mapping[str, Any]) -> AisbenchError:
        kinds, message = list(reply["raised"]), self._one_line(reply["said"])
        if name == "Session" and not self._access.access_key:
            advice = "write access_key and secret_access_key to [access], or run in a ModelArts notebook"
            return UsageFault(f"without keys the modelarts wheel gives no session: {message}", advice=advice)
        if code := _CODE.search(message):
            return self._fault(name, code[0], message)
        place = f"{name} of the modelarts wheel"
        if not _BROKEN_WIRE.isdisjoint(kinds):
            return Unreachable(f"{place}: {kinds[0]}: {message}")
        return BadAnswer(f"{place} raised {kinds[0]}: {message}")

    def _fault(self, name: str, code: str, message: str) -> AisbenchError:
        """The wheel does not tell the HTTP status."""
        kind, advice = error_for(500 if _SERVERS_FAULT.fullmatch(code) else 400, code)
        return kind(f"{name} of the modelarts wheel: {self._one_line(message)}", advice=advice, trail=code)

    def _one_line(self, message: Any) -> str:
        """A message on one line, cut, and without the keys, which the gateway quotes."""
        text = mask(" ".join(str(message).split()), self._keys)
        return text if len(text) <= 300 else text[:299] + "…"


def _read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    assert process.stdout is not None
    deadline, parts = time.monotonic() + timeout_s, [b""]
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not parts[-1].endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            parts.append(os.read(process.stdout.fileno(), 1 << 16))
            if not parts[-1]:
                raise OSError("the process ended")
    return b"".join(parts)


class WheelSession(Session):
    """A Session whose requests are calls of the wheel. It repeats what a Session repeats."""

    def __init__(self, wheel: Wheel, endpoint: str, patience_s: float) -> None:
        super().__init__(endpoint, NO_SECRET, NO_SECRET, patience_s=patience_s)
        self._wheel = wheel

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
        timeout_s: float | None = None,
        ignore: Collection[str] = (),
    ) -> dict[str, Any]:
        parts = [unquote(part) for part in path.split("/")[3:]]

        def attempt() -> dict[str, Any]:
            try:
                return require_object(
                    self._ask(method, parts, {**(body or {}), **(query or {})}, timeout_s or _TIMEOUT_S)
                )
            except AisbenchError as error:
                if error.trail in ignore:
                    return {}
                raise

        return retry.call(attempt, patience_s=retry.patience_for(method, patience_s, self.patience_s))

    def _ask(self, method: str, parts: list[str], given: Mapping[str, Any], timeout_s: float) -> Any:
        """Make the call that stands for a request. `parts` are those of its path after the project."""
        raise BadAnswer(f"the modelarts wheel has nothing like {method} {'/'.join(parts)}")


# API V2


class WheelSessionV2(WheelSession):
    def _ask(self, method: str, parts: list[str], given: Mapping[str, Any], timeout_s: float) -> Any:
        def of_all(name: str, **arguments: Any) -> Any:
            return self._wheel.call(_ESTIMATOR_V2, name, timeout_s=timeout_s, session=SESSION, **arguments)

        def of_one(job_id: str, name: str, **arguments: Any) -> Any:
            estimator = wheel_object(_ESTIMATOR_V2, session=SESSION, job_id=job_id)
            return self._wheel.call(estimator, name, timeout_s=timeout_s, **arguments)

        match method, *parts:
            case "POST", "training-jobs":
                estimator, arguments = estimator_and_fit_v2(given)
                created = require_object(self._wheel.call(estimator, "fit", timeout_s=timeout_s, **arguments))
                return {"metadata": {"id": created["job_id"]}} if created.get("job_id") else {}
            case "POST", "training-job-searches":
                return of_all("get_job_list", **{key: value for key, value in given.items() if value != []})
            case "GET", "training-job-flavors":
                names = of_all("get_train_instance_types")
                with reading("the list of its flavors"):
                    return {"flavors": [{"flavor_id": str(name)} for name in names]}
            case "GET", "training-job-engines":
                return {"items": engine_rows(of_all("get_framework_list"))}
            case "GET", "training-jobs", job_id:
                return of_one(job_id, "get_job_info")
            case "GET", "training-jobs", job_id, "tasks", task, "logs", "preview":
                return of_one(job_id, "get_job_log", task_id=task)
            case "GET", "training-jobs", job_id, "metrics", task:
                return of_one(job_id, "get_job_metrics", task_id=task)
            case "GET", "training-jobs", _, "events":
                return {}  # the wheel cannot ask for them
            case "POST", "training-jobs", job_id, "actions":
                return of_all("control_job_by_id", job_id=job_id)
        return super()._ask(method, parts, given, timeout_s)


def require_object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, (dict, type(None))) and answer != "":
        raise BadAnswer(f"the modelarts wheel answered with a {type(answer).__name__}, not with an object")
    return answer or {}


def engine_rows(answer: Any) -> list[dict[str, str]]:
    with reading("the list of its engines"):
        rows = [(str(row["framework_type"]), str(row["framework_version"])) for row in answer]
    return [
        {"engine_name": name, "engine_version": version, "engine_id": f"{name} {version}"} for name, version in rows
    ]


def estimator_and_fit_v2(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Estimator, and the arguments of its `fit`, that create the job of this V2 request.

    The wheel has no `auto_stop`, which is only a second safeguard. Raises UsageFault for any other key it cannot take.
    """
    metadata, algorithm, spec = dict(body["metadata"]), dict(body["algorithm"]), dict(body["spec"])
    others = body.keys() - {"kind", "metadata", "algorithm", "spec"}
    engine, resource = dict(algorithm.pop("engine")), dict(spec.pop("resource"))
    estimator = wheel_object(
        _ESTIMATOR_V2,
        session=SESSION,
        training_files=wheel_object(
            "modelarts.train_params.TrainingFiles",
            code_dir=_obs(algorithm.pop("code_dir")),
            boot_file=_obs(algorithm.pop("boot_file", "")),
        ),
        outputs=[_channel("OutputData", each) for each in algorithm.pop("outputs")],
        parameters=algorithm.pop("parameters"),
        framework_type=engine.pop("engine_name", None),
        framework_version=engine.pop("engine_version", None),
        user_image_url=engine.pop("image_url", None),
        user_command=algorithm.pop("command", None),
        env_variables=algorithm.pop("environments"),
        train_instance_type=resource.pop("flavor_id", None),
        train_instance_count=resource.pop("node_count"),
        pool_id=resource.pop("pool_id", None),
        log_url=_obs(spec.pop("log_export_path")["obs_url"]),
        volumes=spec.pop("volumes", None),
        job_description=metadata.pop("description"),
    )
    fit = {
        "inputs": [_channel("InputData", each) for each in algorithm.pop("inputs", [])] or None,
        "wait": False,
        "job_name": metadata.pop("name"),
    }
    spec.pop("auto_stop", None)
    _require_nothing_left([*engine, *resource, *algorithm, *spec, *(metadata.keys() - {"workspace_id"}), *others])
    return estimator, {key: value for key, value in fit.items() if value is not None}


def _require_nothing_left(keys: Collection[str]) -> None:
    if keys:
        advice = "choose --aisbench-modelarts-client sdk"
        raise UsageFault(f"the modelarts wheel cannot be told {', '.join(sorted(keys))}", advice=advice)


def _channel(kind: str, channel: Mapping[str, Any]) -> dict[str, Any]:
    return wheel_object(
        f"modelarts.train_params.{kind}",
        obs_path=_obs(channel["remote"]["obs"]["obs_url"]),
        local_path=channel.get("local_dir"),
        name=channel["name"],
        access_method=channel["access_method"],
    )


def _obs(path: str) -> str | None:
    """`/bucket/key/` as `obs://bucket/key/`."""
    return f"obs:/{path}" if path else None


# API V1

_LISTING = ("per_page", "page", "order", "search_content")
_CHUNK = 2048  # bytes: the most of a log that the wheel gives at once
_CUT = "\ufffd"  # stands for a part of a character


class WheelSessionV1(WheelSession):
    def _ask(self, method: str, parts: list[str], given: Mapping[str, Any], timeout_s: float) -> Any:
        def of_all(name: str, **arguments: Any) -> Any:
            return self._wheel.call(_ESTIMATOR_V1, name, timeout_s=timeout_s, modelarts_session=SESSION, **arguments)

        def of_one(job_id: str, version_id: str | None, name: str, **arguments: Any) -> Any:
            estimator = wheel_object(_ESTIMATOR_V1, modelarts_session=SESSION, job_id=job_id, version_id=version_id)
            return self._wheel.call(estimator, name, timeout_s=timeout_s, **arguments)

        match method, *parts:
            case "POST", "training-jobs":
                arguments = {"inputs": given["config"]["data_url"], "wait": False, "job_name": given["job_name"]}
                return self._wheel.call(estimator_v1(given), "fit", timeout_s=timeout_s, **arguments)
            case "POST", "training-jobs", job_id, "versions":
                config = given["config"]
                arguments = {"inputs": config["data_url"], "wait": False, "job_desc": given["job_desc"]}
                arguments |= {"job_id": job_id, "pre_version_id": config["pre_version_id"]}
                return self._wheel.call(estimator_v1(given), "create_job_version", timeout_s=timeout_s, **arguments)
            case "GET", "training-jobs":
                # Without sortBy, which is spelt differently in a notebook; `jobs.py` reads all pages anyway.
                return of_all("get_job_list", **{key: given[key] for key in _LISTING if key in given})
            case "GET", "training-jobs", job_id, "versions":
                return of_one(job_id, None, "get_job_version_info")
            case "GET", "training-jobs", job_id, "versions", version_id:
                return of_one(job_id, version_id, "get_job_info")
            case "GET", "training-jobs", job_id, "versions", version_id, "log", "file-names":
                return of_one(job_id, version_id, "get_job_log_file_list")
            case "GET", "training-jobs", job_id, "versions", version_id, "log":
                return of_one(job_id, version_id, "get_job_log", **given)
            case "POST", "training-jobs", job_id, "versions", version_id, "stop":
                return of_one(job_id, version_id, "stop_job_version")
            case "GET", "job", "resource-specs":
                names = of_all("get_train_instance_types")
                with reading("the list of its specs"):  # the wheel takes names instead of numbers
                    return {"specs": [{"spec_code": str(name), "spec_id": str(name)} for name in names]}
            case "GET", "job", "ai-engines":
                return {"engines": engine_rows(of_all("get_framework_list"))}
        return super()._ask(method, parts, given, timeout_s)


class WheelJobsV1(JobsV1):
    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        """By bytes, in small pieces, where the API itself has lines."""
        job, _, version = job_id.partition("/")
        name, log = self._log_name(job_id, node), ""
        while name:
            query = {"log_file": name, "start_byte": since, "offset": _CHUNK}
            path = f"{JOBS_V1}/{job}/versions/{version}/log"
            text = str(self._session.call("GET", path, query=query, ignore=NO_LOG_YET).get("content") or "")
            text = text.rstrip(_CUT) or text  # the next piece has the whole of a character that is cut here
            if not text:
                break
            log += text
            since += len(text.encode().replace(_CUT.encode(), b"?"))  # inside, _CUT is one byte that is not UTF-8
        return LogPart(log, since)


def estimator_v1(body: Mapping[str, Any]) -> dict[str, Any]:
    """The Estimator for the job of this V1 request. The caller passes the rest to `fit` or `create_job_version`."""
    config = dict(body["config"])
    kind, _, version = config.pop("engine_id", "").partition(" ")
    estimator = wheel_object(
        _ESTIMATOR_V1,
        modelarts_session=SESSION,
        train_instance_count=config.pop("worker_server_num"),
        train_instance_type=config.pop("spec_id", None),
        pool_id=config.pop("pool_id", None),
        code_dir=config.pop("app_url"),
        boot_file=config.pop("boot_file_url"),
        hyperparameters=config.pop("parameter"),
        output_path=config.pop("train_url"),
        log_url=config.pop("log_url"),
        framework_type=kind or None,
        framework_version=version or None,
        user_image_url=config.pop("user_image_url", None),
        user_command=config.pop("user_command", None),
        nas_type=config.pop("nas_type", None),
        nas_share_addr=config.pop("nas_share_addr", None),
        nas_mount_path=config.pop("nas_mount_path", None),
        job_description=body["job_desc"],
    )
    others = body.keys() - {"job_name", "job_desc", "workspace_id", "config"}
    _require_nothing_left((config.keys() - {"data_url", "pre_version_id", "create_version"}) | others)
    return estimator
