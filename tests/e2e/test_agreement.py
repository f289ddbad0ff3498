"""What the exit code says, JUnit, HTML, Allure, results.json, the ledger, the open Tester, the files for CI and the
terminal say alike."""

from __future__ import annotations

import csv
import json
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import strict_html
from cloud_client import CloudClient
from junit_schema import properties, strictly
from open_tester import Serving, serving
from past import remember, spread
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from report_page import page_data
from waiting import wait_until
from yard import SCRIPT, TEST, THRESHOLDS, WORKERS, WORKLOAD, Ended, Yard

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

PROJECT = "agreement"
Words = dict[str, str | None]  # what is said of each case; None where it was not judged

HARD = THRESHOLDS.replace("at_least = 1 ", "at_least = 1e9 ")
TIGHT = THRESHOLDS.replace("at_least = 1 ", "at_least = 24.5 ")
FAST = WORKLOAD + '[local]\nparameters = { seconds = "0.1", throughput = "12.5" }\n'
VETO = TEST.replace("(trial)", "(veto, trial)") + "\n\n@pytest.fixture\ndef veto():\n    pytest.skip('no cards')\n"
# Says that a test has ended for whoever writes about it. An interrupt within Allure's hooks would be a warning of
# pluggy's, which the runs of these tests turn into an error: so this is said when all others have done theirs.
FLAG = """
import pytest

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Controller() if config.getoption("numprocesses") else Alone())

class Controller:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self):
        yield
        open("ended", "w").close()

class Alone:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self):
        ended = yield
        open("ended", "w").close()
        return ended
"""
SUITES: dict[str, dict[str, str]] = {
    "passed": {},
    "failed": {"thresholds": HARD},
    "broken": {},  # the platform loses its jobs
    "inconclusive": {"thresholds": TIGHT},  # its history is noisy
    "skipped": {"test": VETO},
    "held": {"workload": FAST.replace('"0.1"', '"600"')},
}
EXIT = {"passed": 0, "failed": 1, "broken": 12, "inconclusive": 13, "skipped": 5}
JUDGED = ("passed", "failed", "broken", "inconclusive")


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A local cloud whose jobs cost no process, and which loses some of them."""
    with LocalCloud(engine="simulated", faults=[Fault(name="broken-1x2", job="lost")]) as cloud:
        card = tmp_path_factory.mktemp("lossy") / "card.json"
        card.write_text(json.dumps(cloud.card()))
        yield card


@pytest.fixture(scope="module")
def tester(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(f"{tmp_path_factory.mktemp('tester')}/tester.db") as running:
        yield running


@pytest.fixture(scope="module")
def token(tester: Serving) -> str:
    return tester.token(PROJECT)


@pytest.fixture
def yard(tmp_path: Path, lossy: Path, tester: Serving, token: str) -> Yard:
    (tmp_path / "aisbench.toml").write_text(f'[tester]\nurl = "{tester.url}"\ntoken = "{token}"\n')
    return Yard(tmp_path, lossy)


def suite(yard: Yard, kind: str) -> None:
    yard.suite(kind, **{"workload": FAST, **SUITES[kind]})
    if kind == "inconclusive":
        yard.pytest(f"suites/{kind}", "--nodes", "1")
        remember(yard.folder / "reports" / "ledger.db", f"{kind}-1x2", spread(25.0, 1.0, 30))


def wanted(*kinds: str) -> Words:
    return {f"{kind}-1x2": kind.upper() if kind in JUDGED else None for kind in kinds}


def junit(ended: Ended) -> Words:
    words: Words = {}
    for case in strictly(ended.reports / "junit.xml").iter("testcase"):
        told = properties(case)
        verdict = told.get("aisbench.verdict")
        outcome = {"PASSED": None, "FAILED": "failure", "INCONCLUSIVE": "failure", "BROKEN": "error", None: "skipped"}
        found = [each.tag for each in case if each.tag in {"failure", "error", "skipped"}]
        if told or found:  # a test that was interrupted has said nothing
            assert found == [outcome[verdict]] if outcome[verdict] else not found
            words[bracketed(str(case.get("name")))] = verdict
    return words


def page(ended: Ended) -> Words:
    """The rows of pytest-html, which keeps its data as JSON in an attribute."""
    words: Words = {}
    for name, tests in page_data(ended.reports / "report.html")["tests"].items():
        cells = re.sub(r"<!--.*?-->|<[^>]+>", " ", " ".join(tests[-1]["resultsTableRow"])).split()
        verdict = next((word for word in cells if word in {kind.upper() for kind in JUDGED}), None)
        expected = {
            "PASSED": "Passed",
            "FAILED": "Failed",
            "INCONCLUSIVE": "Failed",
            "BROKEN": "Error",
            None: "Skipped",
        }
        assert tests[-1]["result"] == expected[verdict], (name, cells)
        words[bracketed(name)] = verdict
    return words


def allure(ended: Ended) -> Words:
    words: Words = {}
    for file in (ended.reports / "allure-results").glob("*-result.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        verdict = {label["name"]: label["value"] for label in result["labels"]}.get("verdict")
        statuses = {"PASSED": "passed", "FAILED": "failed", "INCONCLUSIVE": "failed", "BROKEN": "broken"}
        if verdict is None and result["status"] != "skipped":
            continue  # a test that was interrupted
        assert result["status"] == (statuses[verdict] if verdict else "skipped")
        words[bracketed(result["name"])] = verdict
    return words


def bracketed(name: str) -> str:
    found = re.search(r"\[(.+)\]", name)
    assert found, name
    return found[1]


def ledger(ended: Ended) -> Words:
    with sqlite3.connect(ended.folder / "reports" / "ledger.db") as database:
        run = str(ended.results["run"])
        (exit_code,) = database.execute("SELECT exit_code FROM runs WHERE run = ?", [run]).fetchone()
        records = [json.loads(row[0]) for row in database.execute("SELECT record FROM cases WHERE run = ?", [run])]
    database.close()
    assert exit_code == ended.code
    return {record["id"]: record["verdict"] for record in records}


def uploaded(ended: Ended, tester: Serving) -> Words:
    """As the page of the run has it, with the cases that nobody judged; and the list of runs, where it is counted."""
    name = str(ended.results["run"])
    (run,) = [each for each in tester.get(f"/p/{PROJECT}?format=json").json["rows"] if each["name"] == name]
    counted = [str(case["verdict"]) for case in ended.results["cases"]]
    for column, word in {**{kind: kind.upper() for kind in JUDGED}, "unjudged": "None"}.items():
        assert run[column] == counted.count(word), column
    assert run["exit_code"] == ended.code
    assert run["card_hours"] == pytest.approx(sum(case["card_hours"] for case in ended.results["cases"]), abs=1e-5)
    bad = tester.get(f"/p/{PROJECT}?bad=1&format=json").json["rows"]
    assert (run in bad) == (ended.code != 0)  # nobody takes it for a good one
    page = tester.get(f"/p/{PROJECT}/t/{name}/r/{name}").text
    rows = re.findall(
        r'<tr><td>(?:<a [^>]+>)?([^<]+-1x2)(?:</a>)?\s*<td><span class="verdict[^>]*>([^<]+)</span>', page
    )
    return {case: None if word == "not judged" else word for case, word in rows}


def metrics(ended: Ended) -> Words:
    words: Words = {}
    text = (ended.reports / "metrics.txt").read_text(encoding="utf-8")
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if family.name == "aisbench_exit_code":
                assert sample.value == ended.code
            if family.name == "aisbench_verdict":
                words.setdefault(sample.labels["case"], None)
                if sample.value:
                    words[sample.labels["case"]] = sample.labels["aisbench_verdict"]
    return words


def table(text: str, start: str, gap: str) -> Words:
    """The rows of a summary: on the terminal, or in Markdown."""
    rows = re.findall(rf"^{start}(\S+-1x2){gap}(not judged|[A-Z]+)\b", text, re.MULTILINE)
    return {case: None if word == "not judged" else word for case, word in rows}


def everywhere(ended: Ended, tester: Serving, words: Words, shown: Words) -> None:
    """`shown` are the cases whose tests have ended."""
    summary = (ended.reports / "summary.md").read_text(encoding="utf-8")
    readers: dict[str, Callable[[], Words]] = {
        "results.json": lambda: ended.verdicts,
        "the ledger": lambda: ledger(ended),
        "metrics.txt": lambda: metrics(ended),
        "summary.md": lambda: table(summary, r"\| ", r" \| "),
        "the terminal": lambda: table(ended.out, "", "  +"),
        "the Tester": lambda: uploaded(ended, tester),
    }
    assert {name: reader() for name, reader in readers.items()} == dict.fromkeys(readers, words)
    hosts: dict[str, Callable[[], Words]] = {
        "junit.xml": lambda: junit(ended),
        "report.html": lambda: page(ended),
        "allure-results": lambda: allure(ended),
    }
    for name, reader in hosts.items():
        found = reader()
        assert shown.items() <= found.items() <= words.items(), name  # one that has not ended may be told or not
    assert strict_html.report_errors(ended.reports / "report.html") == []
    assert strict_html.errors((ended.folder / "reports" / "index.html").read_text(encoding="utf-8")) == []
    assert ended.results["exit_code"] == ended.code
    assert f"exit code {ended.code}," in summary
    suite = strictly(ended.reports / "junit.xml")
    assert properties(suite)["aisbench.exit_code"] == str(ended.code)


@WORKERS
def test_everything_written_agrees(yard: Yard, tester: Serving, workers: list[str]) -> None:
    kinds = (*JUDGED, "skipped")
    for kind in kinds:
        suite(yard, kind)
    ended = yard.pytest("suites", "--nodes", "1", *workers)
    assert ended.code == 1, ended.out  # the first that applies: something FAILED
    everywhere(ended, tester, wanted(*kinds), wanted(*kinds))


@WORKERS
def test_an_interrupted_run_is_told_alike_too(yard: Yard, tester: Serving, workers: list[str]) -> None:
    for kind in ("passed", "held"):
        suite(yard, kind)
    (yard.folder / "conftest.py").write_text(FLAG)
    with yard.start(*workers) as run:
        wait_until((yard.folder / "ended").exists)
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate()
    ended = Ended(run.returncode, out, yard.folder)
    assert ended.code == 2, ended.out
    everywhere(ended, tester, wanted("passed", "held"), wanted("passed"))


def by_command(yard: Yard, job: str) -> None:
    done = yard.aisbench("stop", job, "--force", "--cloud", str(yard.card))
    assert done.returncode == 0, done.stdout + done.stderr


def by_console(yard: Yard, job: str) -> None:
    """And as ais-bench-stubs stops a job of V2."""
    with CloudClient(json.loads(yard.card.read_text())) as client:
        client.stop(job)


def by_stop_of_v1(yard: Yard, job: str) -> None:
    """As ais-bench-stubs stops a version of a job."""
    with CloudClient(json.loads(yard.card.read_text())) as client:
        number, version = job.split("/")
        path = f"/v1/{client.project}/training-jobs/{number}/versions/{version}/stop"
        assert client.call("POST", path) == {"is_success": True}


@WORKERS
@pytest.mark.parametrize(
    ("stop", "api", "who"),
    [
        (by_command, "V2", r"\S+ with `aisbench stop`"),
        (by_console, "V2", "another person or program: .*"),
        (by_stop_of_v1, "V1", "another person or program: .*"),
    ],
)
def test_a_job_that_a_person_stops_is_told_alike(
    yard: Yard, tester: Serving, stop: Callable[[Yard, str], None], api: str, who: str, workers: list[str]
) -> None:
    """Not judged, by nobody's fault: exit 2, and nothing says that it is worth another try."""
    suite(yard, "held")
    with yard.start(*workers, "--aisbench-modelarts-version", api) as run:
        stop(yard, yard.wait_for_job("RUNNING"))
        out, _ = run.communicate()
    ended = Ended(run.returncode, out, yard.folder)
    assert ended.code == 2, ended.out
    everywhere(ended, tester, wanted("held"), wanted("held"))
    (case,) = ended.results["cases"]
    assert re.fullmatch(f"stopped by {who}", case["reason"])
    assert [trial["platform_phase"] for trial in case["trials"]] == ["Terminated" if api == "V2" else "KILLED"]
    for text in (ended.out, (ended.reports / "report.html").read_text(), (ended.reports / "summary.md").read_text()):
        assert "stopped by " in text
        assert "try again" not in text


