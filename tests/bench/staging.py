"""How fast a tree is staged, beside the vendor's own `putFile(folder)` and `cp`, in the same run on a local cloud.

    python tests/bench/staging.py [--files N] [--kib K] [--rounds R] [--rtt MS]

Medians over the rounds. Requests are counted where they leave this process, in http.client. With --rtt every
connection goes through a relay that holds each byte back for half of it, and a new connection for all of it: a Store is
never as near as loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import http.client
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_aisbench.engine.staging import code_placement, read_tree, upload_tree
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores.obs import Obs


@contextmanager
def local_cloud() -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "pytest_aisbench.localcloud", "--watch-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield json.loads(process.stdout.readline())


@contextmanager
def counted() -> Iterator[collections.Counter[str]]:
    requests: collections.Counter[str] = collections.Counter()
    original = http.client.HTTPConnection.putrequest

    def putrequest(self: http.client.HTTPConnection, method: str, *args: Any, **kwargs: Any) -> None:
        requests[method] += 1
        original(self, method, *args, **kwargs)

    http.client.HTTPConnection.putrequest = putrequest  # type: ignore[method-assign]
    try:
        yield requests
    finally:
        http.client.HTTPConnection.putrequest = original  # type: ignore[method-assign]


def timed(work: Callable[[], object]) -> tuple[float, collections.Counter[str]]:
    with counted() as requests:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start, requests


class Relay(threading.Thread):
    """Between us and the cloud, `rtt` seconds away."""

    def __init__(self, target: str, rtt: float) -> None:
        super().__init__(daemon=True)
        address = urlsplit(target)
        self._target, self._half = (address.hostname, address.port), rtt / 2
        self._port: queue.Queue[int] = queue.Queue()
        self.start()
        self.url = f"http://127.0.0.1:{self._port.get()}"

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0, backlog=256)
        self._port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._half)  # the handshake
        there, back = await asyncio.open_connection(*self._target)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(65536):
            loop.call_later(self._half, sink.write, data)
        loop.call_later(self._half, sink.close)


def vendor_put(card: dict[str, str], folder: Path, key: str, files: int) -> None:
    """As the predecessor stages: one client with its defaults, one call for the folder."""
    from obs import ObsClient

    client = ObsClient(card["access_key"], card["secret_key"], server=card["obs_endpoint"])
    answers = client.putFile(card["bucket"], key, str(folder))
    client.close()
    done = 0
    while answers:
        _, answer = answers.pop()
        if isinstance(answer, list):
            answers += answer
        else:
            assert answer.status < 300, answer
            done += 1
    assert done == files


def _staged(store: Obs, root: StoreUrl, folder: Path) -> StoreUrl:
    return upload_tree(store, code_placement(root, read_tree("tree", [folder])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--kib", type=int, default=10, help="size of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rtt", type=float, default=0.0, metavar="MS", help="how far away the Store is")
    options = parser.parse_args()
    taken: dict[str, list[float]] = collections.defaultdict(list)
    asked: dict[str, collections.Counter[str]] = {}
    with tempfile.TemporaryDirectory() as scratch, local_cloud() as card:
        if options.rtt:
            card["obs_endpoint"] = Relay(card["obs_endpoint"], options.rtt / 1000).url
        folder = Path(scratch, "tree")
        for number in range(options.files):
            file = folder / f"{number // 100:03d}" / f"{number:05d}.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(os.urandom(options.kib * 1024))
        store = Obs(card["obs_endpoint"], Secret(card["access_key"]), Secret(card["secret_key"]))
        store.check(StoreUrl(card["bucket"], ""))  # imports the vendor's client, for both
        for turn in range(options.rounds):
            root, copy = StoreUrl(card["bucket"], f"ours/{turn}/"), Path(scratch, f"copy{turn}")
            staged = partial(_staged, store, root, folder)
            work: dict[str, Callable[[], object]] = {
                "putFile(folder)": partial(vendor_put, card, folder, f"theirs/{turn}", options.files),
                "staged first": staged,
                "staged again, unchanged": staged,
                "cp -r to disk": partial(subprocess.run, ["cp", "-r", str(folder), str(copy)], check=True),
            }
            for name, each in work.items():
                seconds, asked[name] = timed(each)
                taken[name].append(seconds)
            shutil.rmtree(copy)
        store.close()
    slowest = statistics.median(taken["putFile(folder)"])
    print(f"{options.files} files of {options.kib} KiB, {options.rounds} round(s), medians, RTT {options.rtt:g} ms")
    print(f"{'':26}{'s':>9}{'files/s':>10}{'times putFile':>15}  requests")
    for name, all_seconds in taken.items():
        median = statistics.median(all_seconds)
        requests = ", ".join(f"{count} {method}" for method, count in asked[name].items()) or "none"
        print(f"{name:26}{median:9.3f}{options.files / median:10.0f}{slowest / median:15.1f}  {requests}")
    assert asked["staged again, unchanged"] == {"HEAD": 1}


if __name__ == "__main__":
    main()
