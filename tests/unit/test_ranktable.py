"""Rank tables: read, made, checked and converted."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aisbench.errors import UsageFault
from pytest_aisbench.ranktable.check import check_text, read_table
from pytest_aisbench.ranktable.table import Form, Order, RankTable, convert, make_table, read_hccn, table_text

LAB = (Path(__file__).parent / "golden" / "ranktable_lab_16.json").read_text(encoding="utf-8")
V1_0: dict[str, Any] = {
    "version": "1.0",
    "server_count": "2",
    "server_list": [
        {
            "server_id": f"10.0.0.{server}",
            "device": [
                {
                    "device_id": str(card),
                    "device_ip": f"192.{card % 4 + 1}.27.{2 * server + card // 4}",
                    "rank_id": str(8 * server + card),
                }
                for card in range(8)
            ],
            "host_nic_ip": "reserve",
        }
        for server in range(2)
    ],
    "status": "completed",
}
CLOUD: dict[str, Any] = {
    "status": "completed",
    "group_count": "1",
    "group_list": [
        {
            "group_name": "job-trainjob",
            "device_count": "4",
            "instance_count": "2",
            "instance_list": [
                {
                    "pod_name": f"jobab12-job-trainjob-{index}",
                    "server_id": f"192.168.0.{25 - index}",
                    "devices": [
                        {"device_id": str(card), "device_ip": f"192.1.1{index}.{card + 1}"} for card in range(2)
                    ],
                }
                for index in range(2)
            ],
        }
    ],
}
V1_2: dict[str, Any] = copy.deepcopy(V1_0)
V1_2["version"] = "1.2"
V1_2["super_pod_list"] = [
    {"super_pod_id": str(index), "server_list": [{"server_id": f"10.0.0.{index}"}]} for index in range(2)
]
for _server in V1_2["server_list"]:
    for _device in _server["device"]:
        _device["super_device_id"] = str(37748736 + int(_device["device_id"]))


def table(document: Any, order: Order = Order.PODS) -> RankTable:
    read, problems = read_table(document if isinstance(document, str) else json.dumps(document), order)
    assert not problems
    assert read
    return read


def cards(read: RankTable) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(server.id, device.id, device.ips) for server, device in read.ranks]


def problems_of(document: Any, **kwargs: Any) -> list[str]:
    return [str(problem) for problem in check_text(json.dumps(document), **kwargs)]


def test_the_table_of_sixteen_cards_passes() -> None:
    assert check_text(LAB) == []
    lab = table(LAB)
    assert (lab.form, lab.chip, len(lab.servers)) == (Form.LAB, "910", 2)
    assert cards(lab)[9] == ("192.168.3.2", 1, ("192.168.20.3",))


@pytest.mark.parametrize("document", [V1_0, CLOUD, V1_2])
def test_sound_tables_of_every_form_pass(document: dict[str, Any]) -> None:
    assert problems_of(document) == []


def _at(document: Any, path: str) -> tuple[Any, Any]:
    *way, last = [int(key) if key.lstrip("-").isdecimal() else key for key in path.split(".")]
    for key in way:
        document = document[key]
    return document, last


def changed(document: Any, path: str, value: Any) -> Any:
    """A copy in which one value is another, or None: missing."""
    broken = copy.deepcopy(document)
    where, key = _at(broken, path)
    if value is None:
        del where[key]
    else:
        where[key] = value
    return broken


DEVICE = "server_list.1.device.2"  # rank 10
BAD: list[tuple[dict[str, Any], str, Any, str]] = [
    (V1_0, "status", None, "status is missing"),
    (V1_0, "status", "initializing", "the platform has not filled it in yet"),
    (V1_0, "status", "done", "status is 'done', wanted 'completed'"),
    (V1_0, "version", "1.1", "version 1.1 is for clusters of different chips"),
    (V1_0, "version", "", "version is empty"),
    (V1_0, "version", "2.0", "version '2.0' is not supported"),
    (V1_0, "server_count", "3", "server_count says 3, and there are 2 servers"),
    (V1_0, "server_count", 2, "server_count is 2, and every value is text: write it in quotes"),
    (V1_0, "server_count", None, "warning: server_count is missing; it should say 2"),
    (V1_0, "server_list", "x", "server_list is not a list"),
    (V1_0, "server_list.1.device", [], "server 10.0.0.1: has no card"),
    (V1_0, "server_list.1.server_id", "10.0.0.0", "server 10.0.0.0: server_id is used by 2 servers"),
    (V1_0, "server_list.1.server_id", "", "server number 1: server_id is empty"),
    (V1_0, "server_list.1.server_id", "x" * 65, "server_id has 65 characters, 64 are allowed"),
    (V1_0, "server_list.1.host_ip", "10.0.0.1", "server 10.0.0.0: has no host_ip, and server 10.0.0.1 has one"),
    (V1_0, f"{DEVICE}.rank_id", "9", "rank 9 is used repeatedly: server 10.0.0.1, card 1 and server 10.0.0.1, car"),
    (V1_0, f"{DEVICE}.rank_id", "9", "no card has rank 10"),
    (V1_0, f"{DEVICE}.rank_id", "16", "server 10.0.0.1, card 2: rank_id 16 exceeds 15"),
    (V1_0, f"{DEVICE}.rank_id", 10, "server 10.0.0.1, card 2: rank_id is 10, and every value is text"),
    (V1_0, f"{DEVICE}.rank_id", "-1", "server 10.0.0.1, card 2: rank_id is '-1', which is not a whole number"),
    (V1_0, f"{DEVICE}.device_id", "1", "server 10.0.0.1, card 1: device_id is used 2 times, by ranks 9, 10"),
    (V1_0, f"{DEVICE}.device_id", "8", "server 10.0.0.1, card 8, rank 10: device_id is not between 0 and 7"),
    (V1_0, f"{DEVICE}.device_id", None, "server 10.0.0.1, card number 2: device_id is missing"),
    (V1_0, f"{DEVICE}.device_id", "", "server 10.0.0.1, card number 2: device_id is empty"),
    (V1_0, f"{DEVICE}.device_ip", None, "server 10.0.0.1, card 2, rank 10: device_ip is missing"),
    (V1_0, f"{DEVICE}.device_ip", "", "server 10.0.0.1, card 2, rank 10: device_ip is missing"),
    (V1_0, f"{DEVICE}.device_port", 16666, "server 10.0.0.1, card 2: device_port is 16666, and every value is text"),
    (V1_0, "server_list.1.host_nic_ip", 0, "server 10.0.0.1: host_nic_ip is 0, and every value is text"),
    (V1_0, "server_list", [], "server_list has no server"),
    (V1_0, f"{DEVICE}.device_ip", "192.3.27", "card 2, rank 10: device_ip '192.3.27' is not an IPv4 or IPv6"),
    (V1_0, f"{DEVICE}.device_ip", "192.1.27.0", "rank 10: device_ip 192.1.27.0 is that of server 10.0.0.0, card 0"),
    (V1_0, f"{DEVICE}.device_ip", "fe80::1", "card 2, rank 10: device_ip is IPv6, and that of server 10.0.0.0"),
    (V1_0, f"{DEVICE}.device_ip", "192.3.27.2,192.3.28.2", "rank 0: has 1 addresses, and server 10.0.0.1, card 2"),
    (V1_0, f"{DEVICE}.device_ip", "192.9.27.2", "warning: server 10.0.0.1, card 2, rank 10: device_ip 192.9.27.2"),
    (V1_0, DEVICE, "card", 'card number 2 is "card", not an object'),
    (CLOUD, "group_list.0.device_count", "8", "device_count says 8, and there are 4 cards"),
    (CLOUD, "group_list.0.instance_count", "1", "instance_count says 1, and there are 2 instances"),
    (CLOUD, "group_count", "2", "group_count says 2, and there are 1 groups"),
    (CLOUD, "group_list.0.instance_list.1.pod_name", "jobab12-job-trainjob-0", "server 192.168.0.24: pod_name"),
    (CLOUD, "group_list.0.instance_list.1.devices.0.device_id", "8", "server 192.168.0.24, card 8, rank 2: device_i"),
    (CLOUD, "group_list.0.instance_list.1.devices.0.device_ip", "x", "server 192.168.0.24, card 0, rank 2: device_i"),
    (CLOUD, "group_list.0.instance_list.1.devices", [], "server 192.168.0.24: has no card"),
    (CLOUD, "group_list.0.instance_list.1.devices.0.device_ip", None, "card 0, rank 2: device_ip is missing"),
    (CLOUD, "group_list.0.instance_list.1.server_id", "192.168.0.25", "server 192.168.0.25, card 0: device_id is us"),
    (CLOUD, "group_list", [], "group_list is empty"),
    (V1_2, "super_pod_list.1.super_pod_id", "0", "super pod 0: super_pod_id is used 2 times"),
    (V1_2, "super_pod_list.1.super_pod_id", "", "super_pod_id is empty"),
    (V1_2, "super_pod_list.1.server_list.0.server_id", "10.0.0.9", "super pod 1: server 10.0.0.9 is not in server_li"),
    (V1_2, "super_pod_list.1.server_list.0.server_id", "10.0.0.0", "server 10.0.0.1: is in no super pod"),
    (V1_2, "super_pod_list.1.server_list.0.server_id", "10.0.0.0", "pod 1: server 10.0.0.0 is in super pod 0 too"),
    (V1_2, "super_pod_list.1.server_list", [], "super pods must have the same number of servers"),
    (V1_2, "super_pod_list", None, "super_pod_list has no super pod"),
    (V1_2, f"{DEVICE}.super_device_id", None, "server 10.0.0.1, card 2, rank 10: super_device_id is missing"),
    (V1_2, f"{DEVICE}.super_device_id", "a", "rank 10: super_device_id 'a' is not a whole number"),
    (V1_2, f"{DEVICE}.super_device_id", "٣", "rank 10: super_device_id '٣' is not a whole number"),
    (V1_2, f"{DEVICE}.super_device_id", "37748736", "super pod 1, server 10.0.0.1, card 2, rank 10: super_device_id"),
    (json.loads(LAB), "para_plane_nic_location", "host", "para_plane_nic_location is 'host', wanted 'device'"),
    (json.loads(LAB), "para_plane_nic_location", "", "para_plane_nic_location is empty"),
    (json.loads(LAB), "deploy_mode", 1, "deploy_mode is 1, and every value is text"),
    (json.loads(LAB), "para_plane_nic_num", "4", "warning: para_plane_nic_num says 4"),
    (json.loads(LAB), "para_plane_nic_num", 8, "para_plane_nic_num is 8, and every value is text"),
    (json.loads(LAB), "board_id", 32, "board_id is 32, and every value is text"),
    (json.loads(LAB), "board_id", "0x0030", "warning: board_id is '0x0030', and guides know 0x0000 (x86), 0x0020"),
    (json.loads(LAB), "group_list.0.instance_count", "8", "instance_count says 8, and there are 16 instances"),
    (json.loads(LAB), "group_list.0.instance_list.9.devices.0.device_ip", None, "1, rank 9: device_ip is missing"),
    (json.loads(LAB), "group_list.0.device_num", "8", "group number 0: device_num says 8, and there are 16 cards"),
    (json.loads(LAB), "group_list.0.server_num", "1", "server_num says 1, and there are 2 servers"),
    (json.loads(LAB), "group_list.0.instance_list.9.rank_id", "1", "rank 1 is used repeatedly: server 192.168.3.6"),
    (json.loads(LAB), "group_list.0.instance_list.9.server_id", "192.168.3.6", "server 192.168.3.6, card 1: device"),
    (json.loads(LAB), "group_list.0.instance_list.9.server_id", "192.168.3.9", "16 cards on 3 servers"),
    (json.loads(LAB), "group_list.0.instance_list.9.devices", [], "server 192.168.3.2, rank 9: has 0 cards"),
    (json.loads(LAB), "group_list.0.group_name", None, "group number 0: group_name is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "path", "value", "text"), BAD)
def test_each_rule_names_the_entry(document: dict[str, Any], path: str, value: Any, text: str) -> None:
    lines = problems_of(changed(document, path, value))
    assert any(text in line for line in lines), lines
    assert any(not line.startswith("warning") for line in lines) is not text.startswith("warning")


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        (V1_0, "server_list.1.server_id", "x" * 64),
        (V1_0, "server_list.1.host_nic_ip", None),
        (json.loads(LAB), "board_id", "0x0000"),
        (json.loads(LAB), "board_id", None),
        (json.loads(LAB), "group_list.0.group_name", "x"),
        (json.loads(LAB), "para_plane_nic_num", None),
    ],
)
def test_what_no_rule_forbids_passes(document: dict[str, Any], path: str, value: Any) -> None:
    assert problems_of(changed(document, path, value)) == []


POD = "group_list.0.instance_list.1.pod_name"


@pytest.mark.parametrize(
    ("document", "key", "value"),
    [
        *((CLOUD, key, value) for key in ("status", "group_count", POD) for value in (None, 1, "")),
        (V1_2, "super_pod_list", None),
        (V1_0, "server_count", None),
    ],
)
def test_one_mistake_is_one_line(document: dict[str, Any], key: str, value: Any) -> None:
    (line,) = problems_of(changed(document, key, value))
    assert key.rpartition(".")[2] in line


def test_two_groups_have_names_of_their_own() -> None:
    for document in (CLOUD, json.loads(LAB)):
        broken = copy.deepcopy(document)
        broken["group_count"], name = "2", broken["group_list"][0]["group_name"]
        broken["group_list"].append(copy.deepcopy(broken["group_list"][0]))
        assert f"group number 1: group_name {name!r} is used by an earlier group too" in problems_of(broken)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((8, 8), ""),
        ((6, 6), "12 cards on 2 servers, and each server must have 1, 2, 4, 8, 16 of them"),
        ((5, 4), "9 cards on 2 servers, and each server must have 1, 2, 4, 8, 16 of them"),
    ],
)
def test_servers_of_a_lab_table_share_the_cards_evenly(sizes: tuple[int, ...], text: str) -> None:
    servers = {str(server): {i: f"10.{server}.{i}.1" for i in range(size)} for server, size in enumerate(sizes)}
    lines = [
        line for line in problems_of(json.loads(table_text(make_table(servers, Form.LAB)))) if line.startswith("group")
    ]
    assert lines == ([f"group number 0: {text}"] if text else [])


def test_all_servers_have_a_host_ip_that_is_one_or_none_has() -> None:
    document = copy.deepcopy(V1_0)
    for index, server in enumerate(document["server_list"]):
        server["host_ip"] = f"10.0.0.{index}"
    assert problems_of(document) == []
    document["server_list"][1]["host_ip"] = "nowhere"
    assert problems_of(document) == ["server 10.0.0.1: host_ip 'nowhere' is not an address"]


def test_kinds_of_addresses_matter_between_servers_only() -> None:
    document = changed(V1_0, "server_list.0.device.4.device_ip", "fe80::1")
    assert problems_of({**document, "server_count": "1", "server_list": document["server_list"][:1]}) == []
    assert len(problems_of(document)) == 1


def test_several_addresses_of_a_card_are_as_many_on_all() -> None:
    document = copy.deepcopy(V1_0)
    for server in document["server_list"]:
        for device in server["device"]:
            device["device_ip"] += "," + device["device_ip"].replace("192.", "193.")
    assert problems_of(document) == []
    document["server_list"][1]["device"][2]["device_ip"] = ""
    assert len(problems_of(document)) == 1


def test_cards_without_a_super_device_id_do_not_share_one() -> None:
    document = copy.deepcopy(V1_2)
    for device in document["server_list"][1]["device"][:2]:
        del device["super_device_id"]
    assert [line.rpartition(": ")[2] for line in problems_of(document)] == ["super_device_id is missing"] * 2


def test_pods_of_a_cloud_table_may_share_a_server() -> None:
    """By HCCL and ModelArts alike; in the other forms it is then one server."""
    document = copy.deepcopy(CLOUD)
    first, second = document["group_list"][0]["instance_list"]
    second["server_id"] = first["server_id"]
    for card, device in enumerate(second["devices"]):
        device["device_id"] = str(2 + card)
    assert problems_of(document) == []
    for form in (Form.V1_0, Form.LAB):
        made, _ = convert(table(document), form)
        assert [len(server.devices) for server in made.servers] == [4]
        assert cards(table(table_text(made))) == cards(table(document))


def test_pods_of_one_server_need_not_follow_one_another() -> None:
    pods = [("a", (0, 1)), ("b", (0, 1)), ("a", (2, 3)), ("b", (2, 3))]
    rows = [
        {
            "pod_name": f"j-{index}",
            "server_id": server,
            "devices": [{"device_id": str(card), "device_ip": f"10.0.{index}.{card}"} for card in owned],
        }
        for index, (server, owned) in enumerate(pods)
    ]
    group = {"group_name": "g", "device_count": "8", "instance_count": "4", "instance_list": rows}
    document = {"status": "completed", "group_count": "1", "group_list": [group]}
    assert problems_of(document) == []
    made, notes = convert(table(document), Form.V1_0)
    assert [(server, card) for server, card, _ in cards(made)] == [
        (server, card) for server, own in pods for card in own
    ]
    assert [note.split()[0] for note in notes] == ["HCCL,"], "ModelArts numbers them so, pod by pod"


def test_fewer_cards_on_one_server_are_named() -> None:
    broken = copy.deepcopy(V1_0)
    broken["server_list"][1]["device"] = broken["server_list"][1]["device"][:4]
    assert "server 10.0.0.1: has 4 cards, and others have 8" in problems_of(broken)
    assert [line for line in problems_of(broken, chip="910B") if not line.startswith("warning")] == []


def test_the_chip_decides_the_numbers_of_the_cards() -> None:
    document = table_text(make_table({"a": {card: f"10.0.0.{card + 1}" for card in range(16)}}))
    assert not check_text(document, "910B")
    assert "device_id is not between 0 and 7 (chip 910)" in str(check_text(document)[0])


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ((2, 3, 4, 5), "cards 2, 3, 4, 5 are of both rings"),
        ((3, 4), "cards 3, 4 are of both rings"),
        ((0, 1, 2), "3 cards; a 910 server uses 1, 2, 4 or 8"),
        ((4, 6), "cards 4, 6 do not follow one another"),
        ((4, 5, 6, 7), ""),
        ((5,), ""),
    ],
)
def test_rings_of_a_910_are_a_warning(chosen: tuple[int, ...], text: str) -> None:
    problems = check_text(table_text(make_table({"a": {card: f"10.0.{card % 4}.{card + 1}" for card in chosen}})))
    assert [problem.warning for problem in problems] == [True] * bool(text)
    assert text in "".join(map(str, problems))


@pytest.mark.parametrize(
    ("form", "servers", "doubted"), [(Form.LAB, "12", "12"), (Form.LAB, "1", ""), (Form.V1_0, "12", "")]
)
def test_mindspore_0_wants_eight_cards_on_each_of_several_servers(form: Form, servers: str, doubted: str) -> None:
    problems = check_text(
        table_text(make_table({name: {0: f"10.0.{name}.1", 1: f"10.0.{name}.2"} for name in servers}, form))
    )
    assert [str(problem) for problem in problems] == [
        f"warning: server {name}: 2 cards; MindSpore 0.x, whose form this is, trains on several servers with 8 each"
        for name in doubted
    ]


def test_a_single_server_needs_no_addresses() -> None:
    document = copy.deepcopy(V1_0)
    document["server_count"], document["server_list"] = "1", document["server_list"][:1]
    for device in document["server_list"][0]["device"]:
        del device["device_ip"]
    assert problems_of(document) == []


def test_a_lab_table_has_an_address_for_every_card() -> None:
    (problem,) = check_text(table_text(make_table({"a": {0: ""}}, Form.LAB)))
    assert str(problem) == "server a, card 0, rank 0: device_ip is missing, by which the others reach it"


def test_conversion_keeps_every_card_its_rank() -> None:
    for form in (Form.LAB, Form.V1_0, Form.CLOUD):
        for document in (LAB, V1_0, V1_2, CLOUD):
            source = table(document)
            made, _ = convert(source, form)
            assert [str(problem) for problem in check_text(table_text(made)) if not problem.warning] == []
            assert cards(table(table_text(made))) == cards(source)


def test_a_conversion_says_where_hccl_would_number_otherwise() -> None:
    made, notes = convert(table(LAB), Form.CLOUD)
    assert notes == [
        (
            "HCCL, by server_id, would make server 192.168.3.2, card 0 rank 0; "
            "in this table that is server 192.168.3.6, card 0"
        )
    ]
    assert [server.pod for server in made.servers] == ["job-0", "job-1"]
    assert cards(table(table_text(made), Order.SERVERS))[0][0] == "192.168.3.2"
    assert cards(table(table_text(made), Order.PODS))[0][0] == "192.168.3.6"
    assert convert(table(V1_0), Form.CLOUD)[1] == []
    assert "super pods" in convert(table(V1_2), Form.V1_0)[1][0]
    with pytest.raises(UsageFault, match=r"1\.2 cannot be made"):
        convert(table(V1_0), Form.V1_2)


def test_pods_are_counted_by_their_number_not_their_text() -> None:
    document = copy.deepcopy(CLOUD)
    rows = document["group_list"][0]["instance_list"]
    rows[0]["pod_name"], rows[1]["pod_name"] = "job-10", "job-9"
    assert [name for name, *_ in cards(table(document))][::2] == ["192.168.0.24", "192.168.0.25"]


def test_pods_without_a_number_are_taken_as_listed() -> None:
    document = changed(CLOUD, "group_list.0.instance_list.0.pod_name", "last")
    assert [name for name, *_ in cards(table(document))][::2] == ["192.168.0.25", "192.168.0.24"]


def test_a_conversion_keeps_the_names_that_there_are() -> None:
    again = json.loads(table_text(convert(table(CLOUD), Form.CLOUD)[0], group="job-trainjob"))
    assert again == CLOUD
    assert json.loads(table_text(convert(table(CLOUD), Form.CLOUD)[0])) == CLOUD, "the group's usual name"
    lab = changed(json.loads(LAB), "chip_info", "910B")
    assert json.loads(table_text(convert(table(json.dumps(lab)), Form.LAB)[0])) == lab
    assert json.loads(table_text(convert(table(V1_0), Form.LAB)[0]))["chip_info"] == "910"


def test_made_of_two_hccn_files() -> None:
    conf = "# by hccn_tool\naddress_0=192.168.10.1\nnetmask_0=255.255.255.0\n address_1 = 192.168.20.1 \narp_0=x\n"
    made = make_table({"b": read_hccn(conf), "a": {1: "192.168.20.2", 0: "192.168.10.2"}})
    assert check_text(table_text(made)) == []
    assert cards(made)[1:3] == [("b", 1, ("192.168.20.1",)), ("a", 0, ("192.168.10.2",))]


@pytest.mark.parametrize(
    ("conf", "text"),
    [("", "no line address_"), ("address_0=1.1.1.1\naddress_0=1.1.1.2", "x:2: card 0 has a second address 1.1.1.2")],
)
def test_a_hccn_file_that_is_none(conf: str, text: str) -> None:
    with pytest.raises(UsageFault, match=text):
        read_hccn(conf, "x")


@pytest.mark.parametrize("bad", ["", "[]", "{}", "null", "[" * 100_000, '{"version": 1}', "\ud800", "1" * 5000])
def test_what_is_no_table_is_one_line(bad: str) -> None:
    (problem,) = check_text(bad)
    assert "\n" not in str(problem)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["0", "1", "10.0.0.1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.sampled_from([V1_0, V1_2, CLOUD, json.loads(LAB)]), st.data())
def test_no_table_breaks_the_check(document: dict[str, Any], data: st.DataObject) -> None:
    broken: Any = copy.deepcopy(document)
    where = broken
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(where[key], (dict, list)) and where[key] and data.draw(st.booleans()):
            where = where[key]
            continue
        where[key] = data.draw(JSON)
        break
    for line in problems_of(broken):
        assert "\n" not in line
