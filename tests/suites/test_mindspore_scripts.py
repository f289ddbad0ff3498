"""The MindSpore scripts without MindSpore: what they are told, how their ranks meet, what they read."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import printed_json, run_python

from pytest_aisbench.ranktable import check
from pytest_aisbench.ranktable.table import Order

SUITES = Path(__file__).parents[2] / "suites"
NAMES = ("resnet50_cifar10", "resnet50", "bert")


def code_of(suite: str) -> list[Path]:
    """The folders that are staged together for a suite."""
    return [SUITES / suite / "code", SUITES / "miniature", SUITES / "ascend"]


def read(suite: str, arguments: list[str], told: str, environment: Mapping[str, str] | None = None) -> Any:
    """`told`: an expression on the job that the script reads from its arguments and the environment."""
    program = f"""
import json, contract, train
try:
    job = contract.read_job(train.parser(), {arguments!r}, {dict(environment or {})!r})
    print(json.dumps({told}, default=str))
except contract.ContractError as error:
    print(json.dumps("refused: " + str(error)))
"""
    return printed_json(code_of(suite), program)


@pytest.mark.parametrize(
    ("suite", "size"), [("resnet50_cifar10", [[3, 4, 6, 3], 64, 224, 92]), ("resnet50", [[3, 4, 6, 3], 64, 224, 90])]
)
def test_by_default_it_is_the_real_resnet_50(suite: str, size: list[Any]) -> None:
    told = "[job.arguments.blocks, job.arguments.width, job.arguments.image_size, job.arguments.epoch_size]"
    assert read(suite, ["--train_url=/x"], told) == size


def test_a_narrow_network_is_a_matter_of_parameters() -> None:
    arguments = ["--train_url=/x", "--blocks=1,1", "--width=8", "--image_size=32", "--augment=False", "--unknown=1"]
    told = "[job.arguments.blocks, job.arguments.width, job.arguments.image_size, job.arguments.augment]"
    assert read("resnet50", arguments, told) == [[1, 1], 8, 32, False]


def test_bert_is_large_by_default_and_any_size_can_be_told() -> None:
    shape = "(lambda s: [s.hidden, s.layers, s.heads, s.length])(train.networks.shape_of(job.arguments))"
    assert read("bert", ["--train_url=/x"], shape) == [1024, 24, 16, 512]
    tiny = ["--train_url=/x", "--bert_network=tiny", "--num_hidden_layers=1"]
    assert read("bert", tiny, shape) == [64, 1, 4, 16]
    odd = [*tiny, "--num_attention_heads=5"]
    assert read("bert", odd, shape) == "refused: --hidden_size=64 cannot be shared by 5 heads"


def test_train_steps_come_before_epoch_size() -> None:
    told = "train.updates(job.arguments, 70)"
    assert read("bert", ["--train_url=/x", "--epoch_size=5"], told) == 350
    assert read("bert", ["--train_url=/x", "--epoch_size=5", "--train_steps=12000"], told) == 12000


def test_lamb_is_for_ascend() -> None:
    told = "[train.optimizer_of(job.arguments, on_ascend=there) for there in (True, False)]"
    assert read("bert", ["--train_url=/x"], told) == ["Lamb", "AdamWeightDecay"]
    assert read("bert", ["--train_url=/x", "--optimizer=Lamb"], told).startswith(
        "refused: MindSpore has no Lamb on CPU"
    )


def test_a_card_fetches_no_more_steps_than_there_are() -> None:
    program = "import json, train; print(json.dumps([train.in_sinks(12000, 100), train.in_sinks(30, 100)]))"
    assert printed_json(code_of("bert"), program) == [[120, 100], [1, 30]]


def test_the_names_of_model_zoos_checkpoints_are_known() -> None:
    own = [
        "words.embedding_table",
        "positions",
        "norm.gamma",
        "blocks.11.attention.query.weight",
        "blocks.0.outer.bias",
    ]
    saved = [
        "bert.bert.bert_embedding_lookup.embedding_table",
        "bert.bert.bert_embedding_postprocessor.full_position_embeddings",
        "bert.bert.bert_embedding_postprocessor.layernorm.gamma",
        "bert.bert.bert_encoder.layers.11.attention.attention.query_layer.weight",
        "bert.bert.bert_encoder.layers.0.output.dense.bias",
    ]
    program = f"import json, model_zoo; print(json.dumps(model_zoo.saved_names({own!r}, {{}})))"
    assert printed_json(code_of("bert"), program.replace("{}", f"{[*saved, 'global_step']!r}")) == dict(
        zip(own, saved, strict=True)
    )
    assert printed_json(code_of("bert"), program.replace("{}", f"{saved[1:]!r}")).keys() == set(own[1:])
    later = ["bert.bert_embedding_postprocessor.full_position_embedding.embedding_table", "bert.cls1.output_bias"]
    program = (
        f"import json, model_zoo; print(json.dumps(model_zoo.saved_names(['positions', 'vocabulary_bias'], {later!r})))"
    )
    assert list(printed_json(code_of("bert"), program).values()) == later


RANK = {"RANK_ID": "3", "RANK_SIZE": "4", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "20001"}


def test_on_a_cpu_the_ranks_keep_the_numbers_that_the_platform_gave_them() -> None:
    variables = read("resnet50", ["--train_url=/x"], "__import__('collective').cpu_variables(job)", RANK)
    assert variables.items() >= {
        "MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "4", "MS_NODE_ID": "3", "MS_SCHED_HOST": "127.0.0.2",
        "MS_SCHED_PORT": "20001",
    }.items()  # fmt: skip
    told = "(lambda c: c.scheduler_variables(c.cpu_variables(job)))(__import__('collective'))"
    scheduler = read("resnet50", ["--train_url=/x"], told, RANK)
    assert scheduler["MS_ROLE"] == "MS_SCHED"
    assert "MS_NODE_ID" not in scheduler


def test_a_rank_alone_needs_no_scheduler() -> None:
    variables = read("resnet50", ["--train_url=/x"], "__import__('collective').cpu_variables(job)")
    assert not [name for name in variables if name.startswith("MS_")]


def test_ranks_that_cannot_find_each_other_say_so() -> None:
    told = "__import__('collective').cpu_variables(job)"
    answer = read("resnet50", ["--train_url=/x"], told, {"RANK_ID": "1", "RANK_SIZE": "2"})
    assert answer == "refused: 2 ranks need MASTER_ADDR and MASTER_PORT to find each other"


def table(tmp_path: Path) -> Path:
    """Two servers with two cards each."""
    servers = [
        {
            "server_id": f"10.0.0.{node}",
            "host_nic_ip": "reserve",
            "device": [
                {"device_id": str(card), "device_ip": f"192.1.{node}.{card}", "rank_id": str(2 * node + card)}
                for card in range(2)
            ],
        }
        for node in range(2)
    ]
    path = tmp_path / "jobstart_hccl.json"
    path.write_text(json.dumps({"version": "1.0", "status": "completed", "server_count": "2", "server_list": servers}))
    return path


def test_a_server_that_trains_alone_shows_hccl_its_own_cards_only(tmp_path: Path) -> None:
    path = table(tmp_path)
    alone = RANK | {"RANK_TABLE_FILE": str(path), "SINGLESERVER_MODE": "True"}
    told = f"__import__('collective').ascend_variables(job, {str(path)!r})"
    variables = read("resnet50", ["--train_url=/x"], told, alone)
    assert (variables["RANK_ID"], variables["RANK_SIZE"]) == ("1", "2")
    narrowed = json.loads(Path(variables["RANK_TABLE_FILE"]).read_text())
    assert narrowed["server_count"] == "1"
    (server,) = narrowed["server_list"]
    assert server["server_id"] == "10.0.0.1"
    assert [(card["rank_id"], card["device_ip"]) for card in server["device"]] == [
        ("0", "192.1.1.0"),
        ("1", "192.1.1.1"),
    ]


def test_a_server_of_apulis_that_trains_alone_has_a_table_of_its_own(tmp_path: Path) -> None:
    """In the lab format, which that platform writes; it still keeps the rules."""
    cards = [
        {"devices": [{"device_id": str(card), "device_ip": f"192.1.{node}.{card}"}], "server_id": f"10.0.0.{node}"}
        for node in range(2)
        for card in range(2)
    ]
    instances = [{**card, "rank_id": str(rank)} for rank, card in enumerate(cards)]
    counts = {"device_num": "4", "server_num": "2", "instance_count": "4", "group_name": "test"}
    lab = {
        "board_id": "0x0020",
        "chip_info": "910",
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [{**counts, "instance_list": instances}],
        "para_plane_nic_location": "device",
        "para_plane_nic_num": "2",
        "para_plane_nic_name": ["eth0", "eth1"],
        "status": "completed",
    }
    path = tmp_path / "hccl_ms.json"
    path.write_text(json.dumps(lab))
    alone = RANK | {"RANK_TABLE_FILE": str(path), "SINGLESERVER_MODE": "True"}
    told = f"__import__('collective').ascend_variables(job, {str(path)!r})"
    variables = read("resnet50", ["--train_url=/x"], told, alone)
    assert variables["MINDSPORE_HCCL_CONFIG_PATH"] == variables["RANK_TABLE_FILE"]
    table, problems = check.read_table(Path(variables["RANK_TABLE_FILE"]).read_text(), Order.PODS)
    assert table is not None
    assert [*problems, *check.check_table(table)] == []
    (group,) = json.loads(Path(variables["RANK_TABLE_FILE"]).read_text())["group_list"]
    assert [(card["rank_id"], card["server_id"]) for card in group["instance_list"]] == [
        ("0", "10.0.0.1"),
        ("1", "10.0.0.1"),
    ]


def test_servers_that_train_together_keep_the_platforms_table(tmp_path: Path) -> None:
    path = table(tmp_path)
    told = f"__import__('collective').ascend_variables(job, {str(path)!r})"
    assert read("resnet50", ["--train_url=/x"], told, RANK | {"RANK_TABLE_FILE": str(path)}) == {}


def test_the_learning_rate_warms_up_and_falls_to_nothing() -> None:
    rates = printed_json(
        code_of("resnet50"), "import json, fitting; print(json.dumps(fitting.learning_rates(0.8, 100).tolist()))"
    )
    peak = rates.index(max(rates))
    assert len(rates) == 100
    assert 5 <= peak <= 15
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 0.01 < max(rates) <= 0.8


def test_the_throughput_is_over_seconds_that_are_not_rounded(tmp_path: Path) -> None:
    told = "__import__('telling').report(job, 5.0, 0.5, steps=10, batch=16, epochs=2)"
    assert read("resnet50", [f"--train_url={tmp_path}"], told) is None
    assert (tmp_path / "throughput_0.json").read_text() == "640.0"


@pytest.mark.parametrize("suite", NAMES)
def test_without_data_it_says_what_to_give(suite: str) -> None:
    answer = read(suite, ["--train_url=/x"], "__import__('fitting').data_folder(job)")
    assert answer.startswith("refused: there are no data: give --data_url, or --synthetic=N")


def test_the_generated_cifar_10_is_read_as_the_real_one_is() -> None:
    told = "[part.shape for part in [*train.pictures(train.records(job)[0]), train.records(job)[1]]]"
    shapes = read("resnet50_cifar10", ["--train_url=/x", "--synthetic=50"], told)
    assert shapes == [[50, 32, 32, 3], [50], [10, 3073]]


def test_the_folders_of_imagenet_must_agree(tmp_path: Path) -> None:
    told = f"train.classes_of(train.Path({str(tmp_path)!r}))"
    arguments = ["--train_url=/x"]
    assert read("resnet50", arguments, told).startswith(f"refused: {tmp_path}/train is missing")
    for folder in ("train/n01", "train/n02", "val/n02"):
        (tmp_path / folder).mkdir(parents=True)
    assert read("resnet50", arguments, told) == ["n01", "n02"]
    (tmp_path / "val/n03").mkdir()
    assert "has the class n03, which" in read("resnet50", arguments, told)


def test_enwiki_is_all_of_one_format(tmp_path: Path) -> None:
    told = f"train.enwiki.record_files(train.Path({str(tmp_path)!r}))"
    arguments = ["--train_url=/x"]
    assert "holds 0 MindRecord and 0 other files" in read("bert", arguments, told)
    names = ["a.tfrecord", "b.tfrecord"]
    for name in names:
        (tmp_path / name).touch()
    assert read("bert", arguments, told) == [[str(tmp_path / name) for name in names], False]
    (tmp_path / "c.mindrecord").touch()
    assert "holds 1 MindRecord and 2 other files" in read("bert", arguments, told)


def test_generated_sentences_have_the_columns_of_enwiki() -> None:
    told = (
        "[{k: len(v) for k, v in row.items()} for row in "
        "train.enwiki.made(train.networks.shape_of(job.arguments), [1], 6)]"
    )
    rows = read("bert", ["--train_url=/x", "--bert_network=tiny"], told)
    columns = {"input_ids": 16, "input_mask": 16, "segment_ids": 16, "next_sentence_labels": 1}
    asked = dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 2)
    assert rows == [columns | asked] * 6


@pytest.mark.parametrize("suite", NAMES)
@pytest.mark.skipif(importlib.util.find_spec("mindspore") is not None, reason="MindSpore is installed here")
def test_without_mindspore_a_job_ends_with_one_line(suite: str, tmp_path: Path) -> None:
    done = run_python(code_of(suite), code_of(suite)[0] / "train.py", f"--train_url={tmp_path}", "--synthetic=8")
    assert done.returncode == 1
    assert done.stderr == f"[ERROR] rank 0: mindspore is not installed for {sys.executable}\n"
