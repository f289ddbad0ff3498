"""What must hold in every simulation, read from what the world outside saw: the platform's books and its requests, the
Tester's rows, exit codes, results.json, and what `aisbench jobs` would list.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.cloud import GOOD, SECRETS, Entry
from tests.sim.disk import connect

if TYPE_CHECKING:
    from pytest_aisbench.model.results import UploadItem
    from tests.sim.session import PytestRun
    from tests.sim.world import World


_VERDICTS = "SELECT case_id, json_extract(record, '$.verdict') FROM cases WHERE run = ?"


class Violation(NamedTuple):
    rule: str
    text: str


class Checker:
    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.lines: list[str] = []  # of `aisbench stop --all-mine`
        self.uploads: list[UploadItem] = []
        self._requests = 0

    def violate(self, rule: str, text: str) -> None:
        violation = Violation(rule, text)
        if violation not in self.violations:
            self.violations.append(violation)
            self._world.tell(f"VIOLATED {rule}: {text}")

    # While it runs.

    def after_a_request(self) -> None:
        """Look at what the platform carried out since the last look."""
        cloud = self._world.cloud
        new, self._requests = cloud.seen[self._requests :], len(cloud.seen)
        if any("create" in each.operation or each.operation == "PostJob" for each in new):
            counts = Counter(entry.trial for entry in self._ours() if not entry.gone)
            for trial, count in counts.items():
                if count > 1:
                    self.violate("no job is doubled", f"{count} jobs of {trial}")

    # At the end.

    def before_the_calm_end(self) -> None:
        self._compare_reports_with_ledger()

    def after_the_last_run(self, last: PytestRun) -> None:
        if last.exit_code in {None, 3, 4}:
            self.violate("every run ends", f"the calm run ended with {last.exit_code}: {last.crash} {last.lines}")

    def at_the_end(self) -> None:
        world = self._world
        for run in world.runs:
            if run.crash:
                self.violate("every run ends", f"{run.name} crashed: {type(run.crash).__name__}: {run.crash}")
        for stranger in self._books():
            if stranger.id in world.cloud.strangers and stranger.phase.startswith("Termin") and not stranger.gone:
                self.violate("no job is stopped that is not ours", f"job {stranger.id} of another person")
        for entry in self._ours():
            if not entry.is_over and not entry.gone:
                self.violate("no job is orphaned", f"job {entry.id} ({entry.trial}) is {entry.phase} after all")
        self._check_listed()
        self._check_verdicts()
        self._check_uploads()
        self._check_secrets()

    def _check_listed(self) -> None:
        """Every job that the platform ever had is one that `aisbench jobs` lists: by its trial, or by its name."""
        ledger_file = self._world.reports / "ledger.db"
        if not ledger_file.exists():
            return
        with closing(connect(ledger_file)) as db:
            listed = {text for row in db.execute("SELECT trial, name FROM trials") for text in row}
        for entry in self._ours():
            if entry.trial.rpartition(" trial ")[2] not in listed:
                self.violate("no job is lost", f"job {entry.id} ({entry.trial}) is not in the ledger")

    def _books(self) -> list[Entry]:
        return self._world.cloud.books()

    def _ours(self) -> list[Entry]:
        return [entry for entry in self._books() if entry.id not in self._world.cloud.strangers]

    def _results(self, run: PytestRun) -> dict[str, Any] | None:
        if run.run is None:
            return None
        file = run.run.folder / "results.json"
        return json.loads(file.read_text()) if file.exists() else None

    def _compare_reports_with_ledger(self) -> None:
        """What results.json has shown, `aisbench report` shows too, whatever happened since."""
        ledger_file = self._world.reports / "ledger.db"
        if not ledger_file.exists():
            return
        with closing(connect(ledger_file)) as db:
            for run in self._world.runs:
                if run.run is None or (results := self._results(run)) is None:
                    continue
                recorded = dict(db.execute(_VERDICTS, (run.run.id,)))
                for case in results["cases"]:
                    verdict = recorded.get(case["id"])
                    if case["verdict"] and verdict != case["verdict"]:
                        text = f"{run.name}: results.json says {case['verdict']} of {case['id']}, the ledger {verdict}"
                        self.violate("reports agree", text)

    def _check_verdicts(self) -> None:
        books = {entry.id: entry for entry in self._ours()}
        judged: dict[str, str] = {}  # by job: the run that ended with a verdict from it
        for run in self._world.runs:
            results = self._results(run)
            if results is None:
                continue
            if run.exit_code is not None and results["exit_code"] != run.exit_code and not run.unrecorded:
                self.violate(
                    "reports agree", f"{run.name} ended with {run.exit_code}, its report says {results['exit_code']}"
                )
            for case in results["cases"]:
                if case["verdict"] == "PASSED":
                    self._check_green(run, case, books)
                if case["verdict"] == "FAILED":
                    self._check_red(run, case, books)
                if case["verdict"] == "BROKEN" and run.exit_code is not None and not run.unrecorded:
                    self._check_broken(run, case)
                if run.exit_code is None or case["verdict"] not in {"PASSED", "FAILED"}:
                    continue
                if run.unrecorded:
                    continue  # it says so, and its verdicts count as little as those of a killed run
                job = case["trials"][-1]["job_id"] if case["trials"] else None
                if job in judged:
                    text = f"{case['id']}: {run.name} and {judged[job]} both ended with a verdict from job {job}"
                    self.violate("every case is judged from its own job", text)
                if job:
                    judged[job] = run.name
            self._check_exit_code(run, results)

    def _check_green(self, run: PytestRun, case: dict[str, Any], books: dict[str, Any]) -> None:
        trial = case["trials"][-1]
        entry = books.get(trial["job_id"])
        what = f"{run.name}: {case['id']} is PASSED by job {trial['job_id']}"
        if entry is None:
            self.violate("never green with a fault", f"{what}, which the platform never had")
            return
        if case["workload"] not in entry.trial and case["workload"] not in entry.name:
            self.violate("every case is judged from its own job", f"{what}, which is of {entry.trial}")
        if entry.phase != "Completed" or entry.outcome is None or entry.outcome.kind not in {GOOD, "lost"}:
            self.violate("never green with a fault", f"{what}, which is {entry.phase} and was {entry.outcome}")
        elif trial["throughput_by_rank"] and any(
            each != entry.outcome.throughput for each in trial["throughput_by_rank"]
        ):
            text = f"{what}, whose ranks had {entry.outcome.throughput}, not {trial['throughput_by_rank']}"
            self.violate("every case is judged from its own job", text)

    def _check_red(self, run: PytestRun, case: dict[str, Any], books: dict[str, Any]) -> None:
        """A workload failed only if its job did: what befalls the run, the network or the disk is no verdict on it."""
        entry = books.get(case["trials"][-1]["job_id"]) if case["trials"] else None
        if entry is None and any(lost.gone and lost.name in case["reason"] for lost in self._ours()):
            # A gateway sent the request twice, and the platform lost the first job before it was asked about it: a
            # second copy that is refused without a reason cannot be told from a refusal then.
            return
        if entry is None or not entry.is_over or entry.outcome is None or entry.outcome.kind == GOOD:
            what = f"which is {entry.phase} and was {entry.outcome}" if entry else "without a job"
            self.violate("never red without a fault", f"{run.name}: {case['id']} is FAILED, {what}: {case['reason']}")

    def _jobs_of(self, trial: dict[str, Any]) -> list[Entry]:
        """The jobs that the platform made by the requests of a trial, by what the trial alone has."""
        own = (trial["stage"] or "").partition("/trials/")[2].strip("/")
        return [entry for entry in self._ours() if own and own in (entry.trial.rpartition(" trial ")[2], entry.name)]

    def _check_broken(self, run: PytestRun, case: dict[str, Any]) -> None:
        """No simulation cuts a run off for as long as it must wait, so it knows each job that its requests made."""
        trial = case["trials"][-1]
        if trial["job_id"] or not trial["stage"] or "another run" in case["reason"]:
            return
        if any(not entry.gone for entry in self._jobs_of(trial)):
            self.violate("no job is lost", f"{run.name} does not know the job of {trial['stage']}: {case['reason']}")

    def _check_exit_code(self, run: PytestRun, results: dict[str, Any]) -> None:
        verdicts = [case["verdict"] for case in results["cases"]]
        if run.unrecorded and run.exit_code in {0, 1, 12, 13}:
            self.violate("never green with a fault", f"{run.name} ended with {run.exit_code}: {run.unrecorded}")
        if run.exit_code == 0 and (set(verdicts) != {"PASSED"} or len(verdicts) != len(run.cases)):
            self.violate("never green with a fault", f"{run.name} ended with 0, its verdicts are {verdicts}")
        if run.run and run.run.stopped() and not self._world.person_stopped and run.exit_code is not None:
            self.violate("no job is stopped that is not ours", f"{run.name} says: {run.run.stopped()}")

    def _check_uploads(self) -> None:
        rows = self._world.cloud.rows()
        for key, count in Counter(_upload_key(row) for row in rows).items():
            if count > 1:
                self.violate("every upload is stored once", f"{count} rows of {key}")
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        for row in rows:
            if row["kind"] == "results":
                body = row["body"]
                of = row["testid"], body["case"]["id"]
                if of not in newest or newest[of]["attempt"] < body["attempt"]:
                    newest[of] = body
        for run in self._world.runs:
            results = self._results(run) or {"run": "", "cases": []}
            for case in results["cases"]:
                stored = newest.get((results["run"], case["id"]))
                if case["verdict"] and (stored is None or stored["case"]["verdict"] != case["verdict"]):
                    has = stored["case"]["verdict"] if stored else "nothing"
                    text = f"{run.name}: {case['id']} is {case['verdict']}, the Tester has {has}"
                    self.violate("every upload is stored once", text)

    def _check_secrets(self) -> None:
        world = self._world
        texts: list[tuple[str, bytes]] = [(file, Path(file).read_bytes()) for file in _files(world.reports)]
        texts += [(f"what {run.name} printed", "\n".join(run.lines).encode()) for run in world.runs]
        texts.append(("the Tester", json.dumps(world.cloud.rows()).encode()))
        for where, text in texts:
            for secret in SECRETS:
                if secret.encode() in text:
                    self.violate("no secret leaves", f"{secret!r} is in {where}")


def _upload_key(row: dict[str, Any]) -> tuple[Any, ...]:
    body = row["body"]
    return row["testid"], row["kind"], body["run_id"], body.get("case", {}).get("id"), body["attempt"]


def _files(folder: Path) -> list[str]:
    return [f"{at}/{name}" for at, _, names in os.walk(folder) for name in names]
