"""The open Tester on both of its databases, one server for each module."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import postgres
import pytest
from open_tester import Serving, serving

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def private_postgres() -> Iterator[str]:
    given = os.environ.get(postgres.VARIABLE)
    if given:
        yield given
    elif postgres.programs() is None:
        pytest.skip(postgres.ABSENT)
    else:
        with postgres.private() as url:
            yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """A database with nothing in it, each time."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path_factory.mktemp('tester')}/tester.db"
    server: str = request.getfixturevalue("private_postgres")

    def create() -> str:
        import psycopg

        name = f"tester_{os.getpid()}_{next(_NUMBERS)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return server.replace("/postgres?", f"/{name}?")

    return create


@pytest.fixture(scope="module")
def tester(new_database: Callable[[], str]) -> Iterator[Serving]:
    with serving(new_database()) as running:
        yield running
