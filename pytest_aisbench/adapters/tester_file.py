"""A folder in the Tester's place: one file per parcel, whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_aisbench.domain.upload import Parcel
from pytest_aisbench.errors import Rejected, Unreachable


class Folder:
    """Transport. `<folder>/<testid>/<kind>/<case>.<attempt>.<key>.json`; who reads it sees no half of a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, parcel: Parcel) -> None:
        place = self._folder / parcel.testid.replace(":", "_") / parcel.kind
        file = place / f"{parcel.case}.{parcel.attempt}.{parcel.key[:16]}.json"
        try:
            place.mkdir(parents=True, exist_ok=True)
            if file.exists():
                if file.read_bytes() != parcel.body.encode():
                    raise Rejected(f"{file} holds something else", advice="move it away, then `aisbench flush`")
                return
            draft = place / f".{parcel.key}.{os.getpid()}.tmp"
            with draft.open("wb") as opened:
                opened.write(parcel.body.encode())
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(file)
            _sync(place)
        except OSError as error:
            raise Unreachable(f"{file}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is open."""


def _sync(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
