"""A ledger of the days before the code was rebuilt is read as it was then, and a run goes on where it ends.

Only interfaces that never change are used: commands, options, `results.json`, what a Tester is sent.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import results_schema
from cloud_client import CloudClient
from commands import local_cloud
from old_ledger import CLOUD, EXPECTED, RECORDED, RUNS, TESTER, Kept, lost, moved, read_all, same_machine
from yard import Yard, submitted

pytestmark = pytest.mark.slow

JOBS = {
    "left-1x2": "548711be-0b35-4e29-9eca-7b2544e68996",
    "parted-1x2": "9033cae2-f557-45bc-a022-088c8b7334eb",
    "dying-1x2": "a84d323d-b367-4330-9747-a10780c69a56",
    "every-2x2": "eeeeeeee-1111-4222-8333-444444444444",
}
# Values of the run `every` that no command prints: its reports do.
SHOWN = (
    *("0.8125", "380.25", "420.75", "61.5", "93.25", "550.5", "560.5", "1029.5", "59.6844", "99.176", "1.3.0"),
    *("a note of every", "an event of every", "a last line of every", "node a: no sample", "code: 111", "nightly #13"),
    *("https://console.example/every", "https://ci.example/job/nightly/13/", "old-host, 4 cores", "f17fde554120"),
)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("old")
    return folder, read_all(folder)


EXPECTATIONS: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("what", EXPECTATIONS)
def test_it_is_read_as_it_was(read: tuple[Path, dict[str, Any]], what: str) -> None:
    _, said = read
    assert said[what] == EXPECTATIONS[what]


def test_the_results_of_its_runs_are_as_published(read: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = read
    documents = [json.loads((folder / "reports" / run / "results.json").read_bytes()) for run in RUNS.values()]
    for document in documents:
        results_schema.check(document)
    verdicts = {case["verdict"] for document in documents for case in document["cases"]}
    assert verdicts == {"PASSED", "FAILED", "BROKEN", "INCONCLUSIVE", None}


def test_the_reports_of_its_runs_show_what_they_showed(read: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = read
    files = [path for path in (folder / "reports" / RUNS["every"]).rglob("*") if path.is_file()]
    told = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    assert [value for value in SHOWN if value not in told] == []


DRAWN = (
    *("trials[0].pace.warm_up_points", "trials[0].pace.warm_up", "trials[0].pace.steady"),
    *("trials[0].curve.loss", "trials[0].curve.speed", "background.history"),
)


def test_what_its_reports_draw_still_comes_from_the_ledger(tmp_path: Path) -> None:
    """Whatever the pages look like: without one of these keys of the record, they would show less."""
    kept = Kept(tmp_path).load({})
    run = RUNS["everything"]
    commands = [["report", run, "--output", name] for name in ("whole", "again")]
    for key in DRAWN:
        copy = tmp_path / f"{key}.db"
        shutil.copy(kept.file, copy)
        with closing(sqlite3.connect(copy)) as db, db:
            db.execute("UPDATE cases SET record = json_remove(record, ?) WHERE run = ?", (f"$.{key}", run))
        commands.append(["report", run, "--output", key, "--ledger", str(copy)])
    kept.aisbench(*commands)
    always = drawn(tmp_path / "whole") & drawn(tmp_path / "again")
    assert [key for key in DRAWN if not always - drawn(tmp_path / key)] == []


def drawn(folder: Path) -> Counter[str]:
    """The words of all files, but for the times of their making."""
    files = [path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()]
    return Counter(re.sub(r"[0-9]+:[0-9:.]+", "", "\n".join(files)).split())


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Path]:
    """A local cloud whose jobs are simulated, and write results without any code."""
    with local_cloud(tmp_path, "--engine", "pretend") as card:
        yield card


def created(client: CloudClient, kept: Kept, seconds: str) -> dict[str, str]:
    """The jobs of the ledger on this cloud, each by the request that the ledger has of it; and all that was staged."""
    with closing(sqlite3.connect(kept.file)) as db:
        rows = db.execute("SELECT case_id, job_id, json_extract(record, '$.request.body') FROM trials").fetchall()
    jobs = {}
    for case, old, text in rows:
        body = json.loads(text)
        task = body["algorithm"]
        folders = [given["remote"]["obs"]["obs_url"] for given in task.get("inputs", [])]
        for path in [task["boot_file"], *(f"{folder}any" for folder in folders)]:
            client.put(path.removeprefix(f"/{client.bucket}/"), b"# simulated")
        if old == JOBS.get(case, ""):
            others = [each for each in task["parameters"] if each["name"] != "seconds"]
            task["parameters"] = [{"name": "seconds", "value": seconds}, *others]
            jobs[case] = client.call("POST", f"/v2/{client.project}/training-jobs", body)["metadata"]["id"]
    assert jobs.keys() == JOBS.keys()
    return jobs


def attached(tmp_path: Path, card: Path, seconds: str, age: float = 60) -> tuple[Kept, dict[str, str]]:
    """The ledger as if it had been recorded on this cloud, so many seconds ago."""
    place = json.loads(card.read_text())
    original = Kept(tmp_path / "original").load({})
    with CloudClient(place) as client:
        jobs = created(client, original, seconds)
    changes = {JOBS[case]: job for case, job in jobs.items()}
    kept = Kept(tmp_path).load({CLOUD: place["modelarts_endpoint"], **changes})
    moved(kept, time.time() - age - RECORDED)
    return kept, jobs


def run(kept: Kept, card: Path, *arguments: str) -> Any:
    yard = Yard(kept.folder, card)
    ended = yard.pytest(*arguments, env=same_machine(kept.folder))
    assert ended.code == 0, ended.out
    return {case["id"]: case for case in ended.results["cases"]}


def test_the_next_run_goes_on_with_its_jobs(tmp_path: Path, simulated: Path) -> None:
    kept, jobs = attached(tmp_path, simulated, "0.2")
    cases = ("left", "parted", "unsent", "dying", "private")
    for name in cases:
        kept.suite(name)
    before = submitted(simulated)
    found = run(kept, simulated, "suites", "--nodes", "1")
    assert {case: entry["verdict"] for case, entry in found.items()} == {f"{name}-1x2": "PASSED" for name in cases}
    taken = {case: entry["trials"][0]["job_id"] for case, entry in found.items()}
    assert {case: taken[case] for case in jobs if case in taken} == {case: jobs[case] for case in taken if case in jobs}
    assert submitted(simulated) == before + 2, "one had not been created, and one was on a cloud that is gone"
    (unsent,) = found["unsent-1x2"]["trials"]
    assert unsent["stage"].endswith("20250327-004711-b35e1e/unsent-1x2/1/")
    with closing(sqlite3.connect(kept.file)) as db:
        rows = db.execute("SELECT case_id, step, job_id FROM trials WHERE run = '20250327-004743-4a48e8'").fetchall()
    assert rows == [("private-1x2", "DONE", "c23ca9aa-b1a8-4e22-9c69-8d3d562962f1")]


def test_results_of_another_day_are_not_judged_today(tmp_path: Path, simulated: Path) -> None:
    kept, jobs = attached(tmp_path, simulated, "0.2", age=2 * 86400)
    kept.suite("dying")
    found = run(kept, simulated, "suites", "--nodes", "1")
    (trial,) = found["dying-1x2"]["trials"]
    assert trial["job_id"] not in jobs.values()


def test_the_next_run_is_judged_by_its_history(tmp_path: Path, card: Path) -> None:
    kept = Kept(tmp_path).load({})
    moved(kept, time.time() - 60 - RECORDED)
    kept.suite("steady")
    inbox = tmp_path / "inbox"
    found = run(kept, card, "suites", "--nodes", "2", "--aisbench-tester", f"file://{inbox}")
    by_metric = {finding["metric"]: finding for finding in found["steady-2x2"]["findings"]}
    assert by_metric["scaling"]["outcome"] == "met", "the speed of 1x2 is known from history alone"
    (sent,) = inbox.rglob("steady-2x2.*.json")
    body = json.loads(sent.read_bytes())
    base, _ = body["case"]["scaling"]
    assert (base["shape"], base["value"]) == ("1x2", pytest.approx(199.8122745098039)), "the mean of six trials"
    (text,) = kept.aisbench(["history", "steady-2x2", "--json"])
    (comparable,) = json.loads(text)["fingerprints"]
    assert len(comparable["trials"]) == 4


def test_a_record_that_is_written_again_loses_nothing(tmp_path: Path, simulated: Path) -> None:
    """A job that cannot be stopped leaves its trial as it was, in the words of today."""
    kept, jobs = attached(tmp_path, simulated, "600")
    with CloudClient(json.loads(simulated.read_text())) as client:
        assert client.control("PUT", "faults", [{"method": "POST", "path": "/actions$", "status": 400}])[0] == 200
    job = jobs["every-2x2"]

    def record() -> tuple[str, float]:
        with closing(sqlite3.connect(kept.file)) as db:
            text, at = db.execute("SELECT record, updated FROM trials WHERE job_id = ?", (job,)).fetchone()
        return str(text), float(at)

    before, at = record()
    (said,) = kept.aisbench(["stop", job, "--cloud", str(simulated)])
    after, since = record()
    assert since > at, said
    by_port = f"local {json.loads(simulated.read_text())['modelarts_endpoint']} obs://aisbench/aisbench/"
    assert lost(before, after) == {json.dumps(by_port): 1}  # a cloud has an identity now


def test_the_spool_of_the_ledger_is_still_delivered_once(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    kept = Kept(tmp_path).load({TESTER: f"file://{inbox}"})
    first, second = kept.aisbench(["flush", "--json"], ["flush", "--json"])
    states = [(upload["case"], upload["state"]) for upload in json.loads(first)["uploads"]]
    assert ("excused-1x2", "delivered") in states
    assert ("every-2x2", "delivered") in states
    assert json.loads(second)["uploads"] == []
