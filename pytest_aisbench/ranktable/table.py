"""A rank table says which card of which server is which rank: the values, how to make, convert and write one."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pytest_aisbench.errors import UsageFault

_ADDRESS = re.compile(r"\s*address_(\d{1,3})\s*=\s*(\S+)\s*\Z", re.ASCII)

_TRAILING = re.compile(r"(\d{1,9})\Z", re.ASCII)


class Form(enum.Enum):
    """The file format of a table."""

    LAB = "lab"  # `deploy_mode`, one instance per card: MindSpore 0.x
    CLOUD = "cloud"  # one instance per pod and no rank: ModelArts' v0.1, Huawei's template 2
    V1_0 = "1.0"
    V1_2 = "1.2"  # with super pods; read and checked only


class Order(enum.Enum):
    """Who numbers the cards of a cloud table, which has no ranks; the two can disagree."""

    PODS = "pods"  # ModelArts' launcher: by the number at the end of the pod's name, cards as listed
    SERVERS = "servers"  # HCCL: by server_id as text, then by device_id


@dataclass(frozen=True)
class Device:
    id: int
    rank: int
    ips: tuple[str, ...] = ()  # a single server needs none
    super_id: str = ""


@dataclass(frozen=True)
class Server:
    id: str
    devices: tuple[Device, ...]
    pod: str = ""
    host_ip: str = ""


Card = tuple[Server, Device]


@dataclass(frozen=True)
class SuperPod:
    id: str
    servers: tuple[str, ...]


@dataclass(frozen=True)
class RankTable:
    form: Form
    servers: tuple[Server, ...]
    chip: str = ""  # if the table names it
    pods: tuple[SuperPod, ...] = ()

    @cached_property
    def ranks(self) -> tuple[Card, ...]:
        """Every card with its server, by rank."""
        cards = [(server, device) for server in self.servers for device in server.devices]
        return tuple(sorted(cards, key=lambda card: card[1].rank))

    @cached_property
    def nodes(self) -> tuple[Server, ...]:
        """The servers in the order of their first ranks, by which platforms number their nodes."""
        return tuple(
            sorted(self.servers, key=lambda server: min((device.rank for device in server.devices), default=0))
        )

    def at(self, rank: int) -> Card | None:
        return self._by_rank.get(rank)

    @cached_property
    def _by_rank(self) -> dict[int, Card]:
        return {card[1].rank: card for card in reversed(self.ranks)}


def hosts(table: RankTable) -> tuple[Server, ...]:
    """The servers, each once: a cloud table has one for every pod, and pods may share a machine."""
    by_id: dict[str, Server] = {}
    for server in table.servers:
        same = by_id.get(server.id)
        by_id[server.id] = replace(same, devices=same.devices + server.devices) if same else server
    return tuple(by_id.values())


def make_table(servers: Mapping[str, Mapping[int, str]], form: Form = Form.V1_0) -> RankTable:
    """A table with ranks in the order of `servers`, then of their cards; `servers` maps each device to its address."""
    made, rank = [], 0
    for name, addresses in servers.items():
        devices = []
        for device, ip in sorted(addresses.items()):
            devices.append(Device(device, rank, (ip,) if ip else ()))
            rank += 1
        made.append(Server(name, tuple(devices)))
    return RankTable(form, tuple(made))


def read_hccn(text: str, place: str = "hccn.conf") -> dict[int, str]:
    """The addresses by device in the text of a server's `/etc/hccn.conf`."""
    addresses: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _ADDRESS.match(line):
            device, ip = int(match[1]), match[2]
            if addresses.setdefault(device, ip) != ip:
                raise UsageFault(
                    f"{place}:{number}: card {device} has a second address {ip}, besides {addresses[device]}"
                )
    if not addresses:
        raise UsageFault(f"{place}: no line address_<device>=<ip>", advice="give a server's /etc/hccn.conf")
    return addresses


def renumbered(table: RankTable, order: Order) -> RankTable:
    """The table with the ranks that `order` gives its cards."""
    servers = list(table.servers)
    if order is Order.PODS and all(_TRAILING.search(server.pod) for server in servers):
        servers.sort(key=lambda server: int(_TRAILING.findall(server.pod)[0]))
    elif order is Order.SERVERS:
        servers.sort(key=lambda server: server.id)
    rank, made = 0, []
    for server in servers:
        devices = list(server.devices)
        if order is Order.SERVERS:
            devices.sort(key=lambda device: device.id)
        made.append(replace(server, devices=tuple(replace(device, rank=rank + i) for i, device in enumerate(devices))))
        rank += len(devices)
    return replace(table, servers=tuple(made))


