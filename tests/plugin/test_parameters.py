"""`pytest.mark.parametrize` on a test that trains: its arguments reach the job, and make a case each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from yard import SCRIPT, THRESHOLDS, WORKERS, WORKLOAD, Ended, Yard, submitted

PARAMETRIZED = """import pytest

pytestmark = pytest.mark.workload("{name}", shapes=["1x1"]MORE)


@pytest.mark.parametrize("batch_size", [16, 32])
def test_trains(trial, batch_size):
    trial.verdict.require()
"""
# Ten images a second for each that a step has.
TRAINS_BY_BATCH = SCRIPT.replace(
    'write(f"throughput_{rank}", "12.5")',
    'parser.add_argument("--batch_size", type=int, default=1)\n'
    'write(f"throughput_{rank}", str(10 * parser.parse_known_args()[0].batch_size))',
)
NAMED = WORKLOAD.replace("devices = 2", "devices = 1\nparameters = { batch_size = 8, epochs = 2 }")


def speeds(ended: Ended) -> dict[str, float]:
    return {case["id"]: case["metrics"]["throughput"]["value"] for case in ended.results["cases"]}


@WORKERS
def test_each_value_trains_a_job_and_is_judged_by_claims_of_its_own(yard: Yard, card: Path, workers: list[str]) -> None:
    scoped = THRESHOLDS + '[local."1x1[batch_size=32]"]\nthroughput = { at_least = 1000 }\n'
    yard.suite("par", script=TRAINS_BY_BATCH, workload=NAMED, thresholds=scoped, test=PARAMETRIZED.replace("MORE", ""))
    before = submitted(card)
    ended = yard.pytest("suites", *workers)
    assert ended.code == 1, ended.out
    assert "1 failed, 1 passed" in ended.out
    assert submitted(card) == before + 2
    assert ended.verdicts == {"par-1x1[batch_size=16]": "PASSED", "par-1x1[batch_size=32]": "FAILED"}
    assert speeds(ended) == {"par-1x1[batch_size=16]": 160.0, "par-1x1[batch_size=32]": 320.0}
    small, large = ended.results["cases"]
    assert (small["parameters"], large["parameters"]) == ({"batch_size": "16"}, {"batch_size": "32"})
    assert "wanted >= 1000 images/s" in large["reason"]
    # The summary, the request and the log have the case by its name, too.
    assert "par-1x1[batch_size=32]" in ended.out.partition("aisbench")[2]
    sent = json.loads((ended.reports / "requests" / "par-1x1[batch_size=16].json").read_text(encoding="utf-8"))
    assert '"16"' in json.dumps(sent)
    assert all((ended.reports / log).is_file() for case in (small, large) for log in case["trials"][0]["logs"])


@pytest.mark.slow
def test_an_argument_that_only_the_marker_names_reaches_the_job(yard: Yard) -> None:
    test = PARAMETRIZED.replace("MORE", ', parameters=["batch_size"]')
    workload = WORKLOAD.replace("devices = 2", "devices = 1")
    claims = THRESHOLDS + '[local."*[batch_size=16]"]\nthroughput = { at_least = 150 }\n'
    yard.suite("par", script=TRAINS_BY_BATCH, workload=workload, thresholds=claims, test=test)
    ended = yard.pytest("suites")
    assert ended.code == 0, ended.out
    assert speeds(ended) == {"par-1x1[batch_size=16]": 160.0, "par-1x1[batch_size=32]": 320.0}
    # The manifest of required cases knows them, and so does the history.
    (yard.folder / "required.txt").write_text("par-1x1[batch_size=16]\npar-1x1[batch_size=64]\n")
    ended = yard.pytest("suites", "--aisbench-require", "required.txt")
    assert ended.code == 11, ended.out
    assert "par-1x1[batch_size=64]" in ended.out
    history = yard.aisbench("history", "par-1x1[batch_size=32]")
    assert "320" in history.stdout, history.stdout + history.stderr


def test_an_argument_that_nobody_uses_is_refused_before_anything_is_paid_for(yard: Yard, card: Path) -> None:
    yard.suite("par", test=PARAMETRIZED.replace("MORE", "").replace("1x1", "1x2"))
    before = submitted(card)
    ended = yard.pytest("suites")
    assert ended.code == 4, ended.out
    assert "neither the job nor the test uses the argument 'batch_size'" in " ".join(ended.out.split())
    assert submitted(card) == before


def test_an_argument_of_generated_tests_that_nothing_uses_is_refused_too(yard: Yard, card: Path) -> None:
    test = PARAMETRIZED.replace("MORE", "").replace("1x1", "1x2")
    place = yard.suite("par", test=test.replace('@pytest.mark.parametrize("batch_size", [16, 32])\n', ""))
    (place / "conftest.py").write_text(
        "def pytest_generate_tests(metafunc):\n"
        "    if 'batch_size' in metafunc.fixturenames:\n"
        "        metafunc.parametrize('batch_size', [16, 32])\n"
    )
    before = submitted(card)
    ended = yard.pytest("suites")
    assert ended.code == 4, ended.out
    assert "neither the job nor the test uses the argument 'batch_size'" in " ".join(ended.out.split())
    assert submitted(card) == before


@pytest.mark.slow
def test_a_claim_knows_other_spellings_of_a_number_and_is_named_if_no_value_fits(yard: Yard) -> None:
    claims = """[local."*[batch_size=16.0]"]
