"""A ledger that was written before the code was rebuilt, and what its readers said of it then.

`tests/data/old_ledger/ledger.sql` was recorded on a local cloud by the last version with the old names. Its runs:
four for the history of `steady` and `noisy` (of which only the measurements are kept), `alone` (single-server),
`modelarts`, `everything` (each verdict), `spooled` and `dead` (uploads), `left`, `unsent` and `dying` (killed while
the job ran, before it was created, and before it was judged), `parted` (interrupted, its job left to run), `private`
(killed together with its private cloud) and `every`, made by hand, in which no field of a record is empty.

The ledger is never recorded anew. `python tests/support/old_ledger.py` writes what is read from it today to
`expected.json` beside it: only a change of the published formats is a reason for that.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "old_ledger"
EXPECTED = DATA / "expected.json"
RUNS = {
    "alone": "20250327-004539-35aa68",
    "modelarts": "20250327-004554-7811eb",
    "everything": "20250327-004609-9fe76b",
    "spooled": "20250327-004631-506a2c",
    "dead": "20250327-004648-a7053b",
    "dying": "20250327-004719-eed4de",
    "parted": "20250327-004728-de1678",
    "every": "20250327-005000-eeeeee",
}
CASES = ("steady-1x2", "steady-2x2", "noisy-1x2", "alone-2x2-single", "alone-2x8", "slow-2x2", "excused-1x2")
RECORDED = 1743036500.0  # when the last of its runs was over
CLOUD = "http://127.0.0.1:10001"  # the ModelArts that it was recorded on
TESTER = "http://127.0.0.1:1/"  # the Tester that did not answer
# The machine that it was recorded on, as the interpreter tells it.
HOST = 'import os\nimport socket\n\nsocket.gethostname = lambda: "old-host"\nos.cpu_count = lambda: 4\n'

_COMMANDS = """
import contextlib, io, json, runpy, sys
said = []
for arguments in json.load(sys.stdin):
    sys.argv = ["aisbench", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_module("pytest_aisbench", run_name="__main__")
    said.append(out.getvalue())
print(json.dumps(said))
"""
_PROSE = {"reason", "text", "why", "source", "null_reason", "about"}  # of these only whether there is any
_LINES = {"remarks", "changed", "warnings"}  # of these only how many
_WORKLOAD = """name = "{name}"
code = ["code"]
entry = "train.py"
framework = "python"
devices = 2
expected = "20s"
parameters = {{ act = "train", spread = "{spread}", seconds = "{seconds}" }}
environment = {{ GLOG_v = "3" }}
{data}
[metrics.throughput]
unit = "images/s"
[metrics.accuracy]
unit = ""
"""
_CLAIMS = """[local."*"]
throughput = { reference = 200, lower = -0.1, upper = 0.1, unit = "images/s", per = "node" }
accuracy = { at_least = 0.75 }
"""
_TEST = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1, 2])


def test_trains(trial):
    trial.verdict.require()
"""
_SECONDS = {"steady": "2.4", "left": "40", "parted": "40"}


@dataclass(frozen=True)
class Kept:
    """The ledger in a folder of its own, read by commands that know its format as their own."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "reports" / "ledger.db"

    def load(self, changes: Mapping[str, str]) -> Kept:
        """`changes`: what stands in the place of some texts that were recorded."""
        text = (DATA / "ledger.sql").read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        self.file.parent.mkdir(parents=True)
        with closing(sqlite3.connect(self.file)) as db:
            db.executescript(text)
        return self

    def aisbench(self, *commands: Sequence[str]) -> list[str]:
        """What each command prints; all of them in one process."""
        done = subprocess.run(
            [sys.executable, "-c", _COMMANDS],
            input=json.dumps(commands),
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout.splitlines()[-1]))

    def suite(self, name: str) -> None:
        """As it was when the ledger was recorded: its job is the same to the last byte."""
        place = self.folder / "suites" / name
        (place / "code").mkdir(parents=True)
        (place / "code" / "train.py").write_bytes((DATA / "train.py.txt").read_bytes())
        steady, noisy = name == "steady", name == "noisy"
        workload = _WORKLOAD.format(
            name=name,
            spread="0.3" if noisy else "0.02",
            seconds=_SECONDS.get(name, "0.2"),
            data='data = "data"\ndata_contains = ["train/", "labels.txt"]' if steady else "",
        )
        (place / "workload.toml").write_text(workload)
        (place / "thresholds.toml").write_text(_CLAIMS + 'scaling = { at_least = 0.5, base = "1x2" }\n' * steady)
        (place / f"test_{name}.py").write_text(_TEST.format(name=name))
        if steady:
            (place / "data" / "train").mkdir(parents=True)
            (place / "data" / "train" / "one.txt").write_text("1\n")
            (place / "data" / "labels.txt").write_text("a\n")


def environment() -> dict[str, str]:
    """Of the time zone that the ledger was recorded in."""
    theirs = ("AISBENCH_", "PYTEST_", "GITHUB_", "JENKINS_")
    ours = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    return {**ours, "TZ": "UTC"}


def same_machine(folder: Path) -> dict[str, str]:
    """What makes a run believe that it is on the machine of the ledger: history is compared only there."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HOST)
    return {"PYTHONPATH": str(site)}


def read_all(folder: Path) -> dict[str, Any]:
    """What the commands say of the ledger, without their prose."""
    inbox = folder / "inbox"
    kept = Kept(folder).load({TESTER: f"file://{inbox}"})
    for name in ("steady", "noisy"):
        kept.suite(name)
    asked = [
        ["jobs"],
        ["jobs", "--all"],
        ["history"],
        *(["history", case] for case in CASES),
        ["references", "check"],
        ["references", "propose"],
        ["flush", "--dead"],
        ["flush", "--patience", "1s"],
    ]
    reports = [["report", run] for run in RUNS.values()]
    printed = kept.aisbench(*([*command, "--json"] for command in asked), *reports)
    answers = zip(asked, printed, strict=False)
    outputs = {" ".join(command): json.loads(text) for command, text in answers}
    del outputs["references propose"]["diff"]
    del outputs["history"]["summaries"]  # a field that came later; it is made of what `history CASE` shows
    outputs["results"] = {
        name: json.loads((kept.folder / "reports" / run / "results.json").read_bytes()) for name, run in RUNS.items()
    }
    for name in ("everything", "every"):
        report = kept.folder / "reports" / RUNS[name]
        outputs[f"fields of {name}"] = json.loads((report / "fields.json").read_bytes())
        outputs[f"executor of {name}"] = json.loads((report / "allure-results" / "executor.json").read_bytes())
        lines = (report / "metrics.txt").read_text(encoding="utf-8").splitlines()
        outputs[f"metrics of {name}"] = [line for line in lines if not line.startswith("#")]
    outputs["sent"] = {
        re.sub(r"\.[0-9a-f]{16}\.json$", "", path.relative_to(inbox).as_posix()): json.loads(path.read_bytes())
        for path in sorted(inbox.rglob("*.json"))
    }
    text = json.dumps(_plain(outputs)).replace(str(folder), "/yard")
    return dict(json.loads(text))


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _plain(item, name) for name, item in value.items() if name != "key"}
    if isinstance(value, list):
        return len(value) if key in _LINES else [_plain(item) for item in value]
    return bool(value) if key in _PROSE else value


