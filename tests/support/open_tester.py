"""The open Tester in a process of its own, and results to send it that look like those of a centre."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import forking
from commands import AISBENCH, run
from factories import make_case_entry, make_trial_entry
from waiting import PATIENCE

from pytest_aisbench.config.access import TesterAccess
from pytest_aisbench.model.results import CaseEntry, Destination, Straggler, Transport, UploadItem, Value
from pytest_aisbench.model.verdict import Background, Finding, Outcome, Ruling, ScalePoint
from pytest_aisbench.secret import Secret
from pytest_aisbench.tester.payload import result_upload
from pytest_aisbench.tester.transports import make_transport
from pytest_aisbench.tester_server import api, auth, contract
from pytest_aisbench.tester_server.app import open_database, transaction

LONG_AGO = 1_750_000_000.0
HOUR = 3600.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Serving:
    url: str
    db: str
    process: forking.Child | subprocess.Popen[str]

    def token(self, project: str, *, read: bool = False, label: str = "", kind: auth.Kind = auth.Kind.SEND) -> str:
        kind = auth.Kind.READ if read else kind
        with transaction(self.db) as connection:
            return auth.add_token(connection, project, kind, label, time.time()).reveal()

    def audited(self, project: str) -> list[dict[str, Any]]:
        """Oldest first, without what was done to the tokens."""
        with open_database(self.db) as engine, engine.connect() as connection:
            return [row for row in auth.every_action(connection, project) if row["status"]]

    def way(self, token: str) -> Transport:
        return make_transport(self.url, TesterAccess(token=Secret(token)))

    def send(self, token: str, *parcels: UploadItem) -> None:
        """By the adapter that a run uses."""
        way = self.way(token)
        for parcel in parcels:
            way.send(parcel)
        way.close()

    def get(self, path: str, *, method: str = "GET", data: bytes | None = None, **headers: str) -> Answer:
        """An answer as it is: redirects are not followed."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=named)
        try:
            with _OPENER.open(request, timeout=PATIENCE) as answer:
                return Answer(answer.status, dict(answer.headers.items()), answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers.items()), error.read().decode())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def aisbench(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run(*AISBENCH, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def fill(db: str, project: str, parcels: Iterable[UploadItem]) -> None:
    """As if all of it had been sent, in one transaction and without HTTP."""
    with transaction(db) as connection:
        holder = auth.find_token(
            connection, auth.add_token(connection, project, auth.Kind.SEND, "filled", LONG_AGO).reveal()
        )
        assert holder is not None
        for each in parcels:
            content = each.body.encode()
            body = contract.parse_body(content, each.testid, each.kind)
            sent = api.ReceivedUpload(holder, "127.0.0.1", each.kind, each.key, content, body)
            api.store_upload(connection, sent, time.time())


@contextlib.contextmanager
def serving(db: str, *options: str, program: tuple[str, ...] = (*AISBENCH, "tester")) -> Iterator[Serving]:
    command = [*program, "--db", db, "--port", "0", "--json", *options]
    forked = forking.can_fork(command, os.environ)
    with (
        forking.Child(command, None, os.environ)
        if forked
        else subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process
    ):
        try:
            assert process.stdout is not None
            yield Serving(json.loads(process.stdout.readline())["url"], db, process)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def bound(platform: str = "modelarts", testid: str = "") -> Destination:
    return Destination("", platform, "", testid=testid)


def case(
    workload: str = "resnet50",
    nodes: int = 2,
    devices: int = 8,
    *,
    throughput: float | None = 14000.0,
    verdict: Ruling = Ruling.PASSED,
    at: float = LONG_AGO,
    reason: str = "",
    stragglers: tuple[Straggler, ...] = (),
) -> CaseEntry:
    reference = 900.0 * nodes * devices
    outcome = Outcome.MET if verdict is Ruling.PASSED else Outcome.MISSED
    wanted = f">= {0.95 * reference:.0f} images/s"
    trial = make_trial_entry(
        job_id=f"job-{workload}-{at:.0f}",
        queued_s=3.0,
        ran_s=HOUR,
        accuracy_by_server=(0.77,),
        stragglers=stragglers,
        times={"stage": at - HOUR, "done": at},
        traits={"CANN": "5.0.2", "framework": "mindspore 1.3.0"},
    )
    return make_case_entry(
        f"{nodes}x{devices}",
        workload,
        verdict=verdict,
        reason=reason or f"throughput {throughput} images/s, wanted {wanted}",
        card_hours=float(nodes * devices),
        metrics={"throughput": Value(throughput, "images/s"), "accuracy": Value(0.77, "")},
        findings=(Finding("throughput", outcome, throughput, wanted, f"throughput {throughput}: {outcome.value}"),),
        trials=(trial,),
        target_accuracy=0.759,
        background=Background(
            reference=reference, low=0.95 * reference, scaling=(ScalePoint("1x8", 7200.0, 1.0, "this run"),)
        ),
    )


def parcel(run: str, entry: CaseEntry, attempt: int = 1, **to: str) -> UploadItem:
    return result_upload(bound(**to), run, entry, attempt)


def history(runs: int, seed: int = 1, platform: str = "modelarts") -> Iterator[UploadItem]:
    """Runs of a centre, an hour apart: noise, one loss of speed, a card that is slow now and then."""
    dice = random.Random(seed)
    for number in range(runs):
        at, run = LONG_AGO + number * HOUR, f"run-{number:05d}"
        for workload, speed in (("resnet50", 920.0), ("bert", 910.0)):
            for nodes in (1, 2, 4, 8):
                cards = nodes * 8
                lost = 0.93 if number > runs * 0.7 and workload == "bert" and nodes > 2 else 1.0
                share = lost * (1 - 0.012 * (cards.bit_length() - 4)) * dice.gauss(1, 0.006)
                slow: tuple[Straggler, ...] = ()
                if nodes > 1 and dice.random() < 0.15:
                    slow = (Straggler(1, 3, 11, round(dice.uniform(0.7, 0.93), 3), round(dice.uniform(0.01, 0.06), 3)),)
                broken = dice.random() < 0.01
                value = None if broken else round(speed * cards * share, 1)
                low = 0.95 * 900.0 * cards
                ruling = Ruling.BROKEN if value is None else Ruling.PASSED if value >= low else Ruling.FAILED
                entry = case(
                    workload, nodes, throughput=value, verdict=ruling, at=at, stragglers=slow,
                    reason="the platform did not answer (HTTP 503)" if broken else "",
                )  # fmt: skip
                yield parcel(run, replace(entry, card_hours=float(cards)), platform=platform)
