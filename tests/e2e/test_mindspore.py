"""The suites trained by MindSpore itself, on its CPU build, in a Python that has it: MINDSPORE_PYTHON=FILE."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frameworks import checksums
from tfrecord import tfrecord

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("MINDSPORE_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="MINDSPORE_PYTHON names no Python that has MindSpore")


def train(suite: Path, reports: Path, *options: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The only case as results.json tells it, and the checksums of the weights on each node."""
    command = [sys.executable, "-m", "pytest", str(suite), "-q", "--aisbench-frameworks", f"mindspore={PYTHON}"]
    command += ["--aisbench-reports", str(reports), "--aisbench-tester", "none", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((reports / "latest/results.json").read_text())["cases"]
    assert case["metrics"]["accuracy"]["value"] > 0.9
    return case, checksums(reports, case["id"])


def shape(nodes: int, devices: int) -> list[str]:
    return ["--nodes", str(nodes), "--aisbench-devices", str(devices)]


@pytest.mark.parametrize("suite", ["resnet50_cifar10", "resnet50", "bert"])
@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (2, 2)])
def test_every_rank_ends_with_the_same_weights(suite: str, nodes: int, devices: int, tmp_path: Path) -> None:
    case, weights = train(ROOT / "suites" / suite, tmp_path, *shape(nodes, devices))
    assert len(case["trials"][0]["throughput_by_rank"]) == nodes * devices
    assert [len(told) for told in weights.values()] == [devices] * nodes
    assert len({told for of_node in weights.values() for told in of_node}) == 1


def test_a_server_that_trains_alone_has_weights_and_results_of_its_own(tmp_path: Path) -> None:
    options = [*shape(2, 2), "--aisbench-single-server"]
    case, weights = train(ROOT / "suites/resnet50_cifar10", tmp_path, *options)
    assert len(case["trials"][0]["accuracy_by_server"]) == 2
    assert [len(told) for told in weights.values()] == [2, 2]
    assert [len(set(told)) for told in weights.values()] == [1, 1]


def own_suite(tmp_path: Path, name: str, **parameters: Any) -> Path:
    """The suite with data of its own, in `data/`, and other parameters."""
    source, suite = ROOT / "suites" / name, tmp_path / name
    suite.mkdir()
    for file in source.glob("*.*"):
        shutil.copy(file, suite)
    kept = (source / "workload.toml").read_text().partition("[local.mindspore]")[0]
    for folder in ("miniature", "ascend"):
        shutil.copytree(ROOT / "suites" / folder, tmp_path / folder)
    shutil.copytree(source / "code", suite / "code")
    told = "\n".join(f"{key} = {json.dumps(value)}" for key, value in parameters.items())
    section = f'[local.mindspore]\nentry = "train.py"\ndata = "data"\n[local.mindspore.parameters]\n{told}\n'
    (suite / "workload.toml").write_text(kept + section)
    (suite / "data").mkdir()
    return suite


def made(suite: Path, program: str) -> str:
    """By the suite's own code."""
    folders = [suite / "code", suite.parent / "miniature", suite.parent / "ascend"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=suite / "data", capture_output=True, text=True, check=True
    ).stdout


def test_cifar_10_is_copied_from_its_url(tmp_path: Path) -> None:
    narrow = {"blocks": "1,1,1", "width": 8, "image_size": 32, "augment": "false", "label_smoothing": 0, "workers": 1}
    suite = own_suite(tmp_path, "resnet50_cifar10", epoch_size=4, batch_size=16, **narrow)
    made(suite, "import cifar10, pathlib; cifar10.generate(pathlib.Path(), 1, 256, looks=1)")
    train(suite, tmp_path / "reports", *shape(1, 1), "--aisbench-modelarts-version", "V1")


def test_bert_reads_tfrecord(tmp_path: Path) -> None:
    small = {"bert_network": "tiny", "num_hidden_layers": 1, "optimizer": "AdamWeightDecay"}
    suite = own_suite(tmp_path, "bert", train_steps=400, batch_size=32, learning_rate=0.006, **small)
    program = (
        "import json, enwiki, networks; print(json.dumps([{k: v.tolist() for k, v in row.items()}"
        " for row in enwiki.made(networks.NETWORKS['tiny'], [%d], %d)]))"
    )
    for part, seed, rows in (("train", 1, 4096), ("val", 2, 256)):
        (suite / "data" / part).mkdir()
        (suite / "data" / part / "enwiki.tfrecord").write_bytes(
            tfrecord(json.loads(made(suite, program % (seed, rows))))
        )
    train(suite, tmp_path / "reports", *shape(1, 1))


