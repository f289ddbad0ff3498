"""The vendor's `modelarts` wheel: its process, and its answers in our words."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_aisbench.adapters import wheel_process
from pytest_aisbench.adapters.answers import fault_of
from pytest_aisbench.errors import AisbenchError, BadAnswer, Unreachable, UsageFault
from pytest_aisbench.logs import Exchange, get_logger, log_ignored
from pytest_aisbench.secret import NO_SECRET, Secret
from pytest_aisbench.settings.access import Access

_LOG = get_logger("platform")
_PAGE = "https://support.huaweicloud.com/sdkreference-modelarts/modelarts_04_0004.html"
_FIRST_MODULES = {"modelarts", "modelarts.session"}  # without which there is no wheel at all
_INSTALL = f"download it as {_PAGE} says and `pip install modelarts-*.whl`, or choose --aisbench-modelarts-client sdk"
_START_S = 60.0  # it may ask IAM, and imports much
_END_S = 5.0
SESSION = {"$": "session"}
_CODE = re.compile(r"\b(?:ModelArts|APIGW?)\.[0-9]{4}\b")
_BROKEN_WIRE = {"OSError", "HTTPException", "HTTPError", "RequestException"}
_SERVERS_FAULT = re.compile(r"ModelArts\.(0010|295[0-9])")
_MESSAGES = ("error_msg", "error_message")


def made(kind: str, **arguments: Any) -> dict[str, Any]:
    """An object of one of the wheel's classes; what is None is left to its default."""
    return {"$": kind, "with": {key: value for key, value in arguments.items() if value is not None}}


class Wheel:
    """Starts with the first call. One call at a time: nothing says that the wheel is safe between threads."""

    def __init__(
        self,
        python: str,
        modules: Sequence[str],
        access: Access,
        endpoints: Mapping[str, str],
        project: Callable[[], str],
    ) -> None:
        """`endpoints` only where they are not the public cloud's; `project` is asked for the id of ours."""
        self._python = python or sys.executable
        self._modules = ["modelarts.session", *modules]
        self._endpoints = dict(endpoints)
        self._access = access
        self._project = project
        self._keys = {access.access_key, access.secret_access_key}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, of: str | Mapping[str, Any], name: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Of a class, or of an object that is made for it. An error that stands in the answer is raised."""
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
            said = next((str(answer[key]) for key in _MESSAGES if answer.get(key)), "no reason given")
            raise self._fault(name, str(answer.get("error_code") or ""), said)
        return answer

    def lend(self) -> Access:
        """Access with keys: those of the notebook's user where it has none, since our Store signs for itself."""
        if self._access.access_key:
            return self._access
        with self._lock:
            self._end()
            told = self._open()  # it stays open: whoever asks is about to use it
        keys = {key: Secret(str(value or "")) for key, value in told.items()}
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
        """What the session told of itself."""
        opening = {"modules": self._modules, "endpoints": self._endpoints, "credentials": self._credentials()}
        try:
            self._process = subprocess.Popen(
                [self._python, wheel_process.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us: jobs are stopped first
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
        """None in a notebook, whose session knows its user."""
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
            reply: dict[str, Any] = json.loads(_line(process, timeout_s))
            return reply
        except BaseException as error:
            self._end()  # else the next call would read this one's answer
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
        except (OSError, ValueError) as error:  # what was not sent cannot be sent any more
            log_ignored(_LOG, error, "the rest of a call of the modelarts wheel")
            process.wait()

    def _unloaded(self, reply: Mapping[str, Any]) -> UsageFault:
        name = str(reply["unloaded"])
        if name in _FIRST_MODULES:
            return UsageFault(f"the modelarts wheel is not installed in {self._python}", advice=_INSTALL)
        if name == "modelarts.estimatorV2":
            advice = "install a newer one, or choose --aisbench-modelarts-version V1"
            return UsageFault(f"the modelarts wheel in {self._python} does not know API V2", advice=advice)
        return UsageFault(f"the modelarts wheel in {self._python} does not load: {self._shown(reply['said'])}")

    def _raised(self, name: str, reply: Mapping[str, Any]) -> AisbenchError:
        kinds, said = list(reply["raised"]), self._shown(reply["said"])
        if name == "Session" and not self._access.access_key:
            advice = "write access_key and secret_access_key to [access], or run in a ModelArts notebook"
            return UsageFault(f"without keys the modelarts wheel gives no session: {said}", advice=advice)
        if code := _CODE.search(said):
            return self._fault(name, code[0], said)
        place = f"{name} of the modelarts wheel"
        if not _BROKEN_WIRE.isdisjoint(kinds):
            return Unreachable(f"{place}: {kinds[0]}: {said}")
        return BadAnswer(f"{place} raised {kinds[0]}: {said}")

    def _fault(self, name: str, code: str, said: str) -> AisbenchError:
        """The wheel does not tell the HTTP status."""
        kind, advice = fault_of(500 if _SERVERS_FAULT.fullmatch(code) else 400, code)
        return kind(f"{name} of the modelarts wheel: {self._shown(said)}", advice=advice, trail=code)

    def _shown(self, said: Any) -> str:
        """On one line, and without the keys, which the gateway quotes."""
        text = " ".join(str(said).split())
        for key in filter(None, self._keys):
            text = text.replace(key.reveal(), "***")
        return text if len(text) <= 300 else text[:299] + "…"


def _line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
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
