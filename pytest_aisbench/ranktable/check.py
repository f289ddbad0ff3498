"""Reads the text of a rank table, and names every entry that its format does not allow, that HCCL would refuse, or that
HCCL would wait for until its timeout.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_aisbench.model.messages import plain
from pytest_aisbench.ranktable.table import Device, Form, Order, RankTable, Server, SuperPod, hosts, renumbered

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


# What the format allows, and HCCL does not.

CHIPS = {"910": 8, "910B": 16, "310P": 16, "A3": 16}  # device ids of a server are below that
_RING = 4  # an Ascend 910 server has its cards 0-3 and 4-7 in two rings
_DIGITS = re.compile(r"\d+\Z", re.ASCII)


def check_text(text: str, chip: str = "", order: Order = Order.PODS) -> list[Problem]:
    """All problems of a table's text, each in a line that names the entry; `chip` is used if the table names none."""
    table, problems = read_table(text, order)
    return problems + (check_table(table, chip) if table else [])


def check_table(table: RankTable, chip: str = "") -> list[Problem]:
    """All problems of a table that could be read."""
    chip = chip or (table.chip if table.chip in CHIPS else "A3" if table.form is Form.V1_2 else "910")
    problems = [*_ranks(table), *_servers(table, chip), *_addresses(table)]
    if table.form is Form.V1_2:
        problems += _super_pods(table)
    if chip == "910":
        problems += _rings(table)
    return [Problem(plain(problem.text, 300), problem.warning) for problem in problems]


def _place(server: Server, device: Device) -> str:
    return f"server {server.id}, card {device.id}, rank {device.rank}"


def _ranks(table: RankTable) -> Iterator[Problem]:
    """The ranks must be 0 to n-1, each once."""
    cards = table.ranks
    seen: dict[int, str] = {}
    for server, device in cards:
        here = f"server {server.id}, card {device.id}"
        if device.rank in seen:
            yield Problem(f"rank {device.rank} is used repeatedly: {seen[device.rank]} and {here}")
        elif device.rank >= len(cards):
            yield Problem(f"{here}: rank_id {device.rank} exceeds {len(cards) - 1}, the last of {len(cards)} cards")
        seen.setdefault(device.rank, here)
    missing = [str(rank) for rank in range(len(cards)) if rank not in seen]
    if missing:
        text = ", ".join(missing[:8]) + (" …" if len(missing) > 8 else "")
        yield Problem(f"no card has rank {text}: ranks must be 0 to {len(cards) - 1} without a gap")


def _servers(table: RankTable, chip: str) -> Iterator[Problem]:
    limit = 8 if table.form is Form.CLOUD else CHIPS[chip]
    servers = hosts(table) if table.form is Form.CLOUD else table.servers
    for name, count in Counter(server.id for server in servers if server.id).items():
        if count > 1:
            yield Problem(f"server {name}: server_id is used by {count} servers")
    for server in servers:
        for number, count in Counter(device.id for device in server.devices).items():
            if count > 1:
                ranks = ", ".join(str(device.rank) for device in server.devices if device.id == number)
                yield Problem(f"server {server.id}, card {number}: device_id is used {count} times, by ranks {ranks}")
        for device in server.devices:
            if device.id >= limit:
                yield Problem(f"{_place(server, device)}: device_id is not between 0 and {limit - 1} (chip {chip})")
    sizes = Counter(len(server.devices) for server in servers)
    if len(sizes) > 1:
        usual = sizes.most_common(1)[0][0]
        for server in servers:
            if len(server.devices) != usual:
                text = f"server {server.id}: has {len(server.devices)} cards, and others have {usual}"
                yield Problem(text, warning=chip == "910B")
    with_host = [server for server in table.servers if server.host_ip]
    if with_host and len(with_host) < len(table.servers):
        without = next(server for server in table.servers if not server.host_ip)
        yield Problem(f"server {without.id}: has no host_ip, and server {with_host[0].id} has one: all or none")
    for server in with_host:
        if _family(server.host_ip) is None:
            yield Problem(f"server {server.id}: host_ip {server.host_ip!r} is not an address")