def convert(table: RankTable, form: Form, job: str = "job") -> tuple[RankTable, list[str]]:
    """The same cards with the same ranks in another form, and notes for the user."""
    if form is Form.V1_2:
        raise UsageFault("a table of version 1.2 cannot be made", advice="it is written by who knows the super pods")
    notes = []
    if table.pods:
        notes.append("super pods and super_device_id are left out: only version 1.2 has them")
    servers = hosts(table)
    if form is Form.CLOUD:
        servers = tuple(
            replace(
                server,
                pod=server.pod or f"{job}-{index}",
                devices=tuple(sorted(server.devices, key=lambda device: device.rank)),
            )
            for index, server in enumerate(table.nodes)
        )
    made = replace(table, form=form, servers=servers, pods=())
    without_ranks = table if table.form is Form.CLOUD else made
    for order in Order if without_ranks.form is Form.CLOUD else ():
        notes += _rank_differences(made, renumbered(without_ranks, order), order)
    return made, notes


def _rank_differences(table: RankTable, other: RankTable, order: Order) -> list[str]:
    """A note on the first rank that would be another card's if `order` numbered the cards."""
    for (mine, device), (theirs, card) in zip(table.ranks, other.ranks, strict=True):
        if (mine.id, device.id) != (theirs.id, card.id):
            who = "HCCL, by server_id," if order is Order.SERVERS else "ModelArts, by the pods' numbers,"
            text = f"{who} would make server {theirs.id}, card {card.id} rank {card.rank}"
            return [f"{text}; in this table that is server {mine.id}, card {device.id}"]
    return []


def select_devices(addresses: Mapping[int, str], devices: Sequence[int], place: str) -> dict[int, str]:
    """The addresses of these cards only."""
    for device in devices:
        if device not in addresses:
            raise UsageFault(f"{place}: there is no card {device}", advice=f"known: {', '.join(map(str, addresses))}")
    return {device: addresses[device] for device in devices}


def table_text(table: RankTable, *, group: str = "") -> str:
    return json.dumps(_document(table, group=group), indent=2, ensure_ascii=False) + "\n"


def _document(table: RankTable, *, group: str = "") -> dict[str, Any]:
    """The table as JSON data: HCCL wants every value as text."""
    if table.form is Form.LAB:
        return _lab(table, group)
    if table.form is Form.CLOUD:
        return _cloud(table, group or "job-trainjob")
    assert table.form is Form.V1_0
    return {
        "version": "1.0",
        "server_count": str(len(table.servers)),
        "server_list": [
            {
                "server_id": server.id,
                "device": [{"device_id": str(d.id), **_device_ip(d), "rank_id": str(d.rank)} for d in server.devices],
                **({"host_ip": server.host_ip} if server.host_ip else {"host_nic_ip": "reserve"}),
            }
            for server in table.servers
        ],
        "status": "completed",
    }


def _lab(table: RankTable, group: str) -> dict[str, Any]:
    ranks = table.ranks
    widest = max((len(server.devices) for server in table.servers), default=0)
    return {
        "board_id": "0x0020",
        "chip_info": table.chip or "910",
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [
            {
                "device_num": str(len(ranks)),
                "server_num": str(len(table.servers)),
                "group_name": group,
                "instance_count": str(len(ranks)),
                "instance_list": [
                    {
                        "devices": [{"device_id": str(device.id), **_device_ip(device)}],
                        "rank_id": str(device.rank),
                        "server_id": server.id,
                    }
                    for server, device in ranks
                ],
            }
        ],
        "para_plane_nic_location": "device",
        "para_plane_nic_name": [f"eth{index}" for index in range(widest)],
        "para_plane_nic_num": str(widest),
        "status": "completed",
    }


def _cloud(table: RankTable, group: str) -> dict[str, Any]:
    return {
        "group_count": "1",
        "group_list": [
            {
                "group_name": group,
                "device_count": str(len(table.ranks)),
                "instance_count": str(len(table.servers)),
                "instance_list": [
                    {
                        "pod_name": server.pod or f"{group}-{index}",
                        "server_id": server.id,
                        "devices": [{"device_id": str(d.id), **_device_ip(d)} for d in server.devices],
                    }
                    for index, server in enumerate(table.servers)
                ],
            }
        ],
        "status": "completed",
    }


def _device_ip(device: Device) -> dict[str, str]:
    return {"device_ip": ",".join(device.ips)} if device.ips else {}
