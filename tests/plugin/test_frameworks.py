"""A suite that has a section for a framework trains with it where it is asked to, and says so where it cannot."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
from yard import SCRIPT, WORKLOAD, Yard

from pytest_aisbench.cli import cloud

pytestmark = pytest.mark.slow

BOTH = (
    WORKLOAD
    + """
[local.mindspore]
entry = "large.py"
parameters = { layers = 50 }
"""
)
LARGE = SCRIPT.replace('"12.5"', '"99.5"') + "\nimport sys\nassert '--layers=50' in sys.argv\n"
LARGE += "print('MindSpore version: 2.3.0', flush=True)\n"


def both(yard: Yard) -> None:
    place = yard.suite(workload=BOTH)
    (place / "code" / "large.py").write_text(LARGE)


def rate(ended_results: dict[str, list[dict[str, dict[str, dict[str, float]]]]]) -> float:
    return ended_results["cases"][0]["metrics"]["throughput"]["value"]


def other_python(folder: Path) -> Path:
    """A Python that has every framework, as it says itself, and whose jobs can tell that they run in it."""
    python = folder / "other" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -c ]; then exit 0; fi\n'  # asked whether it has the framework
        # The one beneath our virtual environment, which may lie where a node does not look.
        f'FROM="the other Python" exec {sys.base_prefix}/bin/python3 "$@"\n'
    )
    python.chmod(0o755)
    return python


def test_without_being_asked_it_trains_in_miniature(yard: Yard) -> None:
    both(yard)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 0, ended.out
    assert rate(ended.results) == 25.0
    assert ended.results["cases"][0]["trained_with"]["text"] == "unknown"  # its script tells nothing


def test_asked_to_it_trains_with_the_framework(yard: Yard) -> None:
    both(yard)
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-frameworks", "mindspore")
    assert ended.code == 0, ended.out
    assert rate(ended.results) == 199.0
    assert ended.results["cases"][0]["trained_with"]["text"] == "mindspore 2.3.0"
    assert "toy-1x2: trained with mindspore 2.3.0" in ended.out


def test_the_job_runs_in_the_python_that_has_the_framework(yard: Yard, tmp_path: Path) -> None:
    """One that says so itself, since the framework would take minutes to install."""
    both(yard)
    large = yard.folder / "suites/toy/code/large.py"
    large.write_text(LARGE + "import os; assert os.environ['FROM'] == 'the other Python'\n")
    python = other_python(tmp_path)
    ended = yard.pytest("suites", "--nodes", "1", "--aisbench-frameworks", f"mindspore={python}", cloud=False)
    assert ended.code == 0, ended.out
    assert rate(ended.results) == 199.0


def test_a_framework_that_is_not_installed_is_said_in_one_line_and_is_not_green(yard: Yard, tmp_path: Path) -> None:
    both(yard)
    told = f"mindspore={tmp_path}/python"
    ended = yard.pytest("suites", "--nodes", "1", "-rs", "--aisbench-frameworks", told, cloud=False)
    assert ended.code != 0, ended.out
    assert "1 skipped" in ended.out
    (line,) = [line for line in ended.out.splitlines() if "is not installed" in line]
    assert f"mindspore is not installed for {tmp_path}/python; pip install 'pytest-aisbench[mindspore]'" in line


def test_a_case_without_its_framework_is_missing_where_it_is_required(yard: Yard, tmp_path: Path) -> None:
    both(yard)
    required = tmp_path / "required.txt"
    required.write_text("toy-1x2\n")
    told = ["--aisbench-frameworks", f"mindspore={tmp_path}/python", "--aisbench-require", str(required)]
    ended = yard.pytest("suites", "--nodes", "1", *told, cloud=False)
    assert ended.code == 11, ended.out
    (line,) = [line for line in ended.out.splitlines() if "toy-1x2" in line and "not installed" in line]
    assert "mindspore" in line


def test_an_unknown_framework_is_exit_4(yard: Yard) -> None:
    both(yard)
    ended = yard.pytest("suites", "--aisbench-frameworks", "minspore")
    assert ended.code == 4
    assert "'minspore' is not a framework (mindspore, paddle, torch, horovod, tensorflow)" in ended.out


def test_a_relative_python_is_exit_4(yard: Yard) -> None:
    both(yard)
    ended = yard.pytest("suites", "--aisbench-frameworks", "mindspore=bin/python")
    assert ended.code == 4
    assert "with the absolute path of its Python" in ended.out


def test_a_fault_in_the_section_names_its_line(yard: Yard) -> None:
    both(yard)
    file = yard.folder / "suites/toy/workload.toml"
    file.write_text(file.read_text() + "colour = 1\n")
    ended = yard.pytest("suites", "--aisbench-frameworks", "mindspore")
    assert ended.code == 4
    line = file.read_text().splitlines().index("colour = 1") + 1
    assert f"workload.toml:{line}" in ended.out
    assert "unknown key 'colour'" in ended.out


def test_a_framework_has_claims_of_its_own(yard: Yard) -> None:
    both(yard)
    file = yard.folder / "suites/toy/thresholds.toml"
    file.write_text(file.read_text() + '[local.mindspore."*"]\nthroughput = { at_least = 500 }\n')
    assert yard.pytest("suites", "--nodes", "1").verdicts == {"toy-1x2": "PASSED"}
    asked = yard.pytest("suites", "--nodes", "1", "--aisbench-frameworks", "mindspore")
    assert asked.verdicts == {"toy-1x2": "FAILED"}


@pytest.mark.parametrize("version", ["V2", "V1"])
@pytest.mark.parametrize("framework", ["torch", "paddle", "mindspore"])
def test_a_plain_entry_runs_in_the_python_of_its_framework_once_for_each_rank(
    yard: Yard, tmp_path: Path, framework: str, version: str
) -> None:
    """Without a section of the framework's own, and without an image. V1 gives urls, so the results are not judged."""
    place = yard.suite(workload=WORKLOAD.replace("devices", f'framework = "{framework}"\ndevices'))
    told = "import os\nprint('from', os.environ['FROM'], os.environ['RANK_ID'], 'of', os.environ['RANK_SIZE'])\n"
    (place / "code" / "train.py").write_text(told + (SCRIPT if version == "V2" else ""))
    named = f"{framework}={other_python(tmp_path)}"
    by = ["--aisbench-modelarts-version", version]
    ended = yard.pytest("suites", "--nodes", "1", *by, "--aisbench-frameworks", named, cloud=False)
    assert ended.code == (0 if version == "V2" else 1), ended.out
    log = (ended.reports / "logs/toy-1x2/1/worker-0.log").read_text()
    assert {f"from the other Python {rank} of 2" for rank in (0, 1)} <= set(log.splitlines())


def test_a_cloud_that_is_given_two_frameworks_keeps_both() -> None:
    parser = argparse.ArgumentParser()
    cloud.register(parser.add_subparsers())
    given = ["cloud", "--frameworks", "torch=/a/python", "--frameworks", "paddle=/b/python,mindspore=/c/python"]
    pythons = cloud._interpreters(parser.parse_args(given).frameworks)
    assert pythons == {"torch": "/a/python", "paddle": "/b/python", "mindspore": "/c/python"}