def _addresses(table: RankTable) -> Iterator[Problem]:
    if table.form is Form.CLOUD and len(table.servers) == 1:
        return  # on one server, no card connects by address
    needed = table.form is Form.LAB or len(table.servers) > 1
    owner: dict[str, str] = {}
    families: dict[int, str] = {}
    counts: dict[int, str] = {}
    for server, device in table.ranks:
        here = _place(server, device)
        for ip in device.ips:
            family = _family(ip)
            if family is None:
                yield Problem(f"{here}: device_ip {ip!r} is not an IPv4 or IPv6 address")
                continue
            families.setdefault(family, here)
            same = str(ipaddress.ip_address(ip))
            if same in owner:
                yield Problem(f"{here}: device_ip {ip} is that of {owner[same]} too")
            owner.setdefault(same, here)
        if needed and not device.ips:
            yield Problem(f"{here}: device_ip is missing, by which the others reach it")
        counts.setdefault(len(device.ips), here)
    if len(families) > 1 and len(table.servers) > 1:
        yield Problem(f"{families[6]}: device_ip is IPv6, and that of {families[4]} is IPv4: one kind for all")
    if len(counts) > 1 and 0 not in counts:
        few, many = sorted(counts)[:2]
        yield Problem(f"{counts[few]}: has {few} addresses, and {counts[many]} has {many}: the same number for all")


def _family(ip: str) -> int | None:
    try:
        return ipaddress.ip_address(ip).version
    except ValueError:
        return None


def _super_pods(table: RankTable) -> Iterator[Problem]:
    if not table.pods:
        yield Problem("super_pod_list has no super pod")
        return
    servers = {server.id: server for server in table.servers}
    for name, count in Counter(pod.id for pod in table.pods).items():
        if count > 1:
            yield Problem(f"super pod {name}: super_pod_id is used {count} times")
    home: dict[str, SuperPod] = {}
    for pod in table.pods:
        for name in pod.servers:
            if name not in servers:
                yield Problem(f"super pod {pod.id}: server {name} is not in server_list")
            elif name in home:
                yield Problem(f"super pod {pod.id}: server {name} is in super pod {home[name].id} too")
            home.setdefault(name, pod)
    for name in servers.keys() - home.keys():
        yield Problem(f"server {name}: is in no super pod")
    if len({len(pod.servers) for pod in table.pods}) > 1:
        sizes = ", ".join(f"{pod.id} has {len(pod.servers)}" for pod in table.pods)
        yield Problem(f"super pods must have the same number of servers: {sizes}")
    yield from _super_devices(table, servers)


def _super_devices(table: RankTable, servers: dict[str, Server]) -> Iterator[Problem]:
    for server, device in table.ranks:
        if not device.super_id:
            yield Problem(f"{_place(server, device)}: super_device_id is missing")
        elif not _DIGITS.match(device.super_id):
            yield Problem(f"{_place(server, device)}: super_device_id {device.super_id!r} is not a whole number")
    for pod in table.pods:
        seen: dict[str, str] = {}
        for name in dict.fromkeys(pod.servers):
            for device in servers[name].devices if name in servers else ():
                here = _place(servers[name], device)
                if device.super_id and device.super_id in seen:
                    text = f"{here}: super_device_id {device.super_id} is that of {seen[device.super_id]} too"
                    yield Problem(f"super pod {pod.id}, {text}")
                seen.setdefault(device.super_id, here)


def _rings(table: RankTable) -> Iterator[Problem]:
    """What the guides of the 910 forbid: HCCL's parser accepts such a table, and the job may not train."""
    servers = hosts(table)
    for server in servers:
        cards = {device.id: device for device in server.devices if device.id < 2 * _RING}
        numbers = ", ".join(map(str, sorted(cards)))
        if len(server.devices) not in {1, 2, 4, 8}:
            yield _warning(f"server {server.id}: {len(server.devices)} cards; a 910 server uses 1, 2, 4 or 8")
        elif table.form is Form.LAB and len(servers) > 1 and len(server.devices) != 2 * _RING:
            text = f"server {server.id}: {len(server.devices)} cards"
            yield _warning(f"{text}; MindSpore 0.x, whose form this is, trains on several servers with 8 each")
        elif 1 < len(cards) < 2 * _RING and len({number // _RING for number in cards}) > 1:
            yield _warning(f"server {server.id}: cards {numbers} are of both rings, 0-3 and 4-7")
        elif cards and max(cards) - min(cards) >= len(cards):
            yield _warning(
                f"server {server.id}: cards {numbers} do not follow one another, as Huawei's hccl_tools wants it"
            )
        for number, device in cards.items():
            other = cards.get(number + _RING)
            if other and _net(device) and _net(other) and _net(device) != _net(other):
                text = f"device_ip {device.ips[0]} and {other.ips[0]} of card {other.id} are usually of one subnet"
                yield _warning(f"{_place(server, device)}: {text}")


def _warning(text: str) -> Problem:
    return Problem(text, warning=True)


def _net(device: Device) -> str:
    ip = device.ips[0] if device.ips else ""
    return ip.rpartition(".")[0] if _family(ip) == 4 else ""
