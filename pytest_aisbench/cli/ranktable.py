"""`aisbench ranktable`: make, check and convert rank tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_aisbench.cli import FAILED, add_command, write_text
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.ranktable.check import Problem, check_table, check_text, read_table
from pytest_aisbench.ranktable.environment import Process, contradictions, together
from pytest_aisbench.ranktable.table import (
    Form,
    Order,
    RankTable,
    convert,
    make_table,
    read_hccn,
    select_devices,
    table_text,
)

_FORMS = ("lab", "cloud", "1.0")
_CHIPS = ("910", "910B", "310P", "A3")


def register(commands: Any) -> None:
    table = add_command(
        commands,
        "ranktable",
        "make, check and convert the rank tables that HCCL reads",
        "aisbench ranktable check hccl.json",
    )
    verbs = table.add_subparsers(required=True, metavar="make|check|convert", dest="verb")
    make = add_command(
        verbs,
        "make",
        "make a rank table from addresses, or from hccn.conf files",
        "aisbench ranktable make 10.0.0.1=/etc/hccn.conf --output hccl.json",
    )
    make.add_argument(
        "server",
        nargs="*",
        metavar="SERVER=CARDS",
        help="a server's address, and those of its cards with commas between, or its hccn.conf; in the ranks' order",
    )
    make.add_argument(
        "--slurm", metavar="NODES", help="nodes of a Slurm cluster, such as node[1-4], by their hccn.conf"
    )
    make.add_argument(
        "--hccn-conf", default="/etc/hccn.conf", metavar="FILE", help="of these nodes; %%n is the name of each"
    )
    make.add_argument("--devices", metavar="0-7", help="only these cards of each server, such as 0-3 or 4,5")
    make.add_argument("--format", choices=_FORMS, default="1.0", help="how it is written (default 1.0)")
    _made_options(make)
    _chip_option(make)
    make.set_defaults(act=_make)
    check = add_command(
        verbs,
        "check",
        "name every entry that HCCL would refuse, or wait for in vain",
        "aisbench ranktable check hccl.json --env",
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument(
        "--env",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="also what the ranks were told: each file is what `env` prints for one rank; without, this process is it",
    )
    check.add_argument("--json", action="store_true", help="for programs")
    _chip_option(check)
    _order_option(check)
    check.set_defaults(act=_check)
    convert = add_command(
        verbs,
        "convert",
        "write the same cards and ranks in another form",
        "aisbench ranktable convert hccl.json --to cloud",
    )
    convert.add_argument("file", type=Path, metavar="FILE")
    convert.add_argument("--to", choices=_FORMS, required=True, help="how it is written")
    convert.add_argument("--job", default="job", metavar="NAME", help="pods of a cloud table are NAME-0, NAME-1, …")
    _made_options(convert)
    _chip_option(convert)
    _order_option(convert)
    convert.set_defaults(act=_convert)


def _made_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", default="", metavar="NAME", help="the group's name in a lab or cloud table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where it is written (default: printed)")


def _chip_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chip", choices=_CHIPS, default="", help="whose rules hold (default: the table's, or 910)")


def _order_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--order",
        choices=["pods", "servers"],
        default="pods",
        help="who numbers the cards of a cloud table: ModelArts by its pods (default), or HCCL by its servers",
    )


def _make(options: argparse.Namespace) -> int:
    devices = _devices(options.devices) if options.devices else []
    servers: dict[str, dict[int, str]] = {}
    if bool(options.server) == bool(options.slurm):
        raise UsageFault("name servers with their cards, or --slurm NODES", advice="one of both")
    if options.slurm:
        from pytest_aisbench.platforms.slurm.commands import Commands

        for name, text in Commands(0.0).read_on_nodes(options.slurm, options.hccn_conf).items():
            addresses = read_hccn(text, f"{options.hccn_conf} of {name}")
            servers[name] = select_devices(addresses, devices, name) if devices else addresses
    for argument in options.server:
        name, _, cards = argument.partition("=")
        if not name or name in servers:
            advice = "write 192.168.3.6=192.168.10.1,192.168.20.1 or 192.168.3.6=hccn.conf, each server once"
            raise UsageFault(f"{argument!r} is not one server's cards", advice=advice)
        servers[name] = _addresses(cards, devices, argument)
    return _write(make_table(servers, Form(options.format)), options, [])


def _addresses(cards: str, devices: Sequence[int], argument: str) -> dict[int, str]:
    if not cards:
        if not devices:
            raise UsageFault(
                f"{argument!r} names no cards", advice="give their addresses, a hccn.conf, or --devices 0-7"
            )
        return dict.fromkeys(devices, "")
    if "," not in cards and Path(cards).is_file():
        addresses = read_hccn(_text(Path(cards)), cards)
        return select_devices(addresses, devices, cards) if devices else addresses
    ips = [ip.strip() for ip in cards.split(",")]
    if devices and len(devices) != len(ips):
        raise UsageFault(f"{argument!r} has {len(ips)} addresses, and --devices {len(devices)} cards")
    return dict(zip(devices or range(len(ips)), ips, strict=True))


def _devices(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and int(low) <= int(high or low) < 64):
            raise UsageFault(f"--devices: {part!r} is no card", advice="write 0-7, or 0,1,2,3")
        numbers += range(int(low), int(high or low) + 1)
    return sorted(set(numbers))


def _check(options: argparse.Namespace) -> int:
    table, problems = _read(options)
    contradictions = _environments(options, table) if options.env is not None else []
    faulty = bool(contradictions) or any(not problem.warning for problem in problems)
    if options.json:
        print(json.dumps(_document(options.file, table, problems, contradictions), indent=2, ensure_ascii=False))
        return FAILED if faulty else 0
    for line in [*map(str, problems), *contradictions]:
        print(f"{options.file}: {line}")
    if not faulty and table:
        ranks = len(table.ranks)
        print(f"{options.file}: {table.form.value}, {len(table.servers)} servers, {ranks} cards: it can be used")
    return FAILED if faulty else 0


def _document(file: Path, table: RankTable | None, problems: Sequence[Problem], contradictions: Sequence[str]) -> Any:
    return {
        "schema": "aisbench-ranktable/1",
        "file": str(file),
        "form": table.form.value if table else None,
        "servers": len(table.servers) if table else None,
        "cards": len(table.ranks) if table else None,
        "errors": [problem.text for problem in problems if not problem.warning] + list(contradictions),
        "warnings": [problem.text for problem in problems if problem.warning],
    }


def _environments(options: argparse.Namespace, table: RankTable | None) -> list[str]:
    if not options.env:
        return contradictions(os.environ, table)
    return together([Process(str(file), _environment(file)) for file in options.env], table)


def _environment(file: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in _text(file).splitlines())
    return {name.strip().removeprefix("export "): value for name, equals, value in pairs if equals}


def _convert(options: argparse.Namespace) -> int:
    table, problems = _read(options)
    if table is None or any(not problem.warning for problem in problems):
        return _refused(options.file, problems)
    made, notes = convert(table, Form(options.to), options.job)
    return _write(made, options, notes)


def _write(table: RankTable, options: argparse.Namespace, notes: Sequence[str]) -> int:
    text = table_text(table, group=options.group)
    problems = check_text(text, options.chip)
    if any(not problem.warning for problem in problems):
        return _refused(Path("the table"), problems)
    for line in [*map(str, problems), *(f"note: {note}" for note in notes)]:
        print(f"aisbench ranktable: {line}", file=sys.stderr)
    if options.output is None:
        print(text, end="")
        return 0
    if options.output.suffix != ".json":
        raise UsageFault(f"--output {options.output}: HCCL reads files whose name ends in .json")
    write_text(options.output, text)
    return 0


def _refused(place: Path, problems: Sequence[Problem]) -> int:
    for problem in problems:
        print(f"aisbench ranktable: {place}: {problem}", file=sys.stderr)
    return FAILED


def _read(options: argparse.Namespace) -> tuple[RankTable | None, list[Problem]]:
    table, problems = read_table(_text(options.file), Order(options.order))
    if table:
        problems += check_table(table, options.chip)
    if options.file.suffix != ".json":
        problems.append(Problem("HCCL reads files whose name ends in .json"))
    return table, problems


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageFault(f"{file}: {error.strerror}") from None
