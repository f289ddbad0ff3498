"""Whatever is wrong: one clear message, whose fault it is, what to do, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from waiting import wait_until
from yard import SCRIPT, TEST, THRESHOLDS, WORKERS, WORKLOAD, Ended, Yard

FAILING = {
    "exits 3": ("raise SystemExit(3)", "the job failed with exit code 3"),
    "raises": ("raise ValueError('no data here')", "ValueError: no data here"),
    "writes nothing": ("pass", "throughput_0.json (rank 0: node 0, card 0) is missing"),
    "writes abc": (SCRIPT.replace('"12.5"', '"abc"'), "says 'abc', which is not a number"),
    "leaves a rank out": (
        SCRIPT.replace('write(f"throughput', 'rank == 3 or write(f"throughput'),
        "throughput_3.json (rank 3: node 1, card 1) is missing",
    ),
    "counts wrong": (
        SCRIPT.replace('"ranksize", str(size)', '"ranksize", "15"'),
        "ranksize.json says 15 ranks trained",
    ),
    "learns nothing": (SCRIPT.replace('"0.9"', '"0.1"'), "accuracy 0.1, wanted >= 0.5"),
}
MARKER = 'pytest.mark.workload("{name}", nodes=[1, 2])'


@pytest.mark.parametrize("script", FAILING)
@pytest.mark.slow
def test_a_script_that_does_not_do_its_work_fails_and_is_told_why(yard: Yard, script: str) -> None:
    text, told = FAILING[script]
    yard.suite(script=text)
    ended = yard.pytest("suites", "--nodes", "2")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"toy-2x2": "FAILED"}
    assert told in ended.out
    assert told in json.dumps(ended.results)
    whose = {"exits 3": "the workload is to blame", "raises": "the workload is to blame"}
    whose |= {"learns nothing": "the owner of the workload acts"}
    assert whose.get(script, "the owner of the training script acts") in ended.out


@pytest.mark.slow(seconds=5)
def test_a_script_that_hangs_is_stopped_at_its_run_timeout(yard: Yard) -> None:
    yard.suite(script="import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)")
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-run-timeout", "2s")
    assert ended.code == 1, ended.out
    assert "the job ran longer than 2 s; raise --aisbench-run-timeout" in ended.out
    assert ended.results["cases"][0]["trials"][0]["phase"] == "CANCELLED"


def usage(ended: Ended) -> str:
    """The one line that was said; nothing was submitted or written."""
    assert ended.code == 4, ended.out
    (line,) = [line for line in ended.out.splitlines() if line.startswith("ERROR: ")]
    assert "Traceback" not in ended.out
    assert not (ended.folder / "reports").exists()
    return line


@WORKERS
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"workload": WORKLOAD + "[broken"}, "workload.toml: not valid TOML"),
        (
            {"workload": WORKLOAD.replace('"train.py"', '"no.py"')},
            "workload.toml:3: entry: there is no 'no.py' in code",
        ),
        (
            {"thresholds": THRESHOLDS + "loss = { at_most = 1 }\n"},
            "thresholds.toml:4: loss: no script writes this metric",
        ),
        (
            {"thresholds": '[local."*"]\naccuracy = { at_least = 0.5 }\n'},
            "toy-1x2, toy-2x2 have no claim on throughput",
        ),
        (
            {"thresholds": THRESHOLDS.replace("= 0.5", "= 0.5, expected_failure = { until = 2027-01-31 }")},
            "thresholds.toml:3: accuracy.expected_failure: reason is missing",
        ),
    ],
    ids=["toml", "entry", "metric", "claim", "excuse"],
)
def test_a_bad_suite_is_one_line_and_exit_4(yard: Yard, change: dict[str, str], told: str, workers: list[str]) -> None:
    yard.suite(**change)
    assert told in usage(yard.pytest("suites", *workers))


@WORKERS
def test_the_mistakes_of_all_suites_are_said_at_once(yard: Yard, workers: list[str]) -> None:
    yard.suite("a", workload=WORKLOAD + "colour = 1\n", thresholds="[[")
    yard.suite("b", thresholds=THRESHOLDS.replace("accuracy", "acuracy"))
    yard.suite("c", test=TEST.replace("nodes", "knots"))
    yard.suite("d", thresholds='[local."*"]\n')
    ended = yard.pytest("suites", "--nodes", "1", *workers)
    lines = [line for line in ended.out.replace(f"{yard.folder}/", "").splitlines() if line.startswith("ERROR: ")]
    assert ended.code == 4, ended.out
    places = [line.removeprefix("ERROR: suites/").split(" ")[0] for line in lines]
    assert places == [
        "a/workload.toml:7:",
        "a/thresholds.toml:",
        "b/thresholds.toml:3:",
        "c/test_c.py:",
        "d/thresholds.toml:",
        "d/thresholds.toml:",
    ], ended.out
    assert not (yard.folder / "reports").exists()


def test_requests_that_the_platform_would_refuse_are_said_at_once(yard: Yard) -> None:
    for name in ("a", "b"):
        yard.suite(name, workload=WORKLOAD.replace("devices = 2", "devices = 2\nurls_by = 'pigeon'"))
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 4, ended.out
    assert len([line for line in ended.out.splitlines() if line.startswith("ERROR: ")]) == 2


# pytest-rerunfailures leaves a thread and a socket open in every process that loads it, so it is not installed here.
RERUNS = """
class Reruns:
    def pytest_addoption(self, parser):
        parser.addoption("--reruns", type=int)

