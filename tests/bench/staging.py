"""How fast a tree is staged: by the vendor's client, by obstore, and beside both what obstore itself reaches, the
vendor's own `putFile(folder)` and `cp`, in turns in the same run on a local cloud.

    python tests/bench/staging.py [--files N] [--kib K] [--large N] [--mib M] [--rounds R] [--rtt MS] [--peers]

Medians over the rounds. Requests are counted where they leave this process, in http.client; obstore's are not. With
--rtt every connection goes through a relay, a process of its own, that holds each byte back for half of it, and a new
connection for all of it: a Store is never as near as loopback. --peers adds putFile, which takes minutes there, and cp.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import hashlib
import http.client
import importlib.util
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_aisbench.engine.staging import code_placement, read_tree, upload_tree
from pytest_aisbench.model.job import StoreUrl
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores import obs
from pytest_aisbench.stores.obs import Obs

HAS_OBSTORE = importlib.util.find_spec("obstore") is not None
VENDOR, FAST, ALONE = "staged, vendor's client", "staged, obstore", "obstore itself"
HASHED = "hashes, then obstore"
AGAIN, FOLDER, COPY = "staged again, unchanged", "putFile(folder)", "cp -r to disk"
_numbers = itertools.count()


def measure(
    files: int = 2000, kib: int = 10, large: int = 4, mib: int = 256, rounds: int = 3, rtt_files: int = 1000
) -> dict[str, float]:
    """The figures of the guard. Ratios are medians of rounds in which both took their turn; those of obstore are only
    there where it is installed.

    small_*: `files` of `kib` KiB; large_*: `large` of `mib` MiB; far_*: `rtt_files` of `kib` KiB, 20 ms away.
    `*_per_obstore` is the time of a staging divided by that of obstore itself with the same files; `*_per_hashed` by
    that of obstore after the SHA-256 and the MD5, without which nothing is addressed by content or verified.
    """
    figures: dict[str, float] = {}
    ways = [VENDOR, FAST, ALONE, HASHED] if HAS_OBSTORE else [VENDOR]
    with local_cloud() as card:
        small = compare(card, ways, files, kib * 1024, rounds)
        figures["small_vendor_files_per_s"] = files / small[VENDOR].median
        figures["small_vendor_cpu_ms_per_file"] = 1000 * small[VENDOR].cpu / files
        figures["small_vendor_requests"] = sum(small[VENDOR].requests.values())
        figures["again_requests"] = sum(compare(card, [VENDOR, AGAIN], 10, 1024, 1)[AGAIN].requests.values())
        # The vendor's client sends large files, with and without obstore.
        big = compare(card, [way for way in ways if way != FAST], large, mib * 1024 * 1024, rounds)
        figures["large_vendor_mib_per_s"] = large * mib / big[VENDOR].median
        figures["large_vendor_cpu_s_per_gib"] = big[VENDOR].cpu * 1024 / (large * mib)
        with relay(card["obs_endpoint"], 0.020) as endpoint:
            far = compare({**card, "obs_endpoint": endpoint}, ways, rtt_files, kib * 1024, rounds)
        figures["far_vendor_s"] = far[VENDOR].median
        if HAS_OBSTORE:
            figures["small_obstore_files_per_s"] = files / small[FAST].median
            figures["small_obstore_cpu_ms_per_file"] = 1000 * small[FAST].cpu / files
            figures["small_obstore_per_obstore"] = small[FAST].ratio(small[ALONE])
            figures["small_vendor_per_obstore"] = small[VENDOR].ratio(small[ALONE])
            figures["small_obstore_per_hashed"] = small[FAST].ratio(small[HASHED])
            figures["large_obstore_per_obstore"] = big[VENDOR].ratio(big[ALONE])
            figures["large_obstore_per_hashed"] = big[VENDOR].ratio(big[HASHED])
            figures["far_obstore_s"] = far[FAST].median
            figures["far_obstore_per_obstore"] = far[FAST].ratio(far[ALONE])
    return figures


# What is measured


@dataclass
class Taken:
    """Seconds by round; CPU seconds of this process, the least of all rounds; the requests of the last."""

    seconds: list[float] = field(default_factory=list)
    cpu: float = float("inf")
    requests: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, other: Taken) -> float:
        return statistics.median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))

    def add(self, work: Callable[[], object]) -> None:
        with counted() as self.requests:
            start, began = time.perf_counter(), cpu_seconds()
            work()
            self.seconds.append(time.perf_counter() - start)
            self.cpu = min(self.cpu, cpu_seconds() - began)


def compare(card: dict[str, str], ways: list[str], files: int, size: int, rounds: int) -> dict[str, Taken]:
    """Stage the same files in each way, in turns; every round begins with another way."""
    taken: dict[str, Taken] = {way: Taken() for way in ways}
    bucket = StoreUrl(card["bucket"], "")
    with tempfile.TemporaryDirectory() as scratch, closing_store(card) as store:
        folder = Path(scratch, "tree")
        for number in range(files):
            file = folder / f"{number // 100:03d}" / f"{number:05d}.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as out:
                for at in range(0, size, 1 << 20):
                    out.write(os.urandom(min(1 << 20, size - at)))
        store.check(bucket)  # imports the vendor's client, for all
        if FAST in ways:
            assert store._client.small_puts.usable, "obstore is not usable here"
        threads = obs._FAR if store._client.is_far else obs._NEAR
        for turn in range(rounds):
            root = StoreUrl(card["bucket"], f"bench/{next(_numbers)}/")
            work: dict[str, Callable[[], object]] = {
                VENDOR: partial(staged, store, root / "vendor/", folder, sys.maxsize),
                FAST: partial(staged, store, root / "fast/", folder, 1),
                ALONE: partial(obstore_alone, card, folder, f"{root.key}alone/", size, threads),
                HASHED: partial(obstore_hashed, card, folder, f"{root.key}hashed/", size, threads),
                AGAIN: partial(staged, store, root / "vendor/", folder, sys.maxsize),
                FOLDER: partial(vendor_put, card, folder, f"{root.key}theirs", files),
                COPY: partial(subprocess.run, ["cp", "-r", str(folder), f"{scratch}/copy{turn}"], check=True),
            }
            order = ways[turn % len(ways) :] + ways[: turn % len(ways)] if AGAIN not in ways else ways
            for way in order:
                taken[way].add(work[way])
                assert way != AGAIN or taken[way].requests == {"HEAD": 1}
                if size > 1 << 20:  # a disk has room for one copy
                    store.delete(root / {VENDOR: "vendor/", FAST: "fast/", ALONE: "alone/"}.get(way, "hashed/"))
    return taken


def staged(store: Obs, root: StoreUrl, folder: Path, obstore_from: int) -> StoreUrl:
    before = obs._OBSTORE_FROM
    obs._OBSTORE_FROM = obstore_from
    try:
        return upload_tree(store, code_placement(root, read_tree("tree", [folder])))
    finally:
        obs._OBSTORE_FROM = before


def obstore_alone(card: dict[str, str], folder: Path, prefix: str, size: int, threads: int) -> None:
    """As a user of obstore uploads a folder: threads, a path each, parts for large files; nothing is verified."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        card["bucket"],
        endpoint=card["obs_endpoint"],
        access_key_id=card["access_key"],
        secret_access_key=card["secret_key"],
        region="region",
        unsigned_payload=True,
        client_options={"allow_http": True},
    )
    files = [path for path in folder.rglob("*") if path.is_file()]
    part = 16 << 20
    put = partial(obstore.put, store, use_multipart=size > part, chunk_size=part, max_concurrency=4)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda file: put(prefix + str(file.relative_to(folder)), file), files))


