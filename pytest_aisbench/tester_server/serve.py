"""`aisbench tester`: the application behind a socket, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.tester_server import app
from pytest_aisbench.tester_server.database import address, open_engine, writing
from pytest_aisbench.tester_server.door import Door, is_loopback
from pytest_aisbench.tester_server.migrations import upgrade

PORT = 9527  # ais-bench-stubs' own tester_server_port
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_AT_ONCE = 512  # requests; one more is told 503
_GRACE_S = 10


@dataclass(frozen=True)
class Offer:
    db: str
    host: str = "127.0.0.1"
    port: int = PORT
    closed: bool = False  # readers need a token on loopback too
    names: tuple[str, ...] = ()
    largest: int = app.LARGEST
    per_second: float = app.PER_SECOND


@contextlib.contextmanager
def opened(db: str) -> Iterator[Engine]:
    """The database, with the tables of today."""
    url = address(db)
    engine = open_engine(url)
    try:
        upgrade(engine)
        yield engine
    except (SQLAlchemyError, OverflowError) as error:  # a number that SQLite cannot hold is no error of SQLAlchemy's
        told = plain(str(getattr(error, "orig", None) or error), 300)
        raise UsageFault(f"the database {url.render_as_string(hide_password=True)}: {told}") from None
    finally:
        engine.dispose()


@contextlib.contextmanager
def changing(db: str) -> Iterator[Connection]:
    """A transaction in it."""
    with opened(db) as engine, writing(engine).begin() as connection:
        yield connection


def serve(offer: Offer, show: Callable[[str], None]) -> None:
    """`show` is told the address once requests are taken. Ends at Ctrl-C or SIGTERM, after what is under way."""
    door = door_of(offer)
    with opened(offer.db) as engine, _listening(offer.host, offer.port) as listener:
        application = app.application(engine, door, largest=offer.largest, per_second=offer.per_second)
        config = uvicorn.Config(
            application,
            log_level=logging.WARNING,
            access_log=False,  # the audit says more
            server_header=False,
            proxy_headers=False,  # what a header says, anybody may have written
            lifespan="off",
            ws="none",
            limit_concurrency=_AT_ONCE,
            timeout_graceful_shutdown=_GRACE_S,
        )
        port = listener.getsockname()[1]
        host = f"[{offer.host}]" if ":" in offer.host else offer.host
        show(f"http://{host}:{port}")
        uvicorn.Server(config).run(sockets=[listener])


def door_of(offer: Offer) -> Door:
    loopback = is_loopback(offer.host)
    names = tuple(name.lower() for name in offer.names)
    return Door(loopback and not offer.closed, (*_LOOPBACK_NAMES, *names) if loopback or names else ())


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio does not turn Nagle's algorithm off, and every answer waits 40 ms for an acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            told = getattr(error, "strerror", None) or error
            raise UsageFault(f"{host}:{port}: {told}", advice="name another --host or --port") from None
        listener.listen(128)
        yield listener