@pytest.mark.parametrize("kind", EXIT)
def test_each_verdict_has_its_exit_code(yard: Yard, tester: Serving, kind: str) -> None:
    suite(yard, kind)
    ended = yard.pytest(f"suites/{kind}", "--nodes", "1")
    assert ended.code == EXIT[kind], ended.out
    everywhere(ended, tester, wanted(kind), wanted(kind))


def test_single_and_xdist_write_the_same_results(yard: Yard) -> None:
    def essence(ended: Ended) -> list[object]:
        """What does not depend on the time of day or the names given to jobs."""
        cases = json.loads(json.dumps(ended.results["cases"]))
        for case in cases:
            case["card_hours"] = 0
            for trial in case["trials"]:
                for key in ("job_id", "queued_s", "ran_s", "logs", "stage"):
                    trial[key] = trial[key] not in (None, "", [])  # a wait of 0 s is known too
        return sorted(cases, key=lambda case: str(case["id"]))

    for kind in ("passed", "failed"):
        suite(yard, kind)
    first = essence(yard.pytest("suites", "--nodes", "1"))
    assert first == essence(yard.pytest("suites", "--nodes", "1", "-n", "2", "--aisbench-ledger", "other.db"))


# Its speed differs from trial to trial, always so near the limit that one trial does not decide.
NOISY = SCRIPT.replace('"12.5"', 'str(12.3 + int.from_bytes(os.urandom(2), "big") / 327680)')


