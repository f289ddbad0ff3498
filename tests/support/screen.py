"""A command in front of a terminal that is emulated, so that a test sees what a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyte
from waiting import PATIENCE

if TYPE_CHECKING:
    from typing_extensions import Self


class Screen:
    """What the command shows, as it stands when it was last looked at."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], columns: int = 120, rows: int = 40
    ) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def until(self, fits: Callable[[str], bool]) -> str:
        """The first screen that fits."""
        deadline = time.monotonic() + PATIENCE
        while not fits(self.text):
            assert self._read(), f"it ended:\n{self.text}"
            assert time.monotonic() < deadline, self.text
        return self.text

    def end(self) -> int:
        """Its exit code, once it has written all."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, self.text
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """A little more of what was written; False at the end of it."""
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the other side is closed
                return False
            self._stream.feed(data)
        return True
