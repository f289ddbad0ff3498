"""An unpacked ais-bench package under pytest, on a local cloud."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from old_package import unpack
from yard import SCRIPT, WORKLOAD, Yard

pytestmark = pytest.mark.slow

ALONE = """
import argparse, os
import moxing as mox
assert os.environ["SINGLESERVER_MODE"] == "True"
parser = argparse.ArgumentParser()
parser.add_argument("--train_url")
parser.add_argument("--bert_network")
given = parser.parse_known_args()[0]
assert given.train_url.startswith("s3://") and given.bert_network == "large_acc"
server = os.environ["RANK_ID"]
mox.file.write(f"{given.train_url}{server}/throughput_0.json", "10.5")
mox.file.write(f"{given.train_url}accuracy_{server}.json", "0.75")
"""
SUITE = Path(__file__).resolve().parents[2] / "suites/package/test_package.py"


@pytest.fixture
def package(yard: Yard) -> Path:
    """And the suite that runs it, beside."""
    place = yard.folder / "suites/package"
    place.mkdir(parents=True)
    shutil.copy(SUITE, place)
    return unpack(yard.folder / "unpacked", script=SCRIPT)


def test_a_package_trains_and_is_judged(yard: Yard, package: Path) -> None:
    ended = yard.pytest("suites", "--aisbench-package", "unpacked", "--aisbench-devices", "2")
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"aisbench-debug-1x2": "PASSED"}
    assert "modelarts_version=V2" in ended.out
    assert "the local cloud runs the package's code" in ended.out
    assert "LEGACYACCESSKEY" not in ended.out


def test_nodes_mode_and_api_as_config_sh_says(yard: Yard, package: Path) -> None:
    """V1 where it says nothing; its scripts write to OBS themselves."""
    (package / "code/config/config.sh").write_text("# V1\nexport SINGLESERVER_MODE=True\n")
    (package / "code/code/run_pretrain.py").write_text(ALONE)
    ended = yard.pytest("suites", "--aisbench-package", "unpacked", "--aisbench-devices", "1", "--nodes", "2")
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"aisbench-debug-2x1-single": "PASSED"}
    assert "config.sh:2" in ended.out
    assert "report >> throughput_list:[10.5, 10.5] average:10.5" in ended.out


def test_without_the_option_its_test_is_deselected(yard: Yard, package: Path) -> None:
    yard.suite()
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 0, ended.out
    assert "1 passed, 2 deselected" in ended.out
    alone = yard.pytest("suites/package")
    assert alone.code == 5, alone.out
    assert "1 deselected" in alone.out


def test_no_claims_is_exit_4_with_an_example_to_copy(yard: Yard, package: Path) -> None:
    (package / "thresholds.toml").unlink()
    ended = yard.pytest("suites", "--aisbench-package", "unpacked")
    assert ended.code == 4, ended.out
    assert f"{package}/thresholds.toml: there is no such file" in ended.out
    assert 'throughput = { reference = 450.58, lower = -0.05, unit = "sentences/s", per = "node" }' in ended.out
    assert not (yard.folder / "reports").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--aisbench-package", "nowhere"], "nowhere is not an unpacked ais-bench package"),
        (["--aisbench-config", "nowhere.py"], "nowhere.py: there is no such file"),
    ],
)
def test_what_is_not_there_is_exit_4(yard: Yard, package: Path, arguments: list[str], words: str) -> None:
    ended = yard.pytest("suites", *arguments)
    assert ended.code == 4, ended.out
    assert words in ended.out
    assert "Traceback" not in ended.out


def test_an_executed_configuration_is_told(yard: Yard, package: Path) -> None:
    file = package / "code/config/modelarts_config.py"
    text = file.read_text(encoding="utf-8") + "import os\naccess_config.region_name = os.path.basename('cn-north-4')\n"
    file.write_text(text, encoding="utf-8")
    asked = ("suites", "--aisbench-platform", "modelarts", "--aisbench-package", "unpacked", "--collect-only")
    refused = yard.pytest(*asked, cloud=False)
    assert refused.code == 4, refused.out
    assert "access_config.region_name cannot be read" in refused.out
    trusted = yard.pytest(*asked, "--aisbench-trust-config", cloud=False)
    assert trusted.code == 0, trusted.out
    assert f"{file} was executed" in trusted.out
    assert "test_trains[aisbench-debug-1x8]" in trusted.out


def test_an_update_reaches_the_training(yard: Yard) -> None:
    check = 'import os\nassert (os.environ["GLOG_v"], os.environ["MINE"]) == ("3", "yes")\n'
    folder = yard.suite(script=check + SCRIPT, workload=WORKLOAD + "[local.update]\nGLOG_v = 3\n")
    (folder / "code/ma-pre-start.sh").write_text("export MINE=yes\n")
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.verdicts == {"toy-1x2": "PASSED"}, ended.out
