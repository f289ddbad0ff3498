"""Every exit code that a gate may read, each by a real run; and the manifest of what must have run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from past import remember, spread
from waiting import wait_until
from yard import THRESHOLDS, WORKERS, WORKLOAD, Ended, Gate, Yard, submitted

from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

HEAD = 'import pytest\n\npytestmark = pytest.mark.workload("{name}", nodes=[1])\n\n'
SKIPPED = HEAD + "def test_trains(case, request):\n    pytest.skip('no cards')\n    request.getfixturevalue('trial')\n"
HARD = THRESHOLDS.replace("at_least = 1 ", "at_least = 1e9 ")


def interrupted(yard: Yard, number: signal.Signals) -> Ended:
    """A run that gets a signal while its job runs."""
    yard.suite(script=Gate().wait)
    with yard.start("-s") as run:
        wait_until(lambda: [*yard.folder.glob("reports/latest/requests/*")])
        run.send_signal(number)
        out, _ = run.communicate()
    return Ended(run.returncode, out, yard.folder)


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Yard]:
    """On a local cloud whose jobs cost no process, and which loses some of them."""
    with LocalCloud(engine="simulated", faults=[Fault(name="lost-1x2", job="lost")]) as cloud:
        (tmp_path / "card.json").write_text(json.dumps(cloud.card()))
        yield Yard(tmp_path, tmp_path / "card.json")


def test_0_every_selected_case_passed(yard: Yard) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == ended.results["exit_code"] == 0


def test_1_a_verdict_failed(yard: Yard) -> None:
    yard.suite(thresholds=HARD)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == ended.results["exit_code"] == 1


@WORKERS
def test_1_an_ordinary_test_failed_also_with_x(yard: Yard, workers: list[str]) -> None:
    yard.suite()
    (yard.folder / "suites" / "test_ordinary.py").write_text("def test_ordinary():\n    assert not 1\n")
    assert yard.pytest("suites/test_ordinary.py", "suites/toy", "--nodes", "1", "-x", *workers).code == 1


def test_2_interrupted(yard: Yard) -> None:
    ended = interrupted(yard, signal.SIGINT)
    assert ended.code == ended.results["exit_code"] == 2, ended.out
    assert ended.verdicts == {"toy-1x2": None}


@pytest.mark.slow
def test_3_the_run_cannot_be_recorded(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "reports").mkdir()
    (yard.folder / "reports" / "ledger.db").write_text("no database at all, whatever its name says" * 100)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 3, ended.out
    assert "Traceback" not in ended.out


def test_4_usage_before_anything_is_paid_for(yard: Yard, card: Path) -> None:
    yard.suite(thresholds='[local."*"]\naccuracy = { at_least = 0.5 }\n')
    before = submitted(card)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 4
    assert len([line for line in ended.out.splitlines() if line.startswith("ERROR")]) == 1
    assert submitted(card) == before


@pytest.mark.parametrize("asked", [["--nodes", "7"], ["--aisbench-dry-run"], ["-k", "nothing_of_this_name"]])
def test_5_nothing_was_judged(yard: Yard, asked: list[str]) -> None:
    yard.suite()
    assert yard.pytest("suites", *asked).code == 5


@pytest.mark.slow
def test_12_the_platform_is_to_blame(simulated: Yard) -> None:
    simulated.suite("lost")
    ended = simulated.pytest("suites", "--nodes", "1", "--aisbench-max-trials", "1")
    assert ended.code == ended.results["exit_code"] == 12, ended.out
    assert ended.verdicts == {"lost-1x2": "BROKEN"}


@pytest.mark.slow
def test_13_the_noise_is_larger_than_the_margin(simulated: Yard) -> None:
    fast = WORKLOAD + '[local]\nparameters = { seconds = "0.1", throughput = "12.5" }\n'
    simulated.suite(workload=fast, thresholds=THRESHOLDS.replace("at_least = 1 ", "at_least = 24.5 "))
    assert simulated.pytest("suites", "--nodes", "1").code == 13  # 2 % of noise are assumed
    remember(simulated.folder / "reports" / "ledger.db", "toy-1x2", spread(25.0, 1.0, 30))
    ended = simulated.pytest("suites", "--nodes", "1")
    assert ended.code == ended.results["exit_code"] == 13, ended.out
    assert ended.verdicts == {"toy-1x2": "INCONCLUSIVE"}


def test_143_terminated(yard: Yard) -> None:
    ended = interrupted(yard, signal.SIGTERM)
    assert ended.code == ended.results["exit_code"] == 143, ended.out


def require(yard: Yard, *lines: str) -> list[str]:
    (yard.folder / "required.txt").write_text("".join(f"{line}\n" for line in lines))
    return ["--aisbench-require", "required.txt"]


@WORKERS
def test_11_each_required_case_that_is_missing_says_why(yard: Yard, workers: list[str]) -> None:
    yard.suite("good")
    yard.suite("veto", test=SKIPPED)
    yard.suite("staged", test=HEAD + "def test_code(stage):\n    assert stage.code\n")
    manifest = require(
        yard,
        "# what the centre accepts",
        *("good-1x2", "good-2x2  # two nodes", "", "veto-1x2", "staged-1x2", "bert-1x8"),
    )
    ended = yard.pytest("suites", "--nodes", "1", *manifest, *workers)
    assert ended.code == ended.results["exit_code"] == 11, ended.out
    assert ended.results["settings"]["required"] == ["good-1x2", "good-2x2", "veto-1x2", "staged-1x2", "bert-1x8"]
    assert [line for line in ended.out.splitlines() if line.startswith("missing: ")] == [
        "missing: good-2x2: deselected",
        "missing: veto-1x2: skipped: no cards",
        "missing: staged-1x2: no selected test judges it",
        "missing: bert-1x8: not collected",
    ]


@WORKERS
def test_11_also_where_nothing_is_collected(yard: Yard, workers: list[str]) -> None:
    (yard.folder / "suites").mkdir()
    ended = yard.pytest("suites", *require(yard, "toy-1x2"), *workers)
    assert ended.code == 11, ended.out
    assert "missing: toy-1x2: not collected" in ended.out
    assert not (yard.folder / "reports").exists()


@pytest.mark.slow
def test_what_is_required_and_judged_is_not_missing(yard: Yard) -> None:
    """Passed, and failed: a case that failed has run."""
    yard.suite("good")
    (yard.folder / "required.toml").write_text('cases = ["good-1x2"]\n')
    assert yard.pytest("suites", "--nodes", "1", "--aisbench-require", "required.toml").code == 0
    yard.suite("good", thresholds=HARD)
    ended = yard.pytest("suites", "--nodes", "1", *require(yard, "good-1x2", "good-2x2"))
    assert ended.code == 1
    assert "missing: good-2x2: deselected" in ended.out


@pytest.mark.parametrize(("asked", "code"), [("--collect-only", 0), ("--setup-plan", 0), ("--aisbench-dry-run", 5)])
def test_where_nothing_is_to_be_run_nothing_is_missing(yard: Yard, asked: str, code: int) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1", asked, *require(yard, "bert-1x8"))
    assert ended.code == code, ended.out
    assert "missing" not in ended.out


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("none.txt", None, "cannot be read: No such file or directory"),
        ("empty.txt", "# nothing yet\n", "requires nothing"),
        ("empty.toml", "cases = []\n", "requires nothing"),
        ("list.txt", "toy-1x2\ntoy\n", "list.txt:2: 'toy' is no case id"),
        ("list.toml", "cases = [7]\n", "7 is no case id"),
        ("more.toml", 'cases = ["toy-1x2"]\nnodes = 2\n', "is not cases = […] alone"),
        ("torn.toml", "cases = [\n", "torn.toml"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_exit_4(yard: Yard, card: Path, name: str, text: str, wrong: str) -> None:
    yard.suite()
    if text is not None:
        (yard.folder / name).write_text(text)
    before = submitted(card)
    ended = yard.pytest("suites", "--nodes", "1", env={"AISBENCH_REQUIRE": name})
    assert ended.code == 4
    (line,) = [line for line in ended.out.splitlines() if line.startswith("ERROR")]
    assert "AISBENCH_REQUIRE: " in line
    assert wrong in line
    assert submitted(card) == before


@pytest.mark.slow
def test_one_command_writes_the_manifest_of_a_collection(yard: Yard) -> None:
    yard.suite("b")
    yard.suite("a")
    done = yard.aisbench("require", "--nodes", "1,2", "suites", "-k", "not 2x2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a-1x2\nb-1x2\n"
    (yard.folder / "required.txt").write_text(done.stdout)
    assert yard.pytest("suites", "--nodes", "1", "--aisbench-require", "required.txt").code == 0
