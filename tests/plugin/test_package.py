"""An unpacked ais-bench package under pytest, on a local cloud."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from old_package import unpack
from open_tester import serving
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

SEEDS = Path(__file__).parents[1] / "data/seeds"


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


def test_results_go_to_the_tester_of_config_json(yard: Yard, package: Path, tmp_path: Path) -> None:
    """An open one, for which there is a token; without one a line says why nothing goes there."""
    with serving(f"{tmp_path}/tester.db") as tester:
        address = urlsplit(tester.url)
        paper = {"testid": "t-1", "tester_server_ip": address.hostname, "tester_server_port": address.port}
        (package / "code/config.json").write_text(json.dumps(paper))
        asked = ("suites", "--aisbench-package", "unpacked", "--aisbench-devices", "2")
        (yard.folder / "aisbench.toml").write_text(f'[tester]\ntoken = "{tester.token("p")}"\n')
        ended = yard.pytest(*asked)
        assert ended.code == 0, ended.out
        (upload,) = ended.results["uploads"]
        assert (upload["tester"], upload["state"]) == (f"http://{address.netloc}/", "delivered")
    (yard.folder / "aisbench.toml").unlink()
    silent = yard.pytest(*asked)
    assert f"config.json: tester_server_ip {address.netloc} is not used: " in silent.out.replace("\n", "")


@pytest.mark.parametrize("key", ["iam_endpoint", "obs_endpoint", "modelarts_endpoint"])
def test_an_unknown_host_of_a_centre_is_exit_4_and_named(yard: Yard, package: Path, key: str) -> None:
    """Before, the run tried for minutes, and the case was BROKEN. The other two services answer."""
    card = json.loads(yard.card.read_text())
    table = {name: f"{card[name]}" for name in ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")}
    table |= {key: "https://service.centre.invalid", "project_id": ""}
    rows = "".join(f'{name} = "{value}"\n' for name, value in table.items())
    (yard.folder / "aisbench.toml").write_text(f"[access]\n{rows}")
    ended = yard.pytest(
        "suites", "--aisbench-platform", "modelarts", "--aisbench-package", "unpacked", cloud=False, fork=False
    )
    assert ended.code == 4, ended.out
    (line,) = [line for line in ended.out.splitlines() if line.startswith("ERROR")]
    assert re.match(r"ERROR: (zgwtest\.)?service\.centre\.invalid has no address: .*; check \[access\]", line)
    assert 'write "service.centre.invalid" with its address to [hosts]' in line
    assert not (yard.folder / "reports").exists()


MODELARTS = ("suites", "--aisbench-platform", "modelarts", "--aisbench-package", "unpacked")


def on_modelarts(yard: Yard, package: Path, old: str = "", new: str = "") -> None:
    """Let the package train on the local cloud as if it were ModelArts, with one change of its configuration."""
    card = json.loads(yard.card.read_text())
    keys = {"access_key": card["access_key"], "secret_access_key": card["secret_key"], "project_id": card["project_id"]}
    keys |= {name: card[name] for name in ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")}
    rows = "".join(f'{name} = "{value}"\n' for name, value in keys.items())
    (yard.folder / "aisbench.toml").write_text(f"[access]\n{rows}")
    file = package / "code/config/modelarts_config.py"
    text = file.read_text(encoding="utf-8").replace("/zgwtest/", f"/{card['bucket']}/")
    assert old in text
    file.write_text(text.replace(old, new) if old else text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            (),
            "enwiki_small/ has no train/ and no val/ and no ms_bert_large.ckpt; upload it, or correct inputs in {file}",
        ),
        (("mindspore_1.3.0", "mindspore_9.9.9"), "framework_version in {file} to one of "),
        (("'modelarts.kat1.8xlarge'", "'modelarts.p9.8xlarge'"), "set train_instance_type in {file} to one of "),
        (
            ("'name': 'epoch_size'", "'name': 'train_url'"),
            "parameter train_url is set by the platform; remove it from {file}",
        ),
    ],
)
def test_errors_name_the_packages_file_and_its_words(
    yard: Yard, package: Path, change: tuple[str, ...], words: str
) -> None:
    on_modelarts(yard, package, *change)
    ended = yard.pytest(*MODELARTS, cloud=False)
    assert ended.code == 4, ended.out
    # Of a wrong engine and a wrong flavor the run also says that the data is not there.
    lines = [line for line in ended.out.splitlines() if line.startswith("ERROR")]
    wanted = words.format(file=f"session_config_v2 of {package}/code/config/modelarts_config.py")
    assert any(wanted in line for line in lines), lines
    assert "workload.toml" not in ended.out


def test_claims_and_budgets_of_a_package_name_no_file_that_it_has_not(yard: Yard, package: Path) -> None:
    on_modelarts(yard, package)
    claims = package / "thresholds.toml"
    text = claims.read_text()
    claims.write_text(text + "loss = { at_most = 2 }\n")
    ended = yard.pytest(*MODELARTS, cloud=False)
    assert (ended.code, "no script writes this metric; a package has accuracy, throughput" in ended.out) == (4, True)
    claims.write_text(text)
    costly = yard.pytest("suites", "--aisbench-package", "unpacked", "--aisbench-budget", "0.001")
    assert (costly.code, "lower --aisbench-run-timeout" in costly.out) == (4, True), costly.out
    assert "workload.toml" not in ended.out + costly.out


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


@pytest.mark.slow
def test_the_seeds_pre_start_script_that_could_not_update_fails_the_case(yard: Yard) -> None:
    """It prints `done ret:1` and goes on: the training would be judged on the old software."""
    place = yard.suite()
    script = SEEDS / "ma-pre-start.sh"
    (place / "code/ma-pre-start.sh").write_text(script.read_text(encoding="utf-8"))
    ended = yard.pytest("suites", "--nodes", "1")
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "FAILED"}), ended.out
    (case,) = ended.results["cases"]
    texts = [each["text"] for each in case["findings"] if each["metric"] == "software update"]
    assert [text for text in texts if "replace origin mindspore packet!!! done ret:1 !!! (worker-0.log)" in text], texts
    assert [text for text in texts if "replace origin CANN_RUN_PACKET!!!:" in text], texts
    assert "software update" in case["reason"]


@pytest.mark.slow
def test_the_seeds_pre_start_script_that_updates_leaves_the_case_green(yard: Yard) -> None:
    place = yard.suite()
    script = SEEDS / "ma-pre-start.sh"
    (place / "code/ma-pre-start.sh").write_text("pip() { :; }\n" + script.read_text(encoding="utf-8"))
    (place / "code/run").mkdir()
    (place / "code/run/Ascend-cann-nnae_5.0.2.1_linux-aarch64.run").write_text("#!/bin/bash\nexit 0\n")
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.verdicts == {"toy-1x2": "PASSED"}, ended.out


@pytest.mark.slow
def test_a_version_in_the_log_that_is_not_that_of_the_file_fails_the_case(yard: Yard) -> None:
    place = yard.suite(script='print("MindSpore version: 1.2.1", flush=True)\n' + SCRIPT)
    (place / "code/run").mkdir()
    (place / "code/run/mindspore_ascend-1.3.0-cp37-cp37m-linux_aarch64.whl").write_text("")
    ended = yard.pytest("suites", "--nodes", "1")
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "FAILED"}), ended.out
    assert "names mindspore 1.2.1, and mindspore_ascend-1.3.0-cp37" in ended.results["cases"][0]["reason"]


@pytest.mark.slow
def test_an_installation_by_our_script_that_fails_ends_the_job_before_it_trains(yard: Yard) -> None:
    update = '[local.update]\nwheels = ["mindspore_ascend-1.3.0-cp37-cp37m-linux_aarch64.whl"]\n'
    place = yard.suite(script='print("it trains", flush=True)\n' + SCRIPT, workload=WORKLOAD + update)
    (place / "mindspore_ascend-1.3.0-cp37-cp37m-linux_aarch64.whl").write_text("no wheel")
    ended = yard.pytest("suites", "--nodes", "1")
    assert (ended.code, ended.verdicts) == (1, {"toy-1x2": "FAILED"}), ended.out
    (trial,) = ended.results["cases"][0]["trials"]
    logs = "".join((yard.folder / "reports/latest" / log).read_text() for log in trial["logs"])
    assert "was not installed: the job would train with other software than it should" in logs
    assert "it trains" not in logs