def pytest_addoption(parser, pluginmanager):
    pluginmanager.register(Reruns(), "rerunfailures")
"""


@pytest.mark.slow
def test_a_run_says_that_tests_which_run_again_train_nothing_anew(yard: Yard) -> None:
    yard.suite(test=TEST.replace("def test", "@pytest.mark.repeat(2)\ndef test"))
    (yard.folder / "conftest.py").write_text(RERUNS)
    ended = yard.pytest("suites", "--nodes", "1", "-p", "repeat", "--count", "3", "--reruns", "2")
    said = "aisbench: --count, --reruns, the marker repeat: a test that runs again gets the verdict of the same trial"
    assert said in ended.out
    assert ended.code == 0, ended.out
    assert "2 passed" in ended.out
    assert len(yard.trials()) == 1


def test_a_missing_toml_is_named(yard: Yard) -> None:
    (yard.suite() / "thresholds.toml").unlink()
    assert "thresholds.toml: there is no such file" in usage(yard.pytest("suites"))


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ('pytest.mark.workload("other", nodes=[1])', "does not fit the workload 'toy'"),
        ('pytest.mark.workload("toy")', "does not fit the workload 'toy'; write @pytest.mark.workload"),
        ('pytest.mark.workload("toy", nodes=[0])', "0 is not a number of nodes"),
        ('pytest.mark.workload("toy", nodes=[])', "supports no shape"),
        ('pytest.mark.workload("toy", nodes=1)', "test_toy.py: the marker of workload 'toy' wants a list; write"),
        ('pytest.mark.workload("toy", shapes=["8"])', "'8' is not a shape"),
    ],
)
def test_a_bad_marker_is_one_line(yard: Yard, marker: str, told: str) -> None:
    yard.suite(test=TEST.replace(MARKER, marker))
    assert told in usage(yard.pytest("suites"))


@WORKERS
def test_a_marked_test_that_asks_for_nothing_is_not_green(yard: Yard, workers: list[str]) -> None:
    yard.suite(test=TEST.replace("(trial)", "()").replace("trial.verdict.require()", "pass"))
    line = usage(yard.pytest("suites", *workers))
    assert "test_toy.py::test_trains: a workload is marked, and nothing is asked of it; let it ask for `trial`" in line


def test_two_workloads_of_one_name_are_told_apart_by_nobody(yard: Yard) -> None:
    yard.suite("toy")
    other = yard.suite("toy2")
    for file in ("workload.toml", "test_toy2.py"):
        (other / file).write_text((other / file).read_text().replace("toy2", "toy"))
    assert "both hold a workload named 'toy'" in usage(yard.pytest("suites"))


def test_an_unknown_platform_is_one_line(yard: Yard) -> None:
    yard.suite()
    line = usage(yard.pytest("suites", "--aisbench-platform", "nope", cloud=False))
    assert line == "ERROR: --aisbench-platform: unknown platform 'nope'; known: apulis, local, modelarts, slurm"


def test_modelarts_without_keys_is_never_silently_local(yard: Yard) -> None:
    yard.suite()
    line = usage(yard.pytest("suites", "--aisbench-platform", "modelarts", cloud=False))
    assert "platform modelarts needs access_key, secret_access_key, bucket" in line


@WORKERS
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("secret_key", "wrong", "secret"),
        ("access_key", "UNKNOWNKEY", "key"),
        ("bucket", "no-such-bucket", "no-such-bucket"),
        ("modelarts_endpoint", "http://127.0.0.1:9", "nothing answers at http://127.0.0.1:9"),
    ],
)
def test_a_card_that_does_not_fit_is_one_line(
    yard: Yard, card: Path, tmp_path: Path, key: str, value: str, told: str, workers: list[str]
) -> None:
    yard.suite()
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps({**json.loads(card.read_text()), key: value}))
    line = usage(yard.pytest("suites", "--aisbench-cloud", str(changed), *workers, cloud=False))
    assert told in line
    assert json.loads(card.read_text())["secret_key"] not in line


def test_a_card_that_is_none_is_one_line(yard: Yard) -> None:
    yard.suite()
    line = usage(yard.pytest("suites", "--aisbench-cloud", "card.json", cloud=False))
    assert "card.json: No such file or directory; start it with `aisbench cloud --json > FILE`" in line


def test_reports_that_cannot_be_written_stop_the_run_before_it_starts(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "reports").write_text("a file is in the way")
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 3
    assert "ledger.db cannot be used: [Errno 17] File exists" in ended.out
    assert "name another file with --aisbench-ledger" in ended.out


@WORKERS
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 2), ("SIGTERM", 143)])
@pytest.mark.slow
def test_an_interrupt_stops_the_jobs_and_writes_the_reports(
    yard: Yard, name: str, code: int, workers: list[str]
) -> None:
    mark = f"{yard.folder.name}-{name}-sleeper"
    yard.suite(script=f"import time  # {mark}\nprint('training', flush=True)\ntime.sleep(600)")
    run = yard.start(*workers, cloud=False)
    yard.wait_for_job("RUNNING")
    run.send_signal(getattr(signal, name))
    out, _ = run.communicate()
    assert run.returncode == code, out
    results = json.loads((yard.folder / "reports/latest/results.json").read_text())
    assert results["exit_code"] == code
    (case,) = results["cases"]
    assert case["verdict"] is None
    assert case["trials"][0]["phase"] == "CANCELLED"
    assert (yard.folder / "reports/latest/report.html").exists()
    assert (yard.folder / "reports/latest/junit.xml").exists()


def processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mark in text:
                found.append(text)
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_after_sigkill_of_pytest_nothing_is_left(yard: Yard) -> None:
    mark = f"--mark={yard.folder.name}"
    workload = WORKLOAD.replace("devices = 2", f'devices = 2\nparameters = {{ mark = "{yard.folder.name}" }}')
    yard.suite(workload=workload, script="import time\ntime.sleep(600)")
    run = yard.start(nodes=2, cloud=False)
    wait_until(lambda: processes(mark), lambda commands: len(commands) >= 4)
    run.kill()
    run.communicate()
    wait_until(lambda: processes(mark), lambda commands: not commands)
