"""Checks a rank table before a job starts: which entries HCCL would refuse, or wait for until its timeout."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator

from pytest_aisbench.model.messages import plain
from pytest_aisbench.ranktable.parse import Problem, read_table
from pytest_aisbench.ranktable.table import Device, Form, Order, RankTable, Server, SuperPod, hosts

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
