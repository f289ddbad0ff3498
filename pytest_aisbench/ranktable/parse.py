"""Reads the text of a rank table, and names every entry that its format does not allow; reading goes on after it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.model.messages import plain
from pytest_aisbench.ranktable.table import Device, Form, Order, RankTable, Server, SuperPod, renumbered

WHOLE_NUMBER = re.compile(r"\d{1,9}\Z", re.ASCII)


@dataclass(frozen=True)
class Problem:
    """What is wrong with one entry, in a line that names it."""

    text: str
    warning: bool = False  # HCCL accepts it

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.text}"


@dataclass
class Entry:
    """One object of the file. Its methods read a value, and add what is wrong to the list that all entries share."""

    data: dict[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)

    def add(self, text: str, *, warning: bool = False) -> None:
        self.problems.append(Problem(plain(f"{self.where}: {text}" if self.where else text, 300), warning))

    def named(self, name: str) -> Entry:
        """The same entry under the name that problems call it by, such as `server 10.0.0.1`."""
        return Entry(self.data, f"{self.where.rpartition(', ')[0]}, {name}".removeprefix(", "), self.problems)

    def text(self, key: str, *, needed: bool = True, empty: bool = False) -> str:
        value = self.data.get(key)
        if key not in self.data:
            if needed:
                self.add(f"{key} is missing")
            return ""
        if not isinstance(value, str):
            self.add(f"{key} is {json.dumps(value)[:40]}, and every value is text: write it in quotes")
            return ""
        if not value and not empty:
            self.add(f"{key} is empty")
        return value

    def optional(self, key: str) -> str:
        """A text that may be missing or empty."""
        return self.text(key, needed=False, empty=True)

    def whole(self, key: str, *, needed: bool = True) -> int | None:
        value = self.text(key, needed=needed)
        if value and not WHOLE_NUMBER.match(value):
            self.add(f"{key} is {value!r}, which is not a whole number")
            return None
        return int(value) if value else None

    def entries(self, key: str, kind: str, *, needed: bool = True) -> Iterator[Entry]:
        rows = self.data.get(key)
        if not isinstance(rows, list):
            if needed or key in self.data:
                self.add(f"{key} is missing" if key not in self.data else f"{key} is not a list")
            return
        for index, row in enumerate(rows):
            where = f"{self.where}, {kind} number {index}" if self.where else f"{kind} number {index}"
            if isinstance(row, dict):
                yield Entry(row, where, self.problems)
            else:
                self.add(f"{kind} number {index} is {json.dumps(row)[:40]}, not an object")

    def check_count(self, key: str, actual: int, what: str, *, needed: bool = True) -> None:
        count = self.whole(key, needed=needed)
        if count is not None and count != actual:
            self.add(f"{key} says {count}, and there are {actual} {what}")


_MOST_CHARACTERS = 64  # characters of a server_id, by HCCL's guide
_PER_SERVER = (1, 2, 4, 8, 16)
_UNUSED = ("device_port", "backup_device_ip", "backup_device_port", "host_port")  # checked only to be text
_BOARDS = {"0x0000": "x86", "0x0020": "ARM"}


def read_table(text: str, order: Order = Order.PODS) -> tuple[RankTable | None, list[Problem]]:
    """The table as far as it can be read, and its problems; `order` numbers the cards of a cloud table."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, [Problem(plain(f"not JSON: {error}", 200))]
    if not isinstance(data, dict):
        return None, [Problem("not a rank table: the whole must be an object")]
    top = Entry(data, "")
    form = _form(top)
    if form is None:
        return None, top.problems
    _status(top)
    if form is Form.LAB:
        table = _lab(top)
    elif form is Form.CLOUD:
        table = renumbered(_cloud(top), order)
    else:
        table = _versioned(top, form)
    return table, top.problems


def _form(top: Entry) -> Form | None:
    if "version" not in top.data:
        if "deploy_mode" in top.data:
            return Form.LAB
        if "group_list" in top.data:
            return Form.CLOUD
        top.add("not a rank table: it has neither version nor group_list")
        return None
    version = top.text("version")
    if version in {Form.V1_0.value, Form.V1_2.value}:
        return Form(version)
    if version == "1.1":
        top.add("version 1.1 is for clusters of different chips, and is not read here")
    elif version:
        top.add(f"version {version!r} is not supported (HCCL's EI0004): 1.0, 1.2, or a table without version")
    return None


def _status(top: Entry) -> None:
    status = top.text("status")
    if status == "initializing":
        top.add("status is 'initializing': the platform has not filled it in yet; wait until it says 'completed'")
    elif status and status != "completed":
        top.add(f"status is {status!r}, wanted 'completed'")


def _device(entry: Entry, *, rank: int | None) -> Device | None:
    number = entry.whole("device_id")
    if number is None:
        return None
    entry = entry.named(f"card {number}")
    ips = entry.optional("device_ip")  # check.py knows which tables need it
    for key in _UNUSED:
        entry.optional(key)
    if rank is None:
        rank = entry.whole("rank_id")
    super_id = entry.optional("super_device_id")
    if rank is None:
        return None
    return Device(number, rank, tuple(ip.strip() for ip in ips.split(",")) if ips else (), super_id)


