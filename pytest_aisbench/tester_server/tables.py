"""The tables as statements name them. How they came to be is in `migrations`; a test holds one against the other."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, MetaData, Table, Text

META = MetaData()


def _id() -> Column[int]:
    return Column("id", BigInteger, primary_key=True)


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text) for name in names]


def _whole(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger) for name in names]


def _numbers(*names: str) -> list[Column[float]]:
    return [Column(name, Double) for name in names]


# Who may send to a project, or read it. Of a token only its digest is kept.
TOKENS = Table("tokens", META, _id(), *_texts("digest", "project", "kind", "label"), *_numbers("created", "revoked"))
# Everything that was ever taken, as it was sent; all tables below but the audit can be made of it again.
PARCELS = Table(
    "parcels",
    META,
    _id(),
    *_texts("project", "key", "kind", "testid", "run_id", "digest", "body"),
    *_whole("attempt", "token"),
    *_numbers("received"),
)
# Who sent what, and what became of it.
AUDIT = Table(
    "audit",
    META,
    _id(),
    *_numbers("at"),
    *_texts("project", "label", "address", "act", "testid", "run_id", "key", "why"),
    *_whole("token", "status", "size"),
)
RUNS = Table(
    "runs",
    META,
    _id(),
    *_texts("project", "testid", "name", "platform"),
    *_numbers("started", "ended", "card_hours"),  # what its cases cost, with and without a verdict
    *_whole("cases", "passed", "failed", "broken", "inconclusive"),
    # How it ended: which attempt at saying so was the last, 0 for none; a run that was killed has no code.
    *_whole("told", "exit_code", "unjudged"),
    *_numbers("unjudged_hours"),
)
# A case on a platform, across runs.
SERIES = Table(
    "series",
    META,
    _id(),
    *_texts("project", "platform", "name", "workload", "mode", "unit"),
    *_whole("nodes", "devices", "results", "last"),
    *_numbers("last_ended"),
)
# What holds of a case in a run: its last attempt. Reference and edges are those of throughput, the target of accuracy.
RESULTS = Table(
    "results",
    META,
    _id(),
    *_whole("run", "series", "parcel", "attempt"),
    *_texts("project", "name", "verdict", "status", "reason", "job_id", "unit"),
    *_numbers("throughput", "accuracy", "reference", "low", "high", "target", "card_hours", "started", "ended"),
)
STRAGGLERS = Table(
    "stragglers",
    META,
    _id(),
    *_whole("result", "series", "node", "card"),
    *_texts("project", "platform"),
    *_numbers("ended", "ratio", "cost"),
)