def test_a_value_of_several_trials_is_the_same_wherever_it_is_shown(
    tmp_path: Path, card: Path, tester: Serving, token: str
) -> None:
    (tmp_path / "aisbench.toml").write_text(f'[tester]\nurl = "{tester.url}"\ntoken = "{token}"\n')
    yard = Yard(tmp_path, card)
    yard.suite("noisy", script=NOISY, thresholds=TIGHT)
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-max-trials", "3")
    (case,) = ended.results["cases"]
    assert len(case["trials"]) > 1, ended.out
    value = case["metrics"]["throughput"]["value"]
    of_trials = [sum(trial["throughput_by_rank"]) for trial in case["trials"]]
    assert value == pytest.approx(sum(of_trials) / len(of_trials))
    assert not any(value == pytest.approx(each, rel=1e-6) for each in of_trials)

    page = (ended.reports / "report.html").read_text(encoding="utf-8")
    ((row,),) = page_data(ended.reports / "report.html")["tests"].values()
    summary = (ended.reports / "summary.md").read_text(encoding="utf-8")
    (result,) = [json.loads(file.read_bytes()) for file in (ended.reports / "allure-results").glob("*-result.json")]
    (junit_case,) = strictly(ended.reports / "junit.xml").iter("testcase")
    families = text_string_to_metric_families((ended.reports / "metrics.txt").read_text())  # type: ignore[no-untyped-call]
    names, values = csv.reader((ended.reports / "metrics.csv").read_text().splitlines())
    name = ended.results["run"]
    uploads = tester.get(f"/p/{PROJECT}/t/{name}/r/{name}?format=json").json["rows"]
    shown: dict[str, object] = {
        "row of the page": re.sub("<[^>]+>", "", row["resultsTableRow"][3]),
        "matrix": re.search(r"<a href='#case-0'><b>([\d.]+)</b>", page)[1],  # type: ignore[index]
        "sheet": re.search(r"<section class='look aisbench sheet.*?>([\d.]+) images/s<", page, re.DOTALL)[1],  # type: ignore[index]
        "terminal": re.search(r"^noisy-1x2 .*?([\d.]+) images/s", ended.out, re.MULTILINE)[1],  # type: ignore[index]
        "summary.md": re.search(r"\| noisy-1x2 \|.*?([\d.]+) images/s", summary)[1],  # type: ignore[index]
        "junit.xml": properties(junit_case)["aisbench.throughput"],
        "metrics.txt": next(
            sample.value for family in families if family.name == "aisbench_throughput" for sample in family.samples
        ),
        "metrics.csv": values[names.index("noisy-1x2 throughput")],
        "Allure": next(each["value"] for each in result["parameters"] if each["name"] == "throughput"),
        "Tester": next(each["throughput"] for each in uploads if each["name"] == "noisy-1x2"),
    }
    numbers = {place: float(str(text).split()[0]) for place, text in shown.items()}
    rounded = float(f"{value:.4g}")  # in files of a CI server, so that noise is no change to it
    expected = {place: rounded if place.startswith("metrics") else value for place in shown}
    assert numbers == pytest.approx(expected, rel=1e-5), shown


