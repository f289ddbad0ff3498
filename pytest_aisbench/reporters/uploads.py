"""Parcels for whoever asks from another shell: as lines, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_aisbench.domain.messages import plain
from pytest_aisbench.domain.upload import Parcel

SCHEMA = "aisbench-uploads/1"


def lines(parcels: Sequence[Parcel]) -> list[str]:
    return [
        f"{parcel.state.value:<9} {parcel.key[:12]} {parcel.run} {parcel.case} → {parcel.destination}"
        + (f": {plain(parcel.why)}" if parcel.why else "")
        for parcel in parcels
    ]


def document(parcels: Sequence[Parcel]) -> dict[str, Any]:
    return {"schema": SCHEMA, "uploads": [_row(parcel) for parcel in parcels]}


def _row(parcel: Parcel) -> dict[str, Any]:
    return {
        "key": parcel.key,
        "run": parcel.run,
        "case": parcel.case,
        "kind": parcel.kind,
        "attempt": parcel.attempt,
        "testid": parcel.testid,
        "tester": parcel.destination,
        "state": parcel.state.value,
        "why": parcel.why,
    }