def leaves(value: Any) -> Iterator[Any]:
    """All values of a record, whatever their keys are called. A message counts by its text alone: what it was made of
    may have no words any more."""
    if isinstance(value, dict):
        for item in [value["text"]] if value.keys() == {"text", "said"} else value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def lost(before: str, after: str) -> Counter[str]:
    """The values of one record that another does not hold, or not as often."""

    def counted(record: str) -> Counter[str]:
        return Counter(map(json.dumps, leaves(json.loads(record))))

    return counted(before) - counted(after)


def moved(kept: Kept, shift: float) -> None:
    """The ledger as if it had been recorded so many seconds later: every time in it, whatever its key."""

    def later(found: re.Match[str]) -> str:
        return str(float(found[0]) + shift)

    with closing(sqlite3.connect(kept.file)) as db, db:
        for trial, record in db.execute("SELECT trial, record FROM trials").fetchall():
            text = re.sub(r"\b17430\d{5}(?:\.\d+)?\b", later, record)
            db.execute("UPDATE trials SET record = ?, updated = updated + ? WHERE trial = ?", (text, shift, trial))
        db.execute("UPDATE runs SET started = started + ?, finished = finished + ?", (shift, shift))
        db.execute("UPDATE measures SET at = at + ?", (shift,))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        outputs = read_all(Path(place))
    EXPECTED.write_text(json.dumps(outputs, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
