"""A run on Apulis: from the command line to the verdict; and what is wrong with one that cannot be reached."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from commands import local_cloud
from yard import SCRIPT, THRESHOLDS, WORKLOAD, Yard

from pytest_aisbench.i18n import ENGLISH
from pytest_aisbench.localcloud.engine.private_root import container_support

pytestmark = pytest.mark.slow
needs_mounts = pytest.mark.skipif(not container_support()[0], reason=container_support()[1])
NO_ADDRESS = ENGLISH("no address")

PAGE = Path(__file__).parents[2] / "docs/apulis.md"
SECTION = """[apulis]
image = "apulistech/mindspore:0.3.0-withtools"
devices = 8
"""
CLAIMS = THRESHOLDS.replace("local", "apulis")


def test_the_seeds_two_node_job_passes(yard: Yard) -> None:
    yard.suite(workload=WORKLOAD + SECTION, thresholds=CLAIMS)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis")
    assert ended.code == 0, ended.out
    (case,) = ended.results["cases"]
    assert (case["id"], case["verdict"]) == ("toy-2x8", "PASSED")
    assert case["metrics"]["throughput"]["value"] == 16 * 12.5
    (trial,) = case["trials"]
    assert (trial["platform_phase"], len(trial["throughput_by_rank"])) == ("finished", 16)
    assert [log.rpartition("/")[2] for log in trial["logs"]] == ["worker-0.log", "worker-1.log"]
    second = (ended.reports / trial["logs"][1]).read_text()
    assert "rank 15 of 16" in second
    assert "rank 0 of" not in second


def test_results_come_through_obs_where_the_configuration_says_so(yard: Yard) -> None:
    by_url = SCRIPT.replace(
        "pathlib.Path(parser.parse_known_args()[0].train_url)", "parser.parse_known_args()[0].train_url"
    )
    by_url = by_url.replace('(out / f"{name}.json").write_text(text)', 'moxing.file.write(f"{out}{name}.json", text)')
    yard.suite(script=f"import moxing\n{by_url}", workload=WORKLOAD + SECTION.replace("8", "2"), thresholds=CLAIMS)
    (yard.folder / "aisbench.toml").write_text('[apulis]\nresults = "obs"\nsend_obs_keys = "yes"\n')
    told = ("--aisbench-platform", "apulis", "--aisbench-config", "aisbench.toml")
    ended = yard.pytest("suites", "--nodes", "1", *told)
    assert ended.code == 0, ended.out
    (trial,) = ended.results["cases"][0]["trials"]
    assert trial["stage"].startswith(f"obs://{json.loads(yard.card.read_text())['bucket']}/aisbench/")
    assert trial["throughput_by_rank"] == [12.5, 12.5]
    secret = json.loads(yard.card.read_text())["secret_key"]
    assert not [
        file for file in ended.reports.rglob("*") if file.is_file() and secret in file.read_text(errors="replace")
    ]


def test_a_failure_names_the_node_and_its_last_words(yard: Yard) -> None:
    script = "import os, sys\nif os.environ['RANK_ID'] == '9': sys.exit('no memory left')\n"
    yard.suite(script=script, workload=WORKLOAD + SECTION, thresholds=CLAIMS)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis")
    assert (ended.code, ended.verdicts) == (1, {"toy-2x8": "FAILED"}), ended.out
    assert "the job failed with exit code 1: no memory left (logs/toy-2x8/1/worker-1.log)" in ended.out


COMMAND = """[apulis]
image = "apulistech/horovod:0.19.2"
device_type = "nvidia_gpu_amd64"
command = "sudo -E bash -c ' ./run_8p.sh &&sleep infinity'"
"""


def own_script(yard: Yard, old: str = "", new: str = "", *, script: str = SCRIPT) -> None:
    """That of the page on Apulis, and the guide's habit of printing the environment."""
    place = yard.suite(script=script, workload=WORKLOAD + COMMAND, thresholds=CLAIMS)
    (shown,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert old in shown
    (place / "code/run_8p.sh").write_text(shown.replace(old, new) + "env\n")


def test_a_script_of_ones_own_trains_and_no_token_that_it_prints_comes_home(yard: Yard) -> None:
    own_script(yard)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis")
    assert (ended.code, ended.verdicts) == (0, {"toy-2x2": "PASSED"}), ended.out
    log = (ended.reports / "logs/toy-2x2/1/worker-1.log").read_text()
    assert "DLTS_JOB_TOKEN=***\n" in log
    job = ended.results["cases"][0]["trials"][0]["job_id"]
    kept = Path(json.loads(yard.card.read_text())["apulis_storage"]).rglob(f"log-container-{job}.txt.1")
    secrets = set(re.findall(r"^(?:\w+_TOKEN|PASSWORD)=(\w{16,})$", next(kept).read_text(), re.MULTILINE))
    assert len(secrets) == 4
    found = [file for file in yard.folder.rglob("*") if file.is_file() and _holds(file, secrets)]
    assert found == []


def _holds(file: Path, secrets: set[str]) -> bool:
    content = file.read_bytes()
    return any(secret.encode() in content for secret in secrets)


def test_a_script_that_numbers_its_ranks_from_0_on_every_node_fails_and_does_not_hang(yard: Yard) -> None:
    own_script(yard, "$((RANK_START + i))", "$i", script="import time; time.sleep(600)")
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis", "--aisbench-run-timeout", "100s")
    assert (ended.code, ended.verdicts) == (1, {"toy-2x2": "FAILED"}), ended.out
    reason = ended.results["cases"][0]["reason"]
    assert re.search(r"RANK_ID is [01] on node 1, whose ranks are 2 to 3: give card i RANK_ID=", reason), reason
    assert ended.results["cases"][0]["trials"][0]["platform_phase"] == "failed", "it ended by itself"


SEEDS = Path(__file__).parents[1] / "data/seeds"
GUIDE = """[apulis]
image = "apulistech/mindspore:0.3.0-withtools"
devices = 8
command = "./run_distribute_train.sh $MINDSPORE_HCCL_CONFIG_PATH /tmp"
"""


def guides_script(yard: Yard, *, script: str) -> None:
    """That of the platform's guide, word for word but for RANK_ID, which the guide numbers from 0 on every node."""
    by_variable = script.replace("parser.parse_known_args()[0].train_url", 'os.environ["TRAIN_URL"]')
    place = yard.suite(script=by_variable, workload=WORKLOAD + GUIDE, thresholds=CLAIMS)
    text = (SEEDS / "run_distribute_train.sh").read_text()
    assert text.count("export RANK_ID=$i\n") == 1
    corrected = text.replace("export RANK_ID=$i\n", "export RANK_ID=$((RANK_START + i))\n")
    (place / "code/run_distribute_train.sh").write_text(corrected)


def test_the_guides_script_passes_though_it_kills_its_own_group_at_the_end(yard: Yard) -> None:
    guides_script(yard, script=SCRIPT)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis")
    assert (ended.code, ended.verdicts) == (0, {"toy-2x8": "PASSED"}), ended.out
    assert len(ended.results["cases"][0]["trials"][0]["throughput_by_rank"]) == 16


@needs_mounts  # the command names folders as the pods see them
def test_the_guides_script_in_one_shared_folder_names_the_clash(yard: Yard) -> None:
    """The guide: the folders in which the nodes start the script must be apart. Here both go to the same one."""
    guides_script(yard, script="import time; time.sleep(600)")
    place = yard.folder / "suites/toy"
    storage = Path(json.loads(yard.card.read_text())["apulis_storage"])
    shutil.copytree(place / "code", storage / "data" / yard.folder.name)
    (storage / "data" / yard.folder.name / "run_distribute_train.sh").chmod(0o755)
    workload = place / "workload.toml"
    workload.write_text(workload.read_text().replace('"./run', f'"cd /data/{yard.folder.name} && ./run'))
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis", "--aisbench-run-timeout", "100s")
    assert (ended.code, ended.verdicts) == (1, {"toy-2x8": "FAILED"}), ended.out
    reason = ended.results["cases"][0]["reason"]
    folder = (
        rf"same shared folder /data/{yard.folder.name}[^:]*: give each node a folder of its own there, such as node-"
    )
    assert re.search(folder, reason), reason
    assert ended.results["cases"][0]["trials"][0]["platform_phase"] == "failed", "it ended by itself"


@needs_mounts
def test_nodes_that_part_in_a_shared_folder_train(yard: Yard) -> None:
    guides_script(yard, script=SCRIPT)
    place, name = yard.folder / "suites/toy", yard.folder.name
    storage = Path(json.loads(yard.card.read_text())["apulis_storage"])
    (storage / "data" / name).mkdir()
    own = f"cp -R . /data/{name}/node-$DLWS_ROLE_IDX && cd /data/{name}/node-$DLWS_ROLE_IDX && ./run"
    workload = place / "workload.toml"
    workload.write_text(workload.read_text().replace('"./run', f'"{own}'))
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "apulis")
    assert (ended.code, ended.verdicts) == (0, {"toy-2x8": "PASSED"}), ended.out
    (trial,) = ended.results["cases"][0]["trials"]
    assert (trial["endpoints"], set(trial["usage"]) <= {"cpu", "memory"}) == ({}, True)


