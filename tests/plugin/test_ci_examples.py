"""The files of docs/ci: what they promise their CI server, and their own commands, run here on a local cloud."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cloud_client import CloudClient
from junit_schema import strictly
from waiting import wait_until
from yard import WORKLOAD, Yard, submitted

import pytest_aisbench
from pytest_aisbench.localcloud.faults import Fault
from pytest_aisbench.localcloud.server import LocalCloud

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "ci"
FAST = WORKLOAD + '[local]\nparameters = { seconds = "0.1" }\n'


def gitlab() -> Any:
    return yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))


def github() -> Any:
    return yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text(encoding="utf-8"))


def jenkins() -> str:
    return (EXAMPLES / "Jenkinsfile").read_text(encoding="utf-8")


def commands(name: str) -> list[str]:
    """What each hands to a shell, in its order."""
    if name == "gitlab-ci.yml":
        job = gitlab()["acceptance"]
        found = [*job["before_script"], *job["script"], *job["after_script"]]
    elif name == "github-workflow.yml":
        found = [step["run"] for step in github()["jobs"]["acceptance"]["steps"] if "run" in step]
    else:
        found = [one or two for one, two in re.findall(r"\bsh '([^']*)'|\bsh\(.*script: '([^']*)'\)", jenkins())]
    assert sum(f"pip install pytest-aisbench=={pytest_aisbench.__version__}" in command for command in found) == 1
    return [command for command in found if "pip install" not in command]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Yard]:
    """A workspace of two suites on a local cloud that loses the first job it is given."""
    with LocalCloud(engine="simulated", faults=[Fault(name="lost-1x2", job="lost", times=1)]) as cloud:
        (tmp_path / "card.json").write_text(json.dumps(cloud.card()))
        yard = Yard(tmp_path / "workspace", tmp_path / "card.json")
        yard.suite(workload=FAST)
        yield yard


def run(site: Yard, command: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = site.environment(PATH=path, HOME=str(site.folder.parent), AISBENCH_CLOUD=str(site.card), **more)
    deaf = ["sh", "-c", "trap '' INT; exec sh -ec \"$0\"", command]  # to Ctrl-C, as Jenkins starts its shells
    return subprocess.run(deaf, cwd=site.folder, env=env, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.parametrize("name", ["gitlab-ci.yml", "Jenkinsfile"])
def test_its_commands_train_and_leave_what_it_collects(site: Yard, name: str) -> None:
    made = run(site, "aisbench require suites/ --nodes 1,2 > required.txt")
    assert made.returncode == 0, made.stderr
    assert (site.folder / "required.txt").read_text() == "toy-1x2\ntoy-2x2\n"
    for command in commands(name):
        done = run(site, command)
        assert done.returncode == 0, done.stdout + done.stderr
    strictly(site.folder / "latest" / "junit.xml")
    for file in ("metrics.txt", "metrics.csv", "summary.md", "report.html", "results.json"):
        assert (site.folder / "latest" / file).is_file(), file
    ledgers = {"gitlab-ci.yml": site.folder / "ledger", "Jenkinsfile": site.folder.parent / "aisbench"}
    assert (ledgers[name] / "ledger.db").is_file()
    assert not (site.folder / "reports" / "ledger.db").exists()


def test_the_workflow_tries_again_what_the_platform_broke_and_tells_github(site: Yard) -> None:
    site.suite("lost", workload=FAST)
    (site.folder / "required.txt").write_text("toy-1x2\nlost-1x2\n")
    command = commands("github-workflow.yml")[0]
    summary = site.folder.parent / "step.md"
    summary.write_text("# before\n")
    done = run(
        site, command, AISBENCH_MAX_TRIALS="1", GITHUB_STEP_SUMMARY=str(summary), GITHUB_ACTIONS="true",
        GITHUB_WORKSPACE=str(site.folder), **part(1),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = [*re.findall(r"^## aisbench: exit code (\d+)", summary.read_text(), re.MULTILINE)]
    assert (first, second) == ("12", "0")
    assert summary.read_text().startswith("# before\n")
    (notice,) = re.findall(r"^::.*", done.stdout, re.MULTILINE)
    assert notice.startswith("::error file=suites/lost/test_lost.py,line=6,title=lost-1x2 BROKEN::")


@pytest.mark.parametrize("name", ["github-workflow.yml", "gitlab-ci.yml", "Jenkinsfile"])
def test_what_a_person_stopped_is_not_started_again(site: Yard, name: str) -> None:
    """Also where the platform broke another case, which alone would be worth another try."""
    site.suite("lost", workload=FAST)
    site.suite("held", workload=FAST.replace('"0.1"', '"600"'))
    (site.folder / "required.txt").write_text("toy-1x2\nlost-1x2\n")
    (command,) = [each for each in commands(name) if "pytest suites/" in each]
    with CloudClient(json.loads(site.card.read_text())) as client, ThreadPoolExecutor(1) as aside:
        done = aside.submit(run, site, command, AISBENCH_MAX_TRIALS="1", **part(1))
        for shape in ("1x2", "2x2"):
            wait_until(lambda: [client.stop(job) for job in running(client, f"held-{shape}")])  # noqa: B023
        ended = done.result()
    assert ended.returncode == {"github-workflow.yml": 12, "gitlab-ci.yml": 2, "Jenkinsfile": 12}[name], ended.stdout
    assert len([*(site.folder / "reports").glob("*/results.json")]) == 2  # of one run, and what `latest` points to
    (asked,) = [each for each in commands("Jenkinsfile") if "grep" in each]
    assert run(site, asked).returncode == 1


def part(number: int, seconds: int = 170) -> dict[str, str]:
    """The variables of a part of the workflow."""
    facts = {"PART": number, "PARTS": 4, "PART_SECONDS": seconds, "GITHUB_RUN_ID": 77, "GITHUB_RUN_ATTEMPT": 1}
    return {name: str(value) for name, value in facts.items()}


def test_a_part_whose_time_is_up_leaves_its_jobs_to_the_next_which_submits_nothing_twice(site: Yard) -> None:
    site.suite(workload=FAST.replace('"0.1"', '"8"'))
    (site.folder / "required.txt").write_text("toy-1x2\ntoy-2x2\n")
    train, after = commands("github-workflow.yml")
    first = run(site, train, **part(1, seconds=5))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "::notice::the jobs run on, and the next part takes them over" in first.stdout
    second = run(site, train, **part(2))
    assert second.returncode == 0, second.stdout + second.stderr
    assert json.loads((site.folder / "reports/latest/results.json").read_text())["exit_code"] == 0
    assert submitted(site.card) == 2
    third = run(site, train, **part(3))
    assert (third.returncode, third.stdout) == (0, "an earlier part ended the run with exit code 0\n")
    flush = after.splitlines()[0]  # Allure's page is another test's
    assert re.search(r"^(delivered|nothing is spooled)", run(site, flush).stdout), "how the first part ended"
    assert run(site, flush).stdout == "nothing is spooled\n"


def test_the_last_part_is_red_if_its_time_is_up(site: Yard) -> None:
    site.suite(workload=FAST.replace('"0.1"', '"600"'))
    (site.folder / "required.txt").write_text("toy-1x2\n")
    last = run(site, commands("github-workflow.yml")[0], **part(4, seconds=5))
    assert last.returncode == 143, last.stdout + last.stderr


@pytest.mark.parametrize(
    ("file", "schema"), [("gitlab-ci.yml", "gitlab-ci.json"), ("github-workflow.yml", "github-workflows.json")]
)
def test_it_is_what_its_server_takes(file: str, schema: str) -> None:
    """By the schemas that check-jsonschema ships."""
    try:
        shipped = distribution("check-jsonschema")
    except PackageNotFoundError:
        pytest.skip("check-jsonschema is not installed")
    place = shipped.locate_file(f"check_jsonschema/builtin_schemas/vendor/{schema}")
    rules = json.loads(Path(str(place)).read_text(encoding="utf-8"))
    document = {
        "on" if key is True else key: value
        for key, value in yaml.safe_load((EXAMPLES / file).read_text(encoding="utf-8")).items()
    }
    validator = jsonschema.validators.validator_for(rules)
    assert [error.message for error in validator(rules).iter_errors(document)] == []


def test_credentials_are_bound_and_pages_published() -> None:
    keys = ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "TESTER_TOKEN")
    train = next(step for step in github()["jobs"]["acceptance"]["steps"] if step.get("name") == "Train and judge")
    assert {key: train["env"][key] for key in keys} == {key: f"${{{{ secrets.{key} }}}}" for key in keys}
    assert re.findall(r"(\w+) = credentials\('", jenkins()) == [*keys]
    assert "publishHTML(" in jenkins()
    assert "allure " in jenkins()
    assert "allure" in gitlab()["allure"]["script"][0]
    assert gitlab()["acceptance"]["artifacts"]["expose_as"]
    steps = github()["jobs"]["acceptance"]["steps"]
    assert all(re.search(r"@v\d+\.\d+\.\d+$", step["uses"]) for step in steps if "uses" in step)
    assert github()["jobs"]["acceptance"]["timeout-minutes"] < 360


def running(client: CloudClient, name: str) -> list[str]:
    jobs = client.search(limit=50)["items"]
    return [
        job["metadata"]["id"] for job in jobs if name in job["metadata"]["name"] and job["status"]["phase"] == "Running"
    ]


def test_gitlab_is_told_what_to_keep_to_retry_and_to_warn_of() -> None:
    job = gitlab()["acceptance"]
    known = {"image", "timeout", "resource_group", "cache", "before_script", "script", "after_script", "retry"}
    assert set(job) == known | {"allow_failure", "artifacts"}
    assert job["retry"] == {"max": 1, "exit_codes": [12]}
    assert job["allow_failure"] == {"exit_codes": [13]}
    assert job["cache"]["when"] == job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"] == {"junit": "latest/junit.xml", "metrics": "latest/metrics.txt"}


def test_github_keeps_ledger_and_reports_also_of_a_run_that_failed() -> None:
    workflow = github()
    assert set(workflow) == {"name", True, "concurrency", "permissions", "jobs"}  # YAML 1.1 reads `on` as a yes
    steps = workflow["jobs"]["acceptance"]["steps"]
    assert all(set(step) <= {"name", "uses", "run", "with", "env", "if"} for step in steps)
    assert all(("uses" in step) != ("run" in step) for step in steps)
    kept = [step["with"]["path"] for step in steps if step.get("if") == "always()"]
    assert kept == ["ledger", "reports/"]


def test_the_jenkinsfile_is_one_pipeline_whose_blocks_close() -> None:
    text = re.sub(r"//.*", "", jenkins())
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    depth, opened = 0, []
    for number, char in enumerate(bare):
        if char == "{":
            opened.append((depth, bare[:number].split("\n")[-1].strip()))
            depth += 1
        depth -= char == "}"
        assert depth >= 0
    assert depth == 0
    assert [name for level, name in opened if level == 0] == ["pipeline"]
    assert [name for level, name in opened if level == 1] == ["options", "environment", "stages", "post"]
    for opening, closing in ("()", "[]"):
        assert bare.count(opening) == bare.count(closing)
    for step in ("junit ", "archiveArtifacts ", "plot group", "unstable(", "error("):
        assert step in bare
    assert "code == 13" in bare
