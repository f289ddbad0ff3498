"""What all training scripts share: how they read their arguments, fetch their data, and which Python can read them."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_python

SUITES = Path(__file__).parents[2] / "suites"
URL = "s3://bucket/imagenet/"
# MoXing, which notes each copy, and may be killed in the middle of its first.
MOXING = """
import os, pathlib, signal
class file:
    def copy_parallel(source, target):
        with open("copies", "a") as notes:
            notes.write(source + "\\n")
        pathlib.Path(target, "half").touch()
        if "DIES" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        if source.endswith("empty/"):
            pathlib.Path(target, "half").unlink()
        else:
            pathlib.Path(target, "whole").touch()
"""
FETCH = """
import os, sys
from contract import fetched
print(fetched(sys.argv[1], os.environ))
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder with the temporary files of a node."""
    (tmp_path / "moxing.py").write_text(MOXING)
    return tmp_path


def rank(node: Path, url: str = URL, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(map(str, (node, SUITES / "miniature")))
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "TMPDIR": str(node), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, url], env=variables, cwd=node, stdout=subprocess.PIPE, text=True
    )


def told(rank: subprocess.Popen[str]) -> str:
    out, _ = rank.communicate(timeout=60)
    assert rank.returncode == 0
    return out.strip()


def copies(node: Path) -> int:
    return len((node / "copies").read_text().splitlines())


def test_the_ranks_of_a_node_share_one_copy_of_the_data(node: Path) -> None:
    folders = {told(process) for process in [rank(node) for _ in range(4)]}
    assert len(folders) == 1
    assert copies(node) == 1
    assert sorted(path.name for path in Path(folders.pop()).iterdir()) == ["half", "whole"]


def test_another_job_has_a_copy_of_its_own(node: Path) -> None:
    assert told(rank(node, DLS_JOB_ID="1")) != told(rank(node, DLS_JOB_ID="2"))
    assert copies(node) == 2


def test_a_rank_that_dies_while_it_copies_leaves_no_half_copy(node: Path) -> None:
    dying = rank(node, DIES="1")
    dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL
    assert (Path(told(rank(node))) / "whole").exists()
    assert copies(node) == 2


def test_a_place_without_data_is_none(node: Path) -> None:
    assert [told(rank(node, "s3://bucket/empty/")) for _ in range(2)] == ["None", "None"]
    assert told(rank(node, "/data/folder")) == "/data/folder"


def test_what_a_script_does_not_know_is_named_in_its_log(tmp_path: Path) -> None:
    """By the first rank only; a misspelt parameter would otherwise train for hours by its default."""
    program = """
import argparse, contract
for rank in "01":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epoch_size", type=int, default=90)
    told = ["--train_url=/x", "--epoch_sise=1", "--num_gpus=8"]
    print(contract.read_job(parser, told, {"RANK_ID": rank, "RANK_SIZE": "2"}).arguments.epoch_size)
"""
    done = run_python([SUITES / "miniature"], "-c", program)
    warning = "[WARNING] rank 0: this script does not know, and left out: --epoch_sise=1 --num_gpus=8"
    assert done.stdout.splitlines() == [warning, "90", "90"]


def imported(script: Path, staged: list[Path]) -> set[Path]:
    """The script, and all of its suite that it imports, directly or not, wherever the import stands."""
    found, left = set[Path](), [script]
    while left:
        file = left.pop()
        if file in found:
            continue
        found.add(file)
        for statement in ast.walk(ast.parse(file.read_text())):
            names = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
            names += [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            left += [folder / f"{name}.py" for name in names for folder in staged if (folder / f"{name}.py").exists()]
    return found


@pytest.mark.parametrize("suite", ["resnet50", "bert", "resnet50_cifar10", "horovod_mnist"])
def test_the_python_of_an_engine_can_read_its_script(suite: str) -> None:
    """ModelArts' engines of MindSpore 1.3 and of Horovod have Python 3.7."""
    staged = [SUITES / suite / "code", SUITES / "miniature", SUITES / "ascend"]
    files = imported(staged[0] / "train.py", staged)
    assert staged[1] / "contract.py" in files
    for file in files:
        tree = ast.parse(file.read_text(), str(file), feature_version=(3, 7))
        used = {keyword.arg for call in ast.walk(tree) if isinstance(call, ast.Call) for keyword in call.keywords}
        assert "strict" not in used, f"{file}: zip of Python 3.7 has no strict"
