"""`ma-pre-start.sh`: the files beside the entry, and what bash does with the script on a node."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_aisbench.engine import suites
from pytest_aisbench.engine.staging import code_tree
from pytest_aisbench.engine.suites import level_fault
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.model.case import Update, Workload
from pytest_aisbench.platforms.modelarts import image_rules

NODES = SimpleNamespace(additions=image_rules.pre_start_files)  # what of ModelArts the code is staged for
CANN = "Ascend-cann-nnae_5.0.2.1_linux-aarch64.run"
WHEEL = "mindspore ascend-1.3.whl"  # a blank, so that quoting shows
FAKE = '#!/bin/bash\necho "$(basename "$0") $*" >> "$CALLS"\nexit ${FAIL_RUN:-0}\n'


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A workload's staged code on a node, with stand-ins for pip and sudo; runs the pre-start script."""

    class Node:
        calls = tmp_path / "calls"
        job_dir = tmp_path / "user-job-dir"

        def __init__(self) -> None:
            tools = tmp_path / "bin"
            tools.mkdir()
            for name in ("pip", "sudo"):
                body = "exit ${FAIL_PIP:-0}" if name == "pip" else 'exec "$@"'
                (tools / name).write_text(f'#!/bin/bash\necho "{name} $*" >> "$CALLS"\n{body}\n')
                (tools / name).chmod(0o755)
            self.environment = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(self.calls)}

        def stage(self, workload: Workload) -> None:
            for leaf in code_tree(workload, NODES).files:
                target = self.job_dir / workload.code_name / leaf.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(leaf.source).read_bytes() if leaf.written is None else leaf.written)

        def start(self, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["bash", "-c", command],
                cwd=self.job_dir,
                env={**self.environment, **variables},
                capture_output=True,
                text=True,
                check=False,
            )

        @property
        def log(self) -> list[str]:
            lines = self.calls.read_text().splitlines() if self.calls.exists() else []
            return [line.replace(f"{self.job_dir}/bert/src/", "") for line in lines]

    return Node()


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    folder = tmp_path / "suite"
    for name, text in {"code/src/run_pretrain.py": "", f"new/{CANN}": FAKE, f"new/{WHEEL}": "wheel"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    update = Update((f"new/{WHEEL}", f"new/{CANN}"), {"GLOG_v": "3"})
    return Workload("bert", str(folder), ("code",), "src/run_pretrain.py", "mindspore", 8, {}, update=update)


@pytest.mark.parametrize(
    "command",
    [
        "bash bert/src/ma-pre-start.sh && env",
        ". bert/src/ma-pre-start.sh; env",
        "cd /; . $HERE/bert/src/ma-pre-start.sh; env",
        'bash -c "$(cat bert/src/ma-pre-start.sh)"',
        "cd /; MA_JOB_DIR=$HERE bash -s < $HERE/bert/src/ma-pre-start.sh",
    ],
)
def test_it_installs_from_wherever_and_however_it_is_started(node: Any, workload: Workload, command: str) -> None:
    node.stage(workload)
    done = node.start(command, HERE=str(node.job_dir))
    assert done.returncode == 0, done.stderr
    installed = [line for line in node.log if not line.startswith("sudo")]
    assert installed == [f"pip install run/{WHEEL}", f"{CANN} --upgrade"]
    assert ("GLOG_v=3" in done.stdout) == command.startswith((".", "cd /; . "))


@pytest.mark.parametrize(("failing", "name"), [("FAIL_PIP", WHEEL), ("FAIL_RUN", CANN)])
def test_an_installation_that_fails_fails_the_job(node: Any, workload: Workload, failing: str, name: str) -> None:
    node.stage(workload)
    done = node.start(". bert/src/ma-pre-start.sh; echo went on", **{failing: "1"})
    assert done.returncode == 1
    assert f"{name} was not installed" in done.stderr
    assert "went on" not in done.stdout


def test_files_that_did_not_arrive_fail_the_job(node: Any, workload: Workload) -> None:
    node.stage(workload)
    (node.job_dir / f"bert/src/run/{WHEEL}").unlink()
    done = node.start("bash bert/src/ma-pre-start.sh")
    assert done.returncode == 1
    assert "nowhere to be found" in done.stderr


def test_the_workloads_own_script_is_kept_and_has_the_last_word(node: Any, workload: Workload) -> None:
    own = Path(workload.folder) / "code/src/ma-pre-start.sh"
    text = "#!/bin/bash\nexport GLOG_v=1\nexport MINE=yes\nexit 0\n"
    own.write_text(text)
    node.stage(workload)
    done = node.start("trap env EXIT; . bert/src/ma-pre-start.sh")
    assert {"GLOG_v=1", "MINE=yes"} <= set(done.stdout.splitlines())
    assert f"pip install run/{WHEEL}" in node.log
    assert own.read_text() == text


def test_without_an_update_the_own_script_is_staged_as_it_is(workload: Workload) -> None:
    own = Path(workload.folder) / "code/src/ma-pre-start.sh"
    own.write_text("export MINE=yes\n")
    leaves = {leaf.path: leaf for leaf in code_tree(replace(workload, update=None), NODES).files}
    assert sorted(leaves) == ["src/ma-pre-start.sh", "src/run_pretrain.py"]
    assert leaves["src/ma-pre-start.sh"].written is None


def test_a_python_script_beside_it_is_not_silently_ignored(workload: Workload) -> None:
    (Path(workload.folder) / "code/src/ma-pre-start.py").write_text("")
    with pytest.raises(UsageFault, match=r"ma-pre-start.py would not be run"):
        code_tree(workload, NODES)


def test_values_are_quoted(node: Any, workload: Workload) -> None:
    node.stage(replace(workload, update=Update((), {"GREETING": "it's $HOME; rm -rf x"})))
    done = node.start('. bert/src/ma-pre-start.sh; printf "%s" "$GREETING"')
    assert done.stdout == "it's $HOME; rm -rf x"


def test_the_address_of_the_code_follows_the_update(workload: Workload) -> None:
    digests = {
        code_tree(replace(workload, update=update), NODES).digest
        for update in (None, workload.update, Update(exports={"GLOG_v": "3"}), Update(exports={"GLOG_v": "2"}))
    }
    assert len(digests) == 4


WORKLOAD = """name = "toy"
code = ["code"]
entry = "train.py"
[metrics.throughput]
unit = "images/s"
[modelarts]
flavor = "f"
[modelarts.update]
{update}
"""


def load(folder: Path, update: str, platform: str = "modelarts") -> Workload:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/train.py").write_text("")
    (folder / "workload.toml").write_text(WORKLOAD.replace("{update}", update))
    (folder / "thresholds.toml").write_text("")
    return suites.load_suite(folder, platform, {"flavor"}, {"local", "modelarts"}).workload


def test_the_section_of_a_suite(tmp_path: Path) -> None:
    for name in (CANN, "a.whl", "b.whl"):
        (tmp_path / name).write_text("")
    text = f'cann = ["{CANN}"]\nwheels = ["b.whl", "a.whl"]\nGLOG_v = 3\nASCEND_GLOBAL_LOG_LEVEL = "4"\n'
    update = load(tmp_path, text).update
    assert update == Update(("b.whl", "a.whl", CANN), {"GLOG_v": "3", "ASCEND_GLOBAL_LOG_LEVEL": "4"})
    assert load(tmp_path, text, "local").update is None


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ("GLOG_v = 4", ["workload.toml:9", "GLOG_v is none of 0 INFO, 1 WARNING, 2 ERROR, 3 FATAL"]),
        ("ASCEND_GLOBAL_LOG_LEVEL = 5", ["workload.toml:9", "0 DEBUG", "4 NULL"]),
        ("ASCEND_GLOBAL_LOG_LEVEL = true", ["workload.toml:9", "0 DEBUG"]),
        ('cann = ["Ascend-hdk.run"]', ["workload.toml:9", "nnae"]),
        (f'cann = ["{CANN}"]', ["workload.toml:9", "there is no file"]),
        ('wheels = ["a.zip"]', ["workload.toml:9", "a wheel"]),
        ('wheels = "a.whl"', ["workload.toml:9", "list of texts"]),
        ("wheel = []", ["workload.toml:9", "unknown key 'wheel'", "known: wheels, cann, GLOG_v"]),
    ],
)
def test_what_is_wrong_in_the_section_names_its_line(tmp_path: Path, update: str, words: list[str]) -> None:
    with pytest.raises(UsageFault) as caught:
        load(tmp_path, update)
    assert [word for word in words if word not in str(caught.value)] == []


def test_levels_in_the_environment_are_checked_as_well(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"workload.toml:11: environment: GLOG_v is none of"):
        load(tmp_path, "GLOG_v = 1\n[modelarts.environment]\nGLOG_v = 9")
    assert not level_fault("ANYTHING", "else")
