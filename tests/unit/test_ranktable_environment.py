"""What a rank was told of itself, checked before it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aisbench.errors import WorkloadError
from pytest_aisbench.ranktable.check import read_table
from pytest_aisbench.ranktable.environment import Process, before_training, contradictions, together
from pytest_aisbench.ranktable.table import Form, RankTable, make_table, table_text

GOLDEN = Path(__file__).parent / "golden" / "ranktable_lab_16.json"
SERVERS = ("192.168.3.6", "192.168.3.2")


def lab() -> RankTable:
    table, _ = read_table(GOLDEN.read_text(encoding="utf-8"))
    assert table
    return table


def started(*, repeated: bool, **more: str) -> list[Process]:
    """As the guide's script starts eight ranks on each of two nodes."""
    return [
        Process(
            f"node {node}, card {card}",
            {"RANK_SIZE": "16", "RANK_ID": str(card if repeated else 8 * node + card), "DEVICE_ID": str(card), **more},
            SERVERS[node],
        )
        for node in range(2)
        for card in range(8)
    ]


def test_ranks_counted_through_all_nodes_are_right() -> None:
    assert together(started(repeated=False), lab()) == []
    assert together(started(repeated=False)) == []


def test_ranks_repeated_on_both_nodes_are_caught_without_a_table() -> None:
    result = together(started(repeated=True))
    assert result == [
        (
            "RANK_ID 0-7 is used repeatedly, such as 0 by node 0, card 0 and node 1, card 0; "
            "count through all nodes: RANK_ID = number of the node × cards per node + card"
        ),
        "no process is rank 8-15 of 16: the others would wait for ever",
    ]


@pytest.mark.parametrize(
    "variable", [{"DLWS_SD_SELF_HOST_IP": "192.168.3.2"}, {"MA_CURRENT_HOST_IP": "192.168.3.2"}, {"DLWS_ROLE_IDX": "1"}]
)
def test_one_process_on_the_second_node_sees_it_by_itself(variable: dict[str, str]) -> None:
    mistaken = {"RANK_SIZE": "16", "RANK_ID": "3", "DEVICE_ID": "3", **variable}
    assert contradictions(mistaken, lab()) == [
        (
            "RANK_ID is 3, which the rank table has on server 192.168.3.6, and this is server 192.168.3.2: "
            "its ranks are 8-15"
        )
    ]
    assert contradictions({**mistaken, "RANK_ID": "11"}, lab()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"RANK_ID": ""}, "RANK_ID is not set"),
        ({"RANK_ID": "x"}, "RANK_ID is 'x', which is not a whole number"),
        ({"RANK_ID": "16"}, "RANK_ID is 16, and of 16 ranks the last is 15"),
        ({"RANK_SIZE": "8"}, "RANK_SIZE is 8, and the rank table has 16 cards"),
        ({"DEVICE_ID": "4"}, "DEVICE_ID is 4, and the rank table has rank 3 on card 3 of server 192.168.3.6"),
    ],
)
def test_each_contradiction_is_named(change: dict[str, str], text: str) -> None:
    (fault,) = contradictions({"RANK_SIZE": "16", "RANK_ID": "3", "DEVICE_ID": "3", **change}, lab())
    assert text in fault


def test_what_is_not_told_contradicts_nothing() -> None:
    assert contradictions({"RANK_ID": "3"}, lab()) == []
    assert contradictions({"RANK_ID": "3"}, None) == []
    ranks = [Process(rank, {"RANK_SIZE": "2", "RANK_ID": rank}, "node") for rank in "01"]
    assert together(ranks) == []


def test_a_container_may_count_its_cards_from_0() -> None:
    table = make_table({"a": {4: "", 5: ""}})
    assert contradictions({"RANK_SIZE": "2", "RANK_ID": "1", "DEVICE_ID": "1"}, table) == []
    assert contradictions({"RANK_SIZE": "2", "RANK_ID": "1", "DEVICE_ID": "5"}, table) == []
    assert contradictions({"RANK_SIZE": "2", "RANK_ID": "1", "DEVICE_ID": "4"}, table) != []


def test_with_a_cloud_table_the_rank_may_be_in_another_variable() -> None:
    document = {
        "status": "completed",
        "group_count": "1",
        "group_list": [
            {
                "group_name": "g",
                "device_count": "2",
                "instance_count": "1",
                "instance_list": [
                    {"pod_name": "job-0", "server_id": "a", "devices": [{"device_id": "0"}, {"device_id": "1"}]}
                ],
            }
        ],
    }
    table, problems = read_table(json.dumps(document))
    assert table
    assert table.form is Form.CLOUD
    assert not problems
    assert contradictions({"RANK_ID": "job-0", "DEVICE_INDEX": "1", "DEVICE_ID": "1"}, table) == []
    assert contradictions({"RANK_ID": "job-0", "DEVICE_ID": "1"}, table) == ["DEVICE_INDEX is not set"]
    assert contradictions({"RANK_ID": "1", "DEVICE_INDEX": "0", "DEVICE_ID": "1"}, table) == []
    assert contradictions({"RANK_ID": "job-1", "DEVICE_INDEX": "0"}, table) == [
        "RANK_ID is 'job-1', which is not a whole number"
    ]


