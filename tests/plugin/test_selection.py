"""Which cases run, and that nothing else is touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commands import run
from yard import CACHELESS, SCRIPT, WORKERS, Yard, submitted


def test_nodes_selects_and_the_rest_is_deselected(yard: Yard) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "2")
    assert ended.code == 0, ended.out
    assert "1 passed, 1 deselected" in ended.out
    assert ended.verdicts == {"toy-2x2": "PASSED"}
    assert "aisbench: nodes=2 (--nodes)" in ended.out


def test_several_node_counts(yard: Yard) -> None:
    yard.suite()
    assert yard.pytest("suites", "--nodes", "1,2").verdicts == {"toy-1x2": "PASSED", "toy-2x2": "PASSED"}


def test_no_match_is_exit_5_and_writes_nothing(yard: Yard) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "16")
    assert ended.code == 5
    assert "2 deselected" in ended.out
    assert "aisbench: no case has 16 nodes; there are 1, 2" in ended.out
    assert not (yard.folder / "reports").exists()


def test_devices_on_the_command_line_win(yard: Yard) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-devices", "3")
    assert ended.verdicts == {"toy-1x3": "PASSED"}
    assert len(ended.results["cases"][0]["trials"][0]["throughput_by_rank"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--collect-only"], 0), (["--setup-plan"], 0), (["-k", "nothing_like_it"], 5), (["-m", "not workload"], 5)],
)
def test_what_runs_no_test_submits_no_job(yard: Yard, card: Path, arguments: list[str], code: int) -> None:
    yard.suite()
    before = submitted(card)
    ended = yard.pytest("suites", *arguments)
    assert ended.code == code, ended.out
    assert submitted(card) == before
    assert not (yard.folder / "reports").exists()


def test_a_skipped_case_submits_no_job_and_is_not_green(yard: Yard, card: Path) -> None:
    yard.suite(test="import pytest\n" + "@pytest.mark.skip(reason='not today')\n" + _marked("toy"))
    before = submitted(card)
    ended = yard.pytest("suites", "--nodes", "1")
    assert submitted(card) == before
    assert "1 skipped" in ended.out


def _marked(name: str) -> str:
    return f'@pytest.mark.workload("{name}", nodes=[1, 2])\ndef test_trains(trial):\n    trial.verdict.require()\n'


def test_all_skipped_at_run_time_is_exit_5(yard: Yard) -> None:
    body = "@pytest.fixture\ndef veto():\n    pytest.skip('no')\n"
    test = f"import pytest\n{body}{_marked('toy').replace('(trial)', '(veto, trial)')}"
    yard.suite(test=test)
    assert yard.pytest("suites", "--nodes", "1").code == 5


@pytest.mark.slow
def test_k_submits_only_what_it_selects(yard: Yard, card: Path) -> None:
    yard.suite()
    yard.suite("other")
    before = submitted(card)
    ended = yard.pytest("suites", "-k", "other and 1x2")
    assert ended.verdicts == {"other-1x2": "PASSED"}
    assert submitted(card) == before + 1


def test_what_is_not_selected_may_be_as_it_is(yard: Yard) -> None:
    yard.suite("good")
    (yard.suite("bad") / "workload.toml").write_text("nonsense")
    ended = yard.pytest("suites", "-k", "good", "--nodes", "1")
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"good-1x2": "PASSED"}


@pytest.mark.slow
def test_lf_runs_again_what_failed(yard: Yard) -> None:
    yard.suite()
    yard.suite("slow", thresholds='[local."*"]\nthroughput = { at_least = 1e9 }\naccuracy = { at_least = 0.5 }\n')
    command = [part for part in yard.command("suites", "--nodes", "1") if part not in CACHELESS]
    for arguments in ([], ["--lf"]):
        run(*command, *arguments, folder=yard.folder, environment=yard.environment())
    results = json.loads((yard.folder / "reports/latest/results.json").read_text())
    assert [case["id"] for case in results["cases"]] == ["slow-1x2"]


@pytest.mark.slow
def test_sw_goes_on_where_it_stopped(yard: Yard) -> None:
    """The one that passed is not submitted again, and the one behind the failure not before its turn."""
    for name, end in (("a", "0"), ("b", "3"), ("c", "0")):
        yard.suite(name, script=f"{SCRIPT}\nraise SystemExit({end})\n")
    command = [part for part in yard.command("suites", "--nodes", "1", "--sw") if part not in CACHELESS]
    judged = []
    for _ in range(2):
        done = run(*command, "--aisbench-max-jobs", "1", folder=yard.folder, environment=yard.environment())
        assert done.returncode != 0
        results = json.loads((yard.folder / "reports/latest/results.json").read_text())
        judged.append({case["id"]: case["verdict"] for case in results["cases"]})
    assert judged[0]["b-1x2"] == "FAILED"
    assert "a-1x2" not in judged[1]
    assert judged[1]["b-1x2"] == "FAILED"


@pytest.mark.slow
def test_maxfail_stops_at_its_number(yard: Yard) -> None:
    for name in ("a", "b"):
        yard.suite(name, script="raise SystemExit(3)")
    yard.suite("long", script="import time; time.sleep(600)")
    ended = yard.pytest("suites", "--nodes", "1", "--maxfail", "2", "--aisbench-max-jobs", "3")
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"a-1x2": "FAILED", "b-1x2": "FAILED", "long-1x2": None}


@pytest.mark.slow
@WORKERS
def test_x_stops_at_the_first_failure_and_leaves_no_job(yard: Yard, workers: list[str]) -> None:
    yard.suite("a", script="import sys; sys.exit(3)")
    yard.suite("b", script="import time; time.sleep(600)")
    ended = yard.pytest("suites", "--nodes", "1", "-x", "--aisbench-max-jobs", "2", *workers)
    assert ended.code == 1, ended.out
    assert ended.verdicts == {"a-1x2": "FAILED", "b-1x2": None}
    (trial,) = ended.results["cases"][1]["trials"]
    assert trial["phase"] in {"CANCELLED", None}
    assert ended.results["exit_code"] == 1


def test_a_plain_run_elsewhere_writes_and_imports_nothing(yard: Yard) -> None:
    (yard.folder / "test_plain.py").write_text(
        "import sys\n\ndef test_plain():\n"
        "    heavy = {'requests', 'numpy', 'obs', 'huaweicloudsdkcore', 'sqlite3', 'multiprocessing.connection',\n"
        "             'pytest_aisbench.session.controller', 'pytest_aisbench.engine',\n"
        "             *(f'pytest_aisbench.platforms.{name}' for name in ('modelarts', 'local', 'apulis'))}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    ended = yard.pytest("-p", "no:allure_pytest", "-p", "no:xdist", cloud=False, fork=False)
    assert ended.code == 0, ended.out
    assert "aisbench:" not in ended.out
    assert sorted(path.name for path in yard.folder.iterdir() if path.name != "__pycache__") == ["test_plain.py"]


def test_plain_skips_elsewhere_stay_green(yard: Yard) -> None:
    (yard.folder / "test_plain.py").write_text("import pytest\n\n@pytest.mark.skip\ndef test_plain():\n    pass\n")
    assert yard.pytest(cloud=False).code == 0


def test_help_fixtures_and_markers_tell_all(tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        return run(sys.executable, "-m", "pytest", *arguments, folder=tmp_path).stdout

    helped = told("--help")
    assert "--nodes=N,N" in helped
    assert "aisbench_max_jobs" in helped
    fixtures = told("--fixtures", "-p", "no:cacheprovider")
    for name in ("modelarts_session", "obs", "stage", "job", "trial", "case", "tester"):
        assert f"\n{name}" in fixtures
    assert "trial.verdict.require()" in fixtures
    assert "@pytest.mark.workload(name, nodes=" in told("--markers")