throughput = { at_least = 1000 }
[local."1x1[batch_size=64]"]
throughput = { at_least = 2000 }
"""
    yard.suite("par", workload=NAMED, thresholds=THRESHOLDS + claims, test=PARAMETRIZED.replace("MORE", ""))
    ended = yard.pytest("suites")
    assert ended.verdicts == {"par-1x1[batch_size=16]": "FAILED", "par-1x1[batch_size=32]": "PASSED"}, ended.out
    idle = re.findall(r"thresholds.toml: '(\S+)': no test gives these values, so its claims judge nothing", ended.out)
    assert idle == ["1x1[batch_size=64]"]
    one = yard.pytest("suites", "-k", "32")
    assert "no test gives these values" not in one.out


@pytest.mark.slow
def test_the_order_of_the_marks_makes_no_other_case(yard: Yard, card: Path) -> None:
    marks = ['@pytest.mark.parametrize("epochs", [3])', '@pytest.mark.parametrize("batch_size", ["a,b=1"])']
    tests = "".join(
        f"\n\n{chr(10).join(order)}\ndef test_{number}(trial, epochs, batch_size):\n    trial.verdict.require()\n"
        for number, order in enumerate((marks, marks[::-1]))
    )
    head = 'import pytest\n\npytestmark = pytest.mark.workload("{name}", shapes=["1x1"])\n'
    before = submitted(card)
    yard.suite("par", workload=NAMED, test=head + tests)
    ended = yard.pytest("suites")
    (case_id,) = ended.verdicts
    assert re.fullmatch(r"par-1x1\[batch_size=a-b-1~\w{6},epochs=3\]", case_id)
    assert submitted(card) == before + 1
    # A claim for it alone is written as its id has it.
    claim = THRESHOLDS + f'[local."{case_id.removeprefix("par-")}"]\nthroughput = {{ at_least = 1000 }}\n'
    yard.suite("par", workload=NAMED, test=head + tests, thresholds=claim)
    assert yard.pytest("suites").verdicts == {case_id: "FAILED"}


def test_an_argument_that_the_test_itself_uses_makes_no_case(yard: Yard, card: Path) -> None:
    test = """import pytest

pytestmark = pytest.mark.workload("{name}", nodes=[1])

@pytest.fixture
def limit(least):
    return least

@pytest.mark.parametrize("metric", ["throughput", "accuracy"])
def test_is_measured(trial, metric):
    assert any(each.metric == metric for each in trial.measurements)

@pytest.mark.parametrize("least", [1, 2])
def test_is_fast(trial, limit, least):
    assert trial.measurements[0].value > limit
"""
    yard.suite(test=test)
    before = submitted(card)
    ended = yard.pytest("suites")
    assert ended.code == 0, ended.out
    assert "4 passed" in ended.out
    assert submitted(card) == before + 1
    assert ended.verdicts == {"toy-1x2": "PASSED"}


@pytest.mark.parametrize(
    ("workload", "thresholds", "marker", "error"),
    [
        (
            NAMED,
            THRESHOLDS + '[local."*[bach_size=16]"]\nthroughput = { at_least = 9 }\n',
            "",
            "no test gives 'bach_size'",
        ),
        (NAMED, THRESHOLDS + '[local."1x1[16]"]\nthroughput = { at_least = 9 }\n', "", "not a shape with arguments"),
        (NAMED, THRESHOLDS, ', parameters="batch_size"', "parameters= is a list of names"),
        (NAMED, THRESHOLDS, ', parameters=["lr"]', "parameters= names 'lr', which has no value"),
        (NAMED, THRESHOLDS, "", "batch_size='[16]' cannot be a parameter of a job"),
    ],
)
def test_a_mistake_in_arguments_is_one_line(
    yard: Yard, workload: str, thresholds: str, marker: str, error: str
) -> None:
    test = PARAMETRIZED.replace("MORE", marker)
    if "cannot be" in error:
        test = test.replace("[16, 32]", "[[16]]")
    yard.suite("par", workload=workload, thresholds=thresholds, test=test)
    ended = yard.pytest("suites")
    assert ended.code == 4, ended.out
    assert error in " ".join(ended.out.split())