CHECKPOINT = """
import pathlib
import mindspore, model_zoo, networks, train
from contract import ContractError
from pretraining import Bert

def made(seed, **sizes):
    mindspore.set_seed(seed)
    return Bert(networks.replace(networks.NETWORKS["tiny"], most_rows=4, **sizes))

theirs, file = made(1, length=24), pathlib.Path("model_zoo.ckpt")
rows = []
for weight in theirs.trainable_params():
    name = "bert.bert." + model_zoo.names(weight.name)[0]
    rows.append({"name": name, "data": mindspore.Tensor(weight.asnumpy().squeeze())})
mindspore.save_checkpoint(rows, str(file))
ours = made(2)
train.start_from(file, ours)
for weight, source in zip(ours.trainable_params(), theirs.trainable_params()):
    wanted = source.asnumpy()[:, :16] if weight.name == "positions" else source.asnumpy()
    assert (weight.asnumpy() == wanted).all(), weight.name
for other, complaint in ((made(1, layers=3), "it lacks 16 weights"), (made(1, hidden=32), "and the network has")):
    try:
        train.start_from(file, other)
    except ContractError as error:
        assert complaint in str(error), error
    else:
        raise AssertionError(complaint)
print("started from model_zoo")
"""


def run(suite: str, folder: Path, *command: str) -> str:
    """What MindSpore's Python says, among the code of a suite, without a cloud."""
    folders = [ROOT / "suites" / suite / "code", ROOT / "suites/miniature", ROOT / "suites/ascend"]
    done = subprocess.run(
        [PYTHON, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "GLOG_v": "3"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bert_starts_from_a_checkpoint_of_model_zoo(tmp_path: Path) -> None:
    assert "started from model_zoo" in run("bert", tmp_path, "-c", CHECKPOINT)


def pretrained(folder: Path, *arguments: str) -> tuple[str, list[str]]:
    """What a small BERT says at its end, and the checkpoints that it leaves."""
    small = ["--bert_network=tiny", "--num_hidden_layers=1", "--synthetic=64", "--batch_size=8", "--data_sink_steps=2"]
    told = [f"--train_url={folder}", *small, *arguments]
    out = run("bert", folder, str(ROOT / "suites/bert/code/train.py"), *told)
    (end,) = [line for line in out.splitlines() if line.startswith("train done")]
    return end, sorted(path.name for path in folder.glob("*.ckpt"))


def test_bert_keeps_the_checkpoints_that_it_is_told_to(tmp_path: Path) -> None:
    end, kept = pretrained(
        tmp_path, "--epoch_size=5", "--train_steps=6", "--save_checkpoint_steps=2", "--save_checkpoint_num=2"
    )
    assert "stepsize:6 batchsize:8 epochsize:1 alldatasum:48" in end
    assert kept == ["checkpoint_bert-1_4.ckpt", "checkpoint_bert-1_6.ckpt"]


def test_bert_adds_the_gradients_of_several_batches_to_one_update(tmp_path: Path) -> None:
    end, kept = pretrained(tmp_path, "--epoch_size=1", "--accumulation_steps=2", "--enable_save_ckpt=false")
    assert "stepsize:4 batchsize:16 epochsize:1 alldatasum:64" in end
    assert kept == []


def test_the_real_resnet_50_takes_steps(tmp_path: Path) -> None:
    """As it is by default: its published number of weights, on images of 224 pixels."""
    built = "import resnet; network = resnet.ResNet((3, 4, 6, 3), 64, 224, 1000)"
    weights = f"{built}; print(sum(weight.size for weight in network.trainable_params()))"
    assert run("resnet50", tmp_path, "-c", weights).split()[-1] == "25557032"
    told = [f"--train_url={tmp_path}", "--synthetic=8", "--epoch_size=1", "--batch_size=4", "--workers=1"]
    out = run("resnet50", tmp_path, str(ROOT / "suites/resnet50/code/train.py"), *told)
    assert "stepsize:2 batchsize:4 epochsize:1 alldatasum:8" in out
    assert float((tmp_path / "throughput_0.json").read_text()) > 0