def obstore_hashed(card: dict[str, str], folder: Path, prefix: str, size: int, threads: int) -> None:
    """The same after both hashes of every file: the least that it takes to address by content, and to verify."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(hashed, [path for path in folder.rglob("*") if path.is_file()]))
    obstore_alone(card, folder, prefix, size, threads)


def hashed(file: Path) -> tuple[bytes, bytes]:
    sha256, md5 = hashlib.sha256(), hashlib.md5()
    with file.open("rb", buffering=0) as content:
        while piece := content.read(1 << 20):
            sha256.update(piece)
            md5.update(piece)
    return sha256.digest(), md5.digest()


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


# The cloud, and the way to it


@contextmanager
def local_cloud() -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "pytest_aisbench.localcloud", "--watch-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield json.loads(process.stdout.readline())


@contextmanager
def closing_store(card: dict[str, str]) -> Iterator[Obs]:
    store = Obs(card["obs_endpoint"], Secret(card["access_key"]), Secret(card["secret_key"]))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def relay(target: str, rtt_s: float) -> Iterator[str]:
    """The address of the same server, `rtt_s` away."""
    command = [sys.executable, __file__, "--relay", target, "--rtt", str(1000 * rtt_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


class Relay:
    def __init__(self, target: str, rtt_s: float) -> None:
        address = urlsplit(target)
        self._target, self._half = (address.hostname, address.port), rtt_s / 2

    async def serve(self) -> None:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0, backlog=256)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
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


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--kib", type=int, default=10, help="size of each file")
    parser.add_argument("--large", type=int, default=0, metavar="N", help="that many files of --mib instead")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rtt", type=float, default=0.0, metavar="MS", help="how far away the Store is")
    parser.add_argument("--peers", action="store_true", help="measure putFile(folder) and cp too")
    parser.add_argument("--guard", action="store_true", help="print the figures of the guard instead")
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        asyncio.run(Relay(options.relay, options.rtt / 1000).serve())
    if options.guard:
        for name, figure in measure().items():
            print(f"{name:32}{figure:10.3f}")
        return
    files, size = (options.large, options.mib << 20) if options.large else (options.files, options.kib << 10)
    ways = [VENDOR, FAST, ALONE, HASHED] if HAS_OBSTORE else [VENDOR]
    ways += [AGAIN, FOLDER, COPY] if options.peers else []
    with local_cloud() as card:
        far = relay(card["obs_endpoint"], options.rtt / 1000) if options.rtt else nullcontext(card["obs_endpoint"])
        with far as endpoint:
            taken = compare({**card, "obs_endpoint": endpoint}, ways, files, size, options.rounds)
    print(f"{files} files of {size / 1024:g} KiB, {options.rounds} round(s), medians, RTT {options.rtt:g} ms")
    print(f"{'':26}{'s':>9}{'files/s':>10}{'MiB/s':>9}{'CPU s':>8}{'times obstore':>15}  requests")
    for way, each in taken.items():
        requests = ", ".join(f"{count} {method}" for method, count in each.requests.items()) or "not counted"
        ratio = f"{each.ratio(taken[ALONE]):15.2f}" if ALONE in taken else f"{'':15}"
        speed = f"{files / each.median:10.0f}{files * size / each.median / 2**20:9.1f}"
        print(f"{way:26}{each.median:9.3f}{speed}{each.cpu:8.2f}{ratio}  {requests}")


if __name__ == "__main__":
    main()