# The guide's Horovod job of one node, word for word; its image brings the example, here by a Python of its own.

ONE_NODE = """[apulis]
image = "apulistech/horovod:0.19.2-tf2.2.0-torch1.5.0-py3.6.9-gpu"
device_type = "nvidia_gpu_amd64"
devices = 8
endpoints = ["ssh", "ipython", "tensorboard"]
command = '''{command}'''
"""
EXAMPLE = """#!/bin/bash
if [ "$1" != /examples/tensorflow2_keras_mnist.py ]; then exec {python} "$@"; fi
[ -d "$2" ] && [ "$3" = "$HOME/tensorboard/$DLWS_JOB_ID/logs/" ] || exit 3
echo 12.5 > "$TRAIN_URL/throughput_$HOROVOD_RANK.json"
if [ "$HOROVOD_RANK" = 0 ]; then echo 8 > "$TRAIN_URL/ranksize.json"; echo 0.9 > "$TRAIN_URL/accuracy.json"; fi
sleep 2
"""


@needs_mounts
def test_the_guides_horovod_job_of_one_node_passes_word_for_word_and_shows_its_endpoints(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(EXAMPLE.format(python=sys.executable))
    python.chmod(0o755)
    with local_cloud(tmp_path, "--frameworks", f"horovod={python}") as card:
        yard = Yard(tmp_path, card)
        command = (SEEDS / "horovod_one_node.txt").read_text().strip()
        yard.suite(workload=WORKLOAD + ONE_NODE.format(command=command), thresholds=CLAIMS)
        ended = yard.pytest("suites", "--nodes", "1", "--aisbench-platform", "apulis")
        address = json.loads(card.read_text())["apulis_endpoint"]
    assert (ended.code, ended.verdicts) == (0, {"toy-1x8": "PASSED"}), ended.out
    (trial,) = ended.results["cases"][0]["trials"]
    assert trial["throughput_by_rank"] == [12.5] * 8
    endpoints = trial["endpoints"]
    assert endpoints.keys() == {"ssh", "ipython", "tensorboard"}
    assert endpoints["ssh"] is None, "the local cloud has no sshd"
    for name in ("ipython", "tensorboard"):
        assert endpoints[name].startswith(f"{address}/endpoints/")
        assert f"aisbench: toy-1x8: {name}: {endpoints[name]}" in ended.out
    page = (ended.reports / "report.html").read_text()
    assert html.escape(f"Endpoint ssh: {NO_ADDRESS}", quote=False) in page
    assert f">{endpoints['tensorboard']}<" in html.unescape(page)


def test_without_an_endpoint_it_is_a_usage_error(yard: Yard) -> None:
    yard.suite(workload=WORKLOAD + SECTION, thresholds=CLAIMS)
    ended = yard.pytest("suites", "--aisbench-platform", "apulis", cloud=False)
    assert ended.code == 4, ended.out
    assert "--aisbench-platform: platform apulis needs endpoint, user, vc" in " ".join(ended.out.split())