def test_results_json_is_as_the_design_says(tmp_path: Path, card: Path) -> None:
    yard = Yard(tmp_path, card)
    yard.suite(script=SCRIPT)
    results = yard.pytest("suites", "--nodes", "2").results
    assert results["schema"] == "aisbench-results/1"
    of_the_design = ["schema", "run", "started", "finished", "exit_code", "settings", "cases", "uploads"]
    assert list(results) == [*of_the_design, "origin"]
    assert results["settings"]["platform"] == "local"
    assert results["settings"]["nodes"] == [2]
    (case,) = results["cases"]
    assert {key: case[key] for key in ("id", "workload", "nodes", "devices_per_node", "mode", "verdict")} == {
        "id": "toy-2x2",
        "workload": "toy",
        "nodes": 2,
        "devices_per_node": 2,
        "mode": "cluster",
        "verdict": "PASSED",
    }
    assert case["metrics"] == {
        "throughput": {"value": 50.0, "unit": "images/s"},
        "accuracy": {"value": 0.9, "unit": ""},
    }
    assert case["findings"][0] == {
        "metric": "throughput",
        "outcome": "met",
        "measured": 50.0,
        "wanted": ">= 1 images/s",
        "text": (
            "throughput 50 images/s, wanted >= 1 images/s: the interval 47.7135 .. 52.2865 is inside the limits"
            " (± 2.287 = t 2.287 × s 1; t at 1 - 0.05 × 2/9 of the normal distribution;"
            " s is assumed to be 2% of the mean: no comparable earlier trials)"
        ),
    }
    (trial,) = case["trials"]
    assert list(trial) == [
        *("trial", "job_id", "platform_phase", "phase", "queued_s", "ran_s", "throughput_by_rank"),
        *("throughput_by_server", "accuracy_by_server", "stragglers", "logs", "stage", "endpoints", "usage"),
        "hosts",
    ]
    assert (trial["trial"], trial["platform_phase"], trial["phase"]) == (1, "Completed", "SUCCEEDED")
    assert trial["throughput_by_rank"] == [12.5] * 4
    assert trial["throughput_by_server"] == [25.0, 25.0]
    assert trial["accuracy_by_server"] == [0.9]
    assert trial["stragglers"] == []
    assert trial["stage"].startswith("obs://")
    assert trial["ran_s"] > 0
    for log in trial["logs"]:
        assert (yard.folder / "reports/latest" / log).is_file()
    request = json.loads((yard.folder / "reports/latest/requests/toy-2x2.json").read_text())
    assert request["body"]["spec"]["resource"]["node_count"] == 2
