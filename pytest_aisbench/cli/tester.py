"""`aisbench tester`: serve an open Tester, manage its tokens, print its audit."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from pytest_aisbench.cli import add_command
from pytest_aisbench.errors import UsageFault

_DB = "sqlite:///tester.db"
_VARIABLE = "AISBENCH_TESTER_DB"  # for an address with a password in it, which a list of processes would show
_PACKAGES = frozenset({"starlette", "uvicorn", "sqlalchemy", "psycopg", "jinja2"})
_MEGABYTE = 1024 * 1024


def register(commands: Any) -> None:
    tester = add_command(
        commands,
        "tester",
        "serve an open Tester: it keeps results, and shows them",
        "aisbench tester --db sqlite:///results.db --port 9527",
    )
    _db(tester, default=None)
    tester.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default 127.0.0.1)")
    tester.add_argument("--port", type=int, default=9527, metavar="N", help="default 9527; 0: any that is free")
    tester.add_argument("--closed", action="store_true", help="readers need a token on 127.0.0.1 too: behind a proxy")
    tester.add_argument(
        "--name", action="append", default=[], metavar="HOST", help="a host name that it is called by; may be repeated"
    )
    tester.add_argument(
        "--max-body", type=float, default=4.0, metavar="MB", help="refuse larger uploads (default 4 MB)"
    )
    tester.add_argument(
        "--rate", type=float, default=100.0, metavar="N", help="uploads per second and token (default 100; 0: any)"
    )
    tester.add_argument("--json", action="store_true", help="print the address as one JSON line")
    tester.set_defaults(act=_guarded(_serve))
    inner = tester.add_subparsers(metavar="token|audit")
    _tokens(
        add_command(
            inner,
            "token",
            "say who may send results, and who may read them",
            "aisbench tester token add cluster-a --label jenkins",
        )
    )
    audit = add_command(
        inner, "audit", "print who sent what, and when", "aisbench tester audit --project cluster-a --csv"
    )
    _db(audit)
    audit.add_argument("--project", metavar="PROJECT", help="of this project alone")
    how = audit.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON object a line")
    how.add_argument("--csv", action="store_true", help="for a spreadsheet")
    audit.set_defaults(act=_guarded(_audit), csv=False)


def _tokens(parser: Any) -> None:
    commands = parser.add_subparsers(required=True, metavar="add|list|revoke")
    add = add_command(
        commands,
        "add",
        "print a new token, once: only its digest is kept",
        "aisbench tester token add cluster-a --label jenkins",
    )
    add.add_argument("project", metavar="PROJECT", help="what its results belong to")
    what = add.add_mutually_exclusive_group()
    what.add_argument("--read", action="store_true", help="to read the project's pages, and not to send")
    what.add_argument("--sign", action="store_true", help="to read the project's pages and sign its runs")
    add.add_argument("--label", default="", metavar="TEXT", help="who holds it, for the audit")
    add.set_defaults(act=_guarded(_add))
    listing = add_command(commands, "list", "list every token, without the token itself", "aisbench tester token list")
    listing.set_defaults(act=_guarded(_list))
    revoke = add_command(commands, "revoke", "make the token invalid", "aisbench tester token revoke 3")
    revoke.add_argument("number", type=int, metavar="ID", help="as `token list` shows it")
    revoke.set_defaults(act=_guarded(_revoke))
    for each in (add, listing, revoke):
        _db(each)
    for each in (add, listing):
        each.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="for programs")


def _db(parser: Any, default: Any = argparse.SUPPRESS) -> None:
    text = f"a SQLite file, or postgresql://… (default {_DB}, or what {_VARIABLE} says)"
    parser.add_argument("--db", metavar="URL", default=default, help=text)


def _guarded(act: Any) -> Any:
    """The command, with a usage error if a package is missing: they are an extra, since running tests needs none."""

    def run(options: argparse.Namespace) -> int:
        options.db = options.db or os.environ.get(_VARIABLE) or _DB
        try:
            return int(act(options) or 0)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _PACKAGES:
                raise
            advice = "pip install 'pytest-aisbench[tester]'"
            raise UsageFault(f"the Tester needs {error.name}, which is not installed", advice=advice) from None

    return run


def _serve(options: argparse.Namespace) -> None:
    from pytest_aisbench.tester_server.app import ServeOptions, serve
    from pytest_aisbench.tester_server.auth import is_loopback

    if not 0 < options.max_body <= 1024:
        raise UsageFault("--max-body is between 0 and 1024 MB")
    if not 0 <= options.rate < float("inf"):
        raise UsageFault("--rate is 0 or more")
    serve_options = ServeOptions(
        options.db,
        options.host,
        options.port,
        closed=options.closed,
        names=tuple(options.name),
        largest=int(options.max_body * _MEGABYTE),
        per_second=options.rate,
    )

    def show(url: str) -> None:
        if options.json:
            print(json.dumps({"url": url}), flush=True)
            return
        print(f"The Tester serves {url} until it is stopped (Ctrl-C).", flush=True)
        if not is_loopback(options.host):
            warning = "this is plain http: tokens and results can be read on the way. Put TLS before it."
            print(f"aisbench tester: {warning}", file=sys.stderr, flush=True)

    serve(serve_options, show)


def _add(options: argparse.Namespace) -> None:
    import time

    from pytest_aisbench.model.messages import plain
    from pytest_aisbench.tester_server import auth
    from pytest_aisbench.tester_server.app import transaction
    from pytest_aisbench.tester_server.auth import Kind

    kind = Kind.READ if options.read else Kind.SIGN if options.sign else Kind.SEND
    with transaction(options.db) as connection:
        token = auth.add_token(connection, options.project, kind, plain(options.label, 80), time.time())
    if options.json:
        print(json.dumps({"project": options.project, "kind": kind.value, "token": token.reveal()}))
    else:
        print(token.reveal())  # alone on its line, so that $(…) can take it
        print(f"A {kind.value} token of {options.project}; it is not shown again.", file=sys.stderr)


def _list(options: argparse.Namespace) -> None:
    from pytest_aisbench.model.clock import stamp
    from pytest_aisbench.tester_server.app import open_database
    from pytest_aisbench.tester_server.auth import every_token

    with open_database(options.db) as engine, engine.connect() as connection:
        tokens = every_token(connection)
    for each in tokens:
        each.update({name: stamp(each[name]) for name in ("created", "revoked", "used") if each[name] is not None})
    if options.json:
        print(json.dumps(tokens, indent=2, ensure_ascii=False))
        return
    print(f"{'id':>4}  {'project':<20} {'may':<5} {'created':<21} {'last used':<21} {'revoked':<21} label")
    for each in tokens:
        times = " ".join(f"{each[name] or '-':<21}" for name in ("created", "used", "revoked"))
        print(f"{each['id']:>4}  {each['project']:<20} {each['kind']:<5} {times} {each['label']}")


def _revoke(options: argparse.Namespace) -> None:
    import time

    from pytest_aisbench.tester_server.app import transaction
    from pytest_aisbench.tester_server.auth import revoke_token

    with transaction(options.db) as connection:
        revoke_token(connection, options.number, time.time())
    print(f"token {options.number} is revoked")


def _audit(options: argparse.Namespace) -> None:
    from pytest_aisbench.model.clock import stamp
    from pytest_aisbench.tester_server.app import open_database
    from pytest_aisbench.tester_server.auth import COLUMNS, every_action
    from pytest_aisbench.tester_server.formatting import csv_text

    with open_database(options.db) as engine, engine.connect() as connection:
        rows = every_action(connection, options.project)
        if options.csv:
            for text in csv_text(COLUMNS, rows):
                print(text, end="")
            return
        for row in rows:
            action = {**row, "at": stamp(row["at"])}
            if options.json:
                print(json.dumps(action, ensure_ascii=False))
                continue
            what = " ".join(str(action[name]) for name in ("act", "run_id", "status", "why") if action[name])
            sender = f"{action['project']}  #{action['token']} {action['label']}  {action['address'] or '-'}"
            print(f"{action['at']}  {sender}  {what}")