def _server_id(entry: Entry) -> str:
    name = entry.text("server_id")
    if len(name) > _MOST_CHARACTERS:
        entry.add(f"server_id has {len(name)} characters, {_MOST_CHARACTERS} are allowed")
    return name


def _groups(top: Entry) -> list[Entry]:
    groups = list(top.entries("group_list", "group"))
    if isinstance(top.data.get("group_list"), list):
        top.check_count("group_count", len(top.data["group_list"]), "groups")
        if not top.data["group_list"]:
            top.add("group_list is empty")
    names = [group.data.get("group_name") for group in groups]
    for index, group in enumerate(groups):
        group.text("group_name", empty=True)
        if names[index] in names[:index]:
            group.add(f"group_name {names[index]!r} is used by an earlier group too")
    return groups


def _lab(top: Entry) -> RankTable:
    where = top.text("para_plane_nic_location")
    if where and where != "device":
        top.add(f"para_plane_nic_location is {where!r}, wanted 'device'")
    top.text("deploy_mode", empty=True)
    top.optional("para_plane_nic_num")
    board = top.optional("board_id")
    if board and board.lower() not in _BOARDS:
        boards = ", ".join(f"{number} ({machine})" for number, machine in _BOARDS.items())
        top.add(f"board_id is {board!r}, and guides know {boards}", warning=True)
    cards: dict[str, list[Device]] = {}
    for group in _groups(top):
        instances, devices, servers = list(group.entries("instance_list", "instance")), 0, set()
        for instance in instances:
            rank, server = instance.whole("rank_id"), _server_id(instance)
            if rank is not None and server:
                instance = instance.named(f"server {server}, rank {rank}")  # noqa: PLW2901
            servers.add(server)
            rows = list(instance.entries("devices", "card"))
            devices += len(rows)
            if len(rows) != 1:
                instance.add(f"has {len(rows)} cards, and in this form an instance is one card")
            for row in rows:
                device = _device(row, rank=rank if rank is not None else -1)
                if device and rank is not None and server:
                    cards.setdefault(server, []).append(device)
        group.check_count("instance_count", len(instances), "instances")
        group.check_count("device_num", devices, "cards")
        group.check_count("server_num", len(servers), "servers")
        each = devices // len(servers) if servers else 0
        if servers and (devices % len(servers) or each not in _PER_SERVER):
            wanted = ", ".join(map(str, _PER_SERVER))
            group.add(f"{devices} cards on {len(servers)} servers, and each server must have {wanted} of them")
    nics, count = top.data.get("para_plane_nic_name"), top.data.get("para_plane_nic_num")
    if isinstance(nics, list) and isinstance(count, str) and count != str(len(nics)):
        top.add(f"para_plane_nic_num says {count}, and para_plane_nic_name has {len(nics)}", warning=True)
    lab_servers = tuple(Server(name, tuple(devices)) for name, devices in cards.items())
    return RankTable(Form.LAB, lab_servers, top.optional("chip_info"))


def _cloud(top: Entry) -> RankTable:
    servers: list[Server] = []
    for group in _groups(top):
        instances, devices = list(group.entries("instance_list", "instance")), 0
        for instance in instances:
            name, pod = _server_id(instance), instance.text("pod_name")
            if name:
                instance = instance.named(f"server {name}")  # noqa: PLW2901
            if pod and any(pod == other.pod for other in servers):
                instance.add(f"pod_name {pod!r} is used by another server too")
            rows = list(instance.entries("devices", "card"))
            if not rows:
                instance.add("has no card")
            devices += len(rows)
            cards = filter(None, (_device(row, rank=-1) for row in rows))
            servers.append(Server(name, tuple(cards), pod))
        group.check_count("instance_count", len(instances), "instances")
        group.check_count("device_count", devices, "cards")
    return RankTable(Form.CLOUD, tuple(servers))


def _versioned(top: Entry, form: Form) -> RankTable:
    entries = list(top.entries("server_list", "server"))
    top.check_count("server_count", len(entries), "servers", needed=False)
    if entries and "server_count" not in top.data:
        top.add(f"server_count is missing; it should say {len(entries)}", warning=True)
    if isinstance(top.data.get("server_list"), list) and not entries:
        top.add("server_list has no server")
    servers = []
    for entry in entries:
        name = _server_id(entry)
        if name:
            entry = entry.named(f"server {name}")  # noqa: PLW2901
        rows = list(entry.entries("device", "card"))
        if isinstance(entry.data.get("device"), list) and not rows:
            entry.add("has no card")
        cards = tuple(filter(None, [_device(row, rank=None) for row in rows]))
        host = entry.optional("host_ip")
        entry.optional("host_nic_ip")
        servers.append(Server(name, cards, host_ip=host))
    pods = []
    if form is Form.V1_2:
        for pod in top.entries("super_pod_list", "super pod", needed=False):
            name = pod.text("super_pod_id")
            pods.append(SuperPod(name, tuple(_server_id(entry) for entry in pod.entries("server_list", "server"))))
    return RankTable(form, tuple(servers), pods=tuple(pods))
