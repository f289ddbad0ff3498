"""A private PostgreSQL for tests: its own data, a socket that only this machine reaches, gone at the end.

`scripts/postgres [COMMAND…]` installs Debian's packages where it may, starts one, and runs the command with its address
in AISBENCH_TEST_POSTGRES, which tests take before they start their own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

VARIABLE = "AISBENCH_TEST_POSTGRES"
ABSENT = "no PostgreSQL on this machine: run scripts/postgres as root"


def programs() -> Path | None:
    """The folder of initdb and postgres; Debian keeps one per version."""
    initdb = shutil.which("initdb")
    if initdb and shutil.which("postgres"):
        return Path(initdb).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


@contextlib.contextmanager
def private(*, durable: bool = False) -> Iterator[str]:
    """The URL of a server that runs. `durable`: what it commits is on disk, as where it matters."""
    bin_ = programs()
    assert bin_ is not None, ABSENT
    user = _somebody()
    with tempfile.TemporaryDirectory(prefix="aisbench-pg-") as name:
        folder = Path(name)
        shutil.chown(folder, user)
        data = folder / "data"

        def run(*command: str) -> None:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, user=_other(user))
            assert done.returncode == 0, done.stdout + done.stderr

        run(str(bin_ / "initdb"), "-D", str(data), "-A", "trust", "-U", "tester", "-E", "UTF8", "--no-sync")
        settings = ["listen_addresses=", f"unix_socket_directories={folder}", f"fsync={'on' if durable else 'off'}"]
        options = [word for setting in settings for word in ("-c", setting)]
        with subprocess.Popen(
            [str(bin_ / "postgres"), "-D", str(data), *options],
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            user=_other(user),
        ) as server:
            try:
                assert server.stderr is not None
                heard: list[str] = []
                while "ready to accept connections" not in (heard or [""])[-1]:
                    heard.append(server.stderr.readline())
                    assert heard[-1], "".join(heard)
                threading.Thread(target=server.stderr.read, daemon=True).start()  # or it would wait for a reader
                yield f"postgresql://tester@/postgres?host={quote(name, safe='')}"
            finally:
                server.send_signal(signal.SIGINT)  # its fast shutdown
                server.wait(30)


def _somebody() -> str:
    """Its programs refuse to run as root."""
    if os.geteuid():
        return getpass.getuser()
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _other(user: str) -> str | None:
    return user if os.geteuid() == 0 else None


def install() -> None:
    if programs() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=quiet)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"]
        subprocess.run(command, check=True, env=quiet, stdout=subprocess.DEVNULL)


def main(command: list[str]) -> int:
    install()
    if programs() is None:
        print("no PostgreSQL, and no way to install it: the tests that need one are skipped", file=sys.stderr)
        return subprocess.run(command, check=False).returncode if command else 0
    with private(durable=True) as url:
        if command:
            return subprocess.run(command, check=False, env={**os.environ, VARIABLE: url}).returncode
        print(url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