def test_ranks_that_do_not_agree() -> None:
    ranks = [
        Process("a", {"RANK_SIZE": "2", "RANK_ID": "0", "DEVICE_ID": "0"}, "n"),
        Process("b", {"RANK_SIZE": "1", "RANK_ID": "1", "DEVICE_ID": "0"}, "n"),
    ]
    assert together(ranks) == [
        "b: RANK_ID is 1, and of 1 ranks the last is 0",
        "DEVICE_ID 0 is used 2 times on n: a, b",
        "the ranks do not agree on RANK_SIZE: 1 (b), 2 (a)",
    ]


def test_a_card_that_two_ranks_of_a_node_use_is_seen_by_what_the_platform_told_them() -> None:
    ranks = [
        Process(str(rank), {"RANK_SIZE": "4", "RANK_ID": str(rank), "DEVICE_ID": card, "DLWS_ROLE_IDX": node})
        for rank, (node, card) in enumerate([("0", "0"), ("0", "0"), ("1", "0"), ("1", "1")])
    ]
    assert together(ranks) == ["DEVICE_ID 0 is used 2 times on 0: 0, 1"]


def test_ranks_that_nobody_is_are_listed() -> None:
    ranks = [Process(rank, {"RANK_SIZE": "9", "RANK_ID": rank}) for rank in ("0", "2", "5")]
    assert together(ranks) == ["no process is rank 1, 3-4, 6-8 of 9: the others would wait for ever"]


def test_a_node_that_the_table_does_not_have_says_nothing() -> None:
    environment = {"RANK_SIZE": "16", "RANK_ID": "3", "DEVICE_ID": "3"}
    for node in ("2", "99"):
        assert contradictions({**environment, "DLWS_ROLE_IDX": node}, lab()) == []


WORD = st.sampled_from(["", "0", "1", "7", "16", "-1", "x", "٣", "9" * 30, "192.168.3.2"])
NAMES = st.sampled_from(["RANK_ID", "RANK_SIZE", "DEVICE_ID", "DLWS_ROLE_IDX", "POD_IP"])


@given(st.lists(st.dictionaries(NAMES, WORD), max_size=4))
def test_no_environment_breaks_the_check(environments: list[dict[str, str]]) -> None:
    for table in (None, lab()):
        for fault in together([Process(str(i), each) for i, each in enumerate(environments)], table):
            assert "\n" not in fault


def test_a_script_is_stopped_before_it_trains(tmp_path: Path) -> None:
    environment = {"RANK_TABLE_FILE": str(GOLDEN), "RANK_SIZE": "16", "RANK_ID": "3", "DEVICE_ID": "3"}
    result = before_training({**environment, "POD_IP": "192.168.3.6"})
    assert result
    assert len(result.ranks) == 16
    with pytest.raises(WorkloadError, match=r"this rank cannot train: RANK_ID is 3, .* server 192\.168\.3\.6"):
        before_training({**environment, "POD_IP": "192.168.3.2"})
    with pytest.raises(WorkloadError, match=r"cannot be read: No such file"):
        before_training({**environment, "RANK_TABLE_FILE": str(tmp_path / "none.json")})
    assert before_training({"RANK_ID": "0", "RANK_SIZE": "1"}) is None
    with pytest.raises(WorkloadError, match="neither MINDSPORE_HCCL_CONFIG_PATH nor RANK_TABLE_FILE is set"):
        before_training({"RANK_ID": "0", "RANK_SIZE": "2"})


def test_it_waits_for_a_table_that_the_platform_completes_later(tmp_path: Path) -> None:
    file = tmp_path / "jobstart_hccl.json"
    table = table_text(make_table({"a": {0: "", 1: ""}}))
    file.write_text(table.replace("completed", "initializing"), encoding="utf-8")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            file.write_text(table, encoding="utf-8")

    environment = {"RANK_TABLE_FILE": str(tmp_path), "RANK_SIZE": "2", "RANK_ID": "1", "DEVICE_ID": "1"}
    assert before_training(environment, pause=pause)
    assert len(pauses) == 3
    file.write_text(table.replace("completed", "initializing"), encoding="utf-8")
    with pytest.raises(WorkloadError, match="status is 'initializing'"):
        before_training(environment, wait_s=5, pause=lambda _: None)
