"""Brings uploads to a Tester: by HTTP, into a folder (`file:`), or through ais-bench-stubs (`stubs:`)."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from pytest_aisbench.config.access import NO_HOSTS, Hosts, TesterAccess
from pytest_aisbench.errors import AisbenchError, Garbled, Refused, Rejected, Throttled, Unreachable, UsageFault
from pytest_aisbench.logs import Exchange, get_logger, log_ignored
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.results import RESULTS, RUNS, Transport, UploadItem
from pytest_aisbench.net.http import mask, open_session, parse_retry_after, read_content, translate_errors
from pytest_aisbench.secret import Secret

if TYPE_CHECKING:
    import requests

_LOG = get_logger("uploads")


def make_transport(address: str, access: TesterAccess) -> Transport:
    """The transport for an address, by its scheme. It opens nothing before the first upload is sent."""
    scheme, _, rest = address.partition(":")
    if scheme == "file":
        return FolderTransport(Path(unquote(urlsplit(address).path)))
    if scheme == "stubs":
        return StubsTransport(Path(rest))
    return HttpTransport(address, access.token_for(address), access.ca_file, access.hosts)


# HTTP: POST {address}/api/v1/tests/{testid}/results

_CONNECT_S, _READ_S, _ALL_S = 5.0, 20.0, 30.0
_LARGEST_ANSWER = 64 * 1024


class HttpTransport:
    """Transport. It is safe to send an upload twice: the Tester stores one per key."""

    def __init__(self, address: str, token: Secret, ca_file: str = "", hosts: Hosts = NO_HOSTS) -> None:
        self._base = address.rstrip("/")
        self._token = token
        self._ca_file = ca_file
        self._hosts = hosts
        self._session: requests.Session | None = None

    def send(self, upload: UploadItem) -> None:
        url = f"{self._base}/api/v1/tests/{quote(upload.testid, safe='')}/{upload.kind}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": upload.key}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token.reveal()}"
        with (
            Exchange("POST", url) as exchange,
            translate_errors(self._base, "tester", (self._token,)),
            self._open().post(
                url,
                data=upload.body.encode(),
                headers=headers,
                timeout=(_CONNECT_S, _READ_S),
                allow_redirects=False,  # a redirect would carry the token to another server
                stream=True,
            ) as answer,
        ):
            exchange.status = answer.status_code
            content = read_content(answer, _LARGEST_ANSWER, _ALL_S)
        self._check_answer(upload, answer, content)

    def close(self) -> None:
        if self._session:
            self._session.close()

    def _open(self) -> requests.Session:
        if self._session is None:
            self._session = open_session(self._base, self._ca_file, self._hosts)
        return self._session

    def _check_answer(self, upload: UploadItem, answer: requests.Response, content: bytes) -> None:
        status = answer.status_code
        if status in {200, 201}:
            # A login page is a 200 too; only a Tester repeats the key.
            if _document(content).get("key") != upload.key:
                raise Garbled(
                    f"{self._base}: HTTP {status}, and not the answer of a Tester: {self._first_line(content)!r}"
                )
            return
        pause_s = parse_retry_after(answer.headers.get("Retry-After", ""), answer.headers.get("Date", ""))
        kind, advice = _error_kind(status)
        reason = _document(content).get("error") or self._first_line(content) or "no reason given"
        message = f"{self._base}: {mask(plain(str(reason), 200), (self._token,))}"
        raise kind(message, advice=advice, trail=f"HTTP {status}", pause_s=pause_s)

    def _first_line(self, content: bytes) -> str:
        text = content[:400].decode("utf-8", "replace").strip()
        return mask(plain(text.splitlines()[0] if text else "", 120), (self._token,))


def _document(content: bytes) -> dict[str, Any]:
    """The JSON object; empty if it is none."""
    try:
        data = json.loads(content)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _error_kind(status: int) -> tuple[type[AisbenchError], str]:
    if status in {401, 403}:
        return Refused, "check token in [tester], then `aisbench flush`"
    if status in {408, 425, 429}:
        return Throttled, ""
    if status >= 500:
        return Unreachable, ""
    if status == 409:
        return Rejected, "the Tester has another parcel under this key"
    if status == 413:
        return Rejected, "have the Tester take larger results, then `aisbench flush --requeue`"
    return Rejected, "" if status == 422 else "check the address of the Tester"


# A folder


class FolderTransport:
    """Transport. `<folder>/<testid>/<kind>/<case>.<attempt>.<key>.json`; each file appears whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, upload: UploadItem) -> None:
        place = self._folder / upload.testid.replace(":", "_") / upload.kind
        file = place / f"{upload.case}.{upload.attempt}.{upload.key[:16]}.json"
        try:
            place.mkdir(parents=True, exist_ok=True)
            if file.exists():
                if file.read_bytes() != upload.body.encode():
                    raise Rejected(f"{file} holds something else", advice="move it away, then `aisbench flush`")
                return
            draft = place / f".{upload.key}.{os.getpid()}.tmp"
            with draft.open("wb") as opened:
                opened.write(upload.body.encode())
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(file)
            _sync(place)
        except OSError as error:
            raise Unreachable(f"{file}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is open."""


def _sync(folder: Path) -> None:
    """Write the folder to disk: only then is a rename in it on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ais-bench-stubs: inside a package it takes results by `ais_utils`; outside of one it leaves a log that we read

INIT, TRAIN, EVAL, GET_RESULT = 1, 2, 3, 4  # exit codes of benchmark.sh, by the step that failed
_SCRIPT_PATHS = ("ais_utils.py", "code/ais_utils.py", "dependencies/logging/ais_utils.py")
_PATIENCE_S = 60.0
_BEGIN = re.compile(r"^\[[0-9]{4}-[0-9]{1,2}-[0-9]{1,2} [0-9:]{7,8}\]\[INFO\]train_result_info: \{\s*$", re.MULTILINE)
_CONFIG = re.compile(r"\]get ConfigInfo (testid:.*)$", re.MULTILINE)


class StubsTransport:
    """Transport inside an ais-bench package, whose `benchmark.sh` runs us. Its stub keeps one result, the last."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def send(self, upload: UploadItem) -> None:
        if upload.kind == RUNS:
            return  # the exit code of `benchmark.sh` says how the run ended
        if upload.kind != RESULTS:
            raise Rejected("ais-bench-stubs takes results and nothing else")
        body = json.loads(upload.body)
        memory = self._package / "result" / "aisbench-upload.json"
        taken = _read_memory(memory)
        if taken.get("key") == upload.key:
            return
        if taken.get("run") == upload.run and taken.get("case") != upload.case:
            advice = "select one case, such as with --nodes"
            raise Rejected(f"{self._package} takes one result, and has that of {taken.get('case')}", advice=advice)
        for key, value in values_to_set(body):
            self._set(body["config"]["Mode"], key, value)
        try:
            memory.parent.mkdir(exist_ok=True)
            draft = memory.with_name(f".{memory.name}.{os.getpid()}")
            draft.write_text(json.dumps({"key": upload.key, "run": upload.run, "case": upload.case}))
            draft.replace(memory)
        except OSError as error:
            raise Unreachable(f"{memory}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Nothing is open."""

    def _set(self, mode: str, key: str, value: str) -> None:
        script = next((self._package / place for place in _SCRIPT_PATHS if (self._package / place).is_file()), None)
        if script is None:
            advice = f"name the unpacked package: one of {', '.join(_SCRIPT_PATHS)} is in it"
            raise Rejected(f"stubs:{self._package}: there is no ais_utils.py", advice=advice)
        command = [sys.executable, script.name, "set_result", mode, key, value]
        try:
            done = subprocess.run(
                command, cwd=script.parent, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unreachable(f"{script}: {error}") from None
        if done.returncode:
            last_line = plain((done.stderr.strip().splitlines() or ["nothing"])[-1], 200)
            raise Unreachable(f"{script} set_result {key} ended with {done.returncode}: {last_line}")


def values_to_set(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the stub is given: what was measured, then success. The stub sets `total_…` itself."""
    info, measured = body["train_result_info"], body["measured"]
    pairs = [
        (key, str(value))
        for key, value in info.items()
        if measured[key]["value"] is not None and not key.startswith("total_")
    ]
    return [*pairs, ("result", "OK")] if body["status"] == "OK" else pairs


def _read_memory(file: Path) -> dict[str, Any]:
    """Which upload the package has taken; empty if it has none, or the file is damaged."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log_ignored(_LOG, error, "what %s remembers of uploads", file, level=logging.WARNING)
        return {}
    return data if isinstance(data, dict) else {}


def benchmark_exit(results: Mapping[str, Any]) -> int:
    """The exit code of `benchmark.sh` for a run, by its results.json: the first step that failed."""
    if results.get("exit_code") == 0:
        return 0
    codes = [_failed_step(case) for case in results.get("cases", ()) if case["verdict"] != "PASSED"]
    return min(codes, default=INIT)


def _failed_step(case: Mapping[str, Any]) -> int:
    trial = case["trials"][-1] if case["trials"] else None
    if trial is None or trial["job_id"] is None:
        return INIT
    if trial["phase"] != "SUCCEEDED":
        return TRAIN
    outcomes = {finding["metric"]: finding["outcome"] for finding in case["findings"]}
    if "unmeasured" in outcomes.values() or any(value["value"] is None for value in case["metrics"].values()):
        return GET_RESULT
    return EVAL if outcomes.get("accuracy") == "missed" else TRAIN


@dataclass(frozen=True)
class StubLog:
    """The last test in `log/stub.log`."""

    config: Mapping[str, str]
    info: Mapping[str, str | int | float]


def read_stub_log(file: Path) -> StubLog:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read ({error.strerror})") from None
    begins = list(_BEGIN.finditer(text))
    if not begins:
        advice = "the test has not ended, or failed: see the end of the log"
        raise UsageFault(f"{file}: no train_result_info in it", advice=advice)
    try:
        info, _ = json.JSONDecoder().raw_decode(text, text.index("{", begins[-1].start()))
    except ValueError:
        raise UsageFault(f"{file}: its last train_result_info is cut short or damaged") from None
    for key, value in info.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise UsageFault(f"{file}: {key} of train_result_info is neither text nor a number")
    configs = _CONFIG.findall(text, 0, begins[-1].start())
    pairs = [part.partition(":") for part in configs[-1].strip().split(", ")] if configs else []
    return StubLog({key: value for key, _, value in pairs}, info)
