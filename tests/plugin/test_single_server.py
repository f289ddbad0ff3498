"""Every node trains alone: results per node, each of them judged, their mean shown, nothing taken for granted."""

from __future__ import annotations

from pathlib import Path

import pytest
from yard import SCRIPT, Yard

pytestmark = pytest.mark.slow

ALONE = """
import argparse, os, pathlib
assert os.environ["SINGLESERVER_MODE"] == "True"
parser = argparse.ArgumentParser()
parser.add_argument("--train_url")
out = pathlib.Path(parser.parse_known_args()[0].train_url)
server, card = divmod(int(os.environ["RANK_ID"]), 2)
(out / str(server)).mkdir(parents=True, exist_ok=True)
(out / str(server) / f"throughput_{card}.json").write_text(str([10.5, 12.25][server]))
if card == 0 and (server or not MISSING):
    (out / f"accuracy_{server}.json").write_text(str([0.75, 0.5][server]))
"""
CLAIMS = """[local."*"]
throughput = { reference = 22.75, lower = -0.5, upper = 0.5, unit = "images/s", per = "node" }
accuracy = { at_least = 0.45 }
"""


def test_a_case_is_the_mean_over_its_nodes(yard: Yard) -> None:
    yard.suite(script=ALONE.replace("MISSING", "False"), thresholds=CLAIMS)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-single-server")
    assert ended.code == 0, ended.out
    assert "report >> throughput_list:[21.0, 24.5] average:22.75" in ended.out
    assert "report >> accuracy_list:[0.75, 0.5] average:0.625" in ended.out
    (case,) = ended.results["cases"]
    assert (case["id"], case["mode"], case["verdict"]) == ("toy-2x2-single", "single-server", "PASSED")
    assert case["metrics"]["throughput"]["value"] == 22.75
    assert case["metrics"]["accuracy"]["value"] == 0.625
    (trial,) = case["trials"]
    assert trial["throughput_by_rank"] == [10.5, 10.5, 12.25, 12.25]
    assert trial["throughput_by_server"] == [21.0, 24.5]
    assert trial["accuracy_by_server"] == [0.75, 0.5]


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        (ALONE.replace("MISSING", "True"), "accuracy_0.json is missing"),
        (SCRIPT, "0/throughput_0.json (rank 0: node 0, card 0) is missing"),
    ],
    ids=["one node says nothing", "a script that knows nothing of it"],
)
def test_a_node_without_results_is_never_green(yard: Yard, script: str, missing: str) -> None:
    yard.suite(script=script, thresholds=CLAIMS)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-single-server")
    assert (ended.code, ended.verdicts) == (1, {"toy-2x2-single": "FAILED"}), ended.out
    assert any(missing in finding["text"] for finding in ended.results["cases"][0]["findings"])
    assert "average:None" in ended.out


def test_results_of_nodes_that_trained_alone_are_no_results_of_a_cluster(yard: Yard) -> None:
    script = SCRIPT + "\n(out / '1').mkdir(exist_ok=True)\nwrite('1/throughput_0', '12.5')\n"
    yard.suite(script=script)
    ended = yard.pytest("suites", "--nodes", "2")
    assert (ended.code, ended.verdicts) == (1, {"toy-2x2": "FAILED"}), ended.out
    assert "1/throughput_0.json belongs to no rank of 2x2" in ended.out


def test_the_shipped_miniatures_train_alone(yard: Yard) -> None:
    suites = Path(__file__).parents[2] / "suites"
    reports = yard.folder / "reports"
    ended = yard.pytest(
        *(str(suites / "resnet50"), "--nodes", "2", "--aisbench-single-server", "--aisbench-devices", "2"),
        *("--aisbench-reports", str(reports)),
    )
    assert ended.code == 0, ended.out
    assert ended.verdicts == {"resnet50-2x2-single": "PASSED"}
    (trial,) = ended.results["cases"][0]["trials"]
    assert len(trial["throughput_by_server"]) == len(trial["accuracy_by_server"]) == 2
