"""What a request costs the local cloud, beside nginx as a sink, and what its start costs every plain `pytest`.

    python tests/bench/localcloud.py [--rounds 5] [--before PYTHON]

Each round starts a fresh local cloud (simulated engine), then sends it requests that were signed beforehand, over eight
kept-alive connections from one thread: that costs the sender less than the server, so the rate is the server's. CPU is
that of the server process, by the kernel's clock of that process. `--before` names the Python of another checkout,
whose cloud is measured in turns with ours. Best of the rounds: other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import track

CONNECTIONS = 8
PUTS, GETS, CREATES, POLLS = 1600, 1600, 400, 240
PAGE = 50  # jobs of a list, as the client asks for them
CONTENT = bytes(range(256)) * 40  # 10 KiB
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *(\d+)")
_NGINX = """
daemon off; master_process off; worker_processes 1; error_log stderr crit; pid {folder}/pid;
events {{ worker_connections 64; }}
http {{
    access_log off; keepalive_requests 1000000; client_body_buffer_size 1m; client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port};
        location /file {{ root {folder}; }}
        location / {{ return 200; }}
    }}
}}
"""


class Cost(NamedTuple):
    cpu_us: float  # of the server, per request
    per_s: float
    sender_us: float  # CPU of the sender, per request

    def best(self, other: Cost) -> Cost:
        return Cost(min(self.cpu_us, other.cpu_us), max(self.per_s, other.per_s), min(self.sender_us, other.sender_us))


def measure(rounds: int = 3, python: str = sys.executable) -> dict[str, float]:
    """The figures of one Python's cloud, and of nginx where there is one, by stable names."""
    return measure_in_turns({"": python}, rounds)[""]


def measure_in_turns(pythons: Mapping[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """The figures of each cloud; the figures of nginx stand with all of them."""
    costs: dict[str, dict[str, Cost]] = {label: {} for label in pythons}
    starts: dict[str, list[tuple[float, float]]] = {label: [] for label in pythons}
    nginx: dict[str, Cost] = {}
    for number in range(rounds):
        for label in list(pythons) if number % 2 else reversed(list(pythons)):
            starts[label] += [start(pythons[label]) for _ in range(3)]
            _keep_best(costs[label], cloud_costs(pythons[label]))
        _keep_best(nginx, nginx_costs())
    figures = {}
    for label in pythons:
        figures[label] = {
            f"{kind}_{field}": value
            for kind, cost in (costs[label] | nginx).items()
            for field, value in cost._asdict().items()
        }
        wall, cpu = (min(column) * 1000 for column in zip(*starts[label], strict=True))
        figures[label] |= {"startup_ms": wall, "startup_cpu_ms": cpu}
    return figures


def _keep_best(kept: dict[str, Cost], new: Mapping[str, Cost]) -> None:
    for kind, cost in new.items():
        kept[kind] = cost.best(kept.get(kind, cost))


def start(python: str) -> tuple[float, float]:
    """Wall and CPU seconds from the start of a private cloud's process until its card is printed."""
    command = [python, "-m", "pytest_aisbench.localcloud", "--watch-stdin"]
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=track.environment(), cwd="/"
    ) as cloud:
        assert cloud.stdin
        assert cloud.stdout
        cloud.stdout.readline()
        took, cpu = time.perf_counter() - began, cpu_of(cloud.pid)
        cloud.stdin.close()
    return took, cpu


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and all its threads so far, by its clock: finer than the ticks of /proc."""
    return time.clock_gettime((~pid << 3) | 2)


def cloud_costs(python: str) -> dict[str, Cost]:
    command = [python, "-m", "pytest_aisbench", "cloud", "--json", "--engine", "simulated"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=track.environment(), cwd="/") as cloud:
        assert cloud.stdout
        try:
            card = json.loads(cloud.stdout.readline())
            obs, modelarts = ObsRequests(card), ModelArtsRequests(card)
            costs = {
                "put": load(cloud.pid, card["obs_endpoint"], [obs.put(number) for number in range(PUTS)]),
                "get": load(cloud.pid, card["obs_endpoint"], [obs.get(number % PUTS) for number in range(GETS)]),
            }
            send(card["obs_endpoint"], [obs.request("PUT", "code/train.py", b"pass\n")])
            creates = [modelarts.create(number) for number in range(CREATES)]
            costs["create"] = load(cloud.pid, card["modelarts_endpoint"], creates)
            costs["poll"] = load(cloud.pid, card["modelarts_endpoint"], [modelarts.page(n) for n in range(POLLS)])
            (answer,) = send(card["modelarts_endpoint"], [modelarts.page(0)])
            ids = [item["metadata"]["id"] for item in json.loads(answer)["items"]]
            shows = [modelarts.show(ids[number % PAGE]) for number in range(POLLS * 4)]
            costs["show"] = load(cloud.pid, card["modelarts_endpoint"], shows)
            return costs
        finally:
            cloud.terminate()


def nginx_costs() -> dict[str, Cost]:
    """nginx reads the bodies, keeps nothing and checks nothing; it sends the object from a file."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        return {}
    with (
        tempfile.TemporaryDirectory(prefix="aisbench-nginx-") as name,
        serving_nginx(program, Path(name)) as (pid, url),
    ):
        (Path(name) / "file").write_bytes(CONTENT)
        put = plain("PUT", "/sink", CONTENT)
        return {"nginx_put": load(pid, url, [put] * PUTS), "nginx_get": load(pid, url, [plain("GET", "/file")] * GETS)}


@contextmanager
def serving_nginx(program: str, folder: Path) -> Iterator[tuple[int, str]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port))
    process = subprocess.Popen([program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")])
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield process.pid, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


# Requests as the client's libraries send them.


def plain(method: str, target: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"Content-Length: {len(body)}"] if body else []
    lines += [] if any(line.startswith("Host") for line in lines) else ["Host: 127.0.0.1"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class ObsRequests:
    """Signed as esdk-obs-python does by default: with the signature of S3, version 2."""

    def __init__(self, card: Mapping[str, str]) -> None:
        self._card = card

    def put(self, number: int) -> bytes:
        return self.request("PUT", f"bench/{number:06d}.bin", CONTENT)

    def get(self, number: int) -> bytes:
        return self.request("GET", f"bench/{number:06d}.bin")

    def request(self, method: str, key: str, body: bytes = b"") -> bytes:
        card = self._card
        target = f"/{card['bucket']}/{key}"
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        md5 = base64.b64encode(hashlib.md5(body).digest()).decode() if body else ""
        text = f"{method}\n{md5}\n\n{date}\n{target}"
        signature = base64.b64encode(hmac.digest(card["secret_key"].encode(), text.encode(), "sha1")).decode()
        headers = [("Accept-Encoding", "identity"), *([("Content-MD5", md5)] if md5 else [])]
        headers += [("Host", urlsplit(card["obs_endpoint"]).netloc), ("Date", date)]
        headers += [("Authorization", f"AWS {card['access_key']}:{signature}"), ("Connection", "Keep-Alive")]
        return plain(method, target, body, [*headers, ("User-Agent", "obs-sdk-python/3.26.6")])


class ModelArtsRequests:
    """Signed as huaweicloudsdkcore does."""

    def __init__(self, card: Mapping[str, str]) -> None:
        self._card = card

    def create(self, number: int) -> bytes:
        """A job that runs until the cloud ends."""
        folder = f"/{self._card['bucket']}/code/"
        trial = f"/{self._card['bucket']}/trials/20260101-000000-abcdef/w{number:04d}-1x1/1"
        body = {
            "kind": "job",
            "metadata": {
                "name": f"w{number:04d}-1x1-20260101-000000-abcdef-{number:06d}",
                "workspace_id": "0",
                "description": f"aisbench w{number:04d}-1x1 trial 20260101-000000-abcdef/w{number:04d}-1x1/1",
            },
            "algorithm": {
                "code_dir": folder,
                "boot_file": f"{folder}train.py",
                "engine": {"engine_name": "Ascend-Powered-Engine", "engine_version": "python-local"},
                "parameters": [{"name": "seconds", "value": "86400"}, {"name": "epochs", "value": "1"}],
                "outputs": [
                    {
                        "name": "train_url",
                        "access_method": "parameter",
                        "remote": {"obs": {"obs_url": f"{trial}/outputs/"}},
                    }
                ],
                "environments": {},
            },
            "spec": {
                "resource": {"flavor_id": "modelarts.local.1", "node_count": 1},
                "log_export_path": {"obs_url": f"{trial}/logs/"},
                "auto_stop": {"time_unit": "HOURS", "duration": 24},
            },
        }
        return self._request("POST", "training-jobs", body)

    def page(self, number: int) -> bytes:
        """One page of the list of all jobs, newest first, as the Fleet asks for them."""
        body = {"offset": number * PAGE % CREATES, "limit": PAGE, "sort_by": "create_time", "order": "desc"}
        return self._request("POST", "training-job-searches", body | {"filters": []})

    def show(self, job: str) -> bytes:
        return self._request("GET", f"training-jobs/{job}")

    def _request(self, method: str, path: str, body: Any = None) -> bytes:
        card, content = self._card, b"" if body is None else json.dumps(body).encode()
        target = f"/v2/{card['project_id']}/{path}"
        signed = {
            "content-type": "application/json",
            "host": urlsplit(card["modelarts_endpoint"]).netloc,
            "user-agent": "pytest-aisbench/0.1.0",
            "x-project-id": card["project_id"],
            "x-sdk-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
        }
        fields = "".join(f"{name}:{value}\n" for name, value in signed.items())
        canonical = f"{method}\n{target}/\n\n{fields}\n{';'.join(signed)}\n{hashlib.sha256(content).hexdigest()}"
        text = f"SDK-HMAC-SHA256\n{signed['x-sdk-date']}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(card["secret_key"].encode(), text.encode(), "sha256").hex()
        access = f"SDK-HMAC-SHA256 Access={card['access_key']}, SignedHeaders={';'.join(signed)}, Signature={signature}"
        headers = [("User-Agent", signed["user-agent"]), ("Accept-Encoding", "gzip, deflate"), ("Accept", "*/*")]
        headers += [("Connection", "keep-alive"), ("Content-Type", signed["content-type"])]
        headers += [("X-Sdk-Date", signed["x-sdk-date"]), ("X-Project-Id", card["project_id"])]
        return plain(method, target, content, [*headers, ("Host", signed["host"]), ("Authorization", access)])


# The sender.


def load(pid: int, url: str, requests: Sequence[bytes], connections: int = CONNECTIONS) -> Cost:
    """Send the requests and read all answers, over so many connections at a time; each answer must be a good one."""
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(url)) for _ in range(connections)]
        warm, rest = requests[:connections], requests[connections:]
        _send_all(lines, warm)
        began, cpu, own = time.perf_counter(), cpu_of(pid), time.process_time()
        _send_all(lines, rest)
        took, cpu, own = time.perf_counter() - began, cpu_of(pid) - cpu, time.process_time() - own
    return Cost(cpu / len(rest) * 1e6, len(rest) / took, own / len(rest) * 1e6)


def connect(url: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", urlsplit(url).port or 80))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send_all(connections: Sequence[socket.socket], requests: Sequence[bytes]) -> None:
    """Each connection has its next request as soon as its answer is there, and the server meanwhile has the others'."""
    count = len(connections)
    for connection, request in zip(connections, requests, strict=False):
        connection.sendall(request)
    for number in range(len(requests)):
        connection = connections[number % count]
        read_answer(connection)
        if number + count < len(requests):
            connection.sendall(requests[number + count])


def send(url: str, requests: Sequence[bytes]) -> list[bytes]:
    """The body of each answer."""
    with connect(url) as connection:
        bodies = []
        for request in requests:
            connection.sendall(request)
            bodies.append(read_answer(connection))
        return bodies


def read_answer(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 18)
    while (end := data.find(b"\r\n\r\n")) < 0:
        if not (more := connection.recv(1 << 18)):
            raise SystemExit(f"the server hung up after {data[:200]!r}")
        data += more
    match = _LENGTH.search(data, 0, end)
    wanted = end + 4 + (int(match[1]) if match else 0)
    while len(data) < wanted and (more := connection.recv(1 << 18)):
        data += more
    if not data.startswith(b"HTTP/1.1 2") or len(data) != wanted:
        raise SystemExit(f"a bad answer: {data[:600]!r}")
    return data[end + 4 :]


KINDS = {
    "put": f"OBS PUT, {len(CONTENT) // 1024} KiB",
    "get": f"OBS GET, {len(CONTENT) // 1024} KiB",
    "create": "create a job",
    "poll": f"list {PAGE} of {CREATES} jobs",
    "show": "show a job",
    "nginx_put": "nginx, PUT to a sink",
    "nginx_get": "nginx, GET of a file",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--before", metavar="PYTHON", help="the Python of another checkout, measured in turns with ours"
    )
    options = parser.parse_args()
    pythons = {"before": options.before} if options.before else {}
    figures = measure_in_turns(pythons | {"now": sys.executable}, options.rounds)
    if "nginx_put_cpu_us" not in figures["now"]:
        print("There is no nginx here (apt-get install nginx): its rows are missing.\n")
    print(f"{track.machine()}, best of {options.rounds} rounds\n")
    labels = list(figures)
    head = ["request", *(f"{label}: {what}" for what in ("CPU µs", "requests/s") for label in labels)]
    head += ["ratio of CPU"] if options.before else []
    track.table([*head, "sender's CPU µs"], rows(figures))
    for label in labels:
        wall, cpu = figures[label]["startup_ms"], figures[label]["startup_cpu_ms"]
        print(f"\n{label}: a private cloud prints its card after {wall:.0f} ms, {cpu:.0f} ms of CPU")


def rows(figures: Mapping[str, Mapping[str, float]]) -> Iterator[list[str]]:
    now = figures["now"]
    for kind, name in KINDS.items():
        if f"{kind}_cpu_us" not in now:
            continue
        cpu = [each[f"{kind}_cpu_us"] for each in figures.values()]
        cells = [name, *(f"{value:.0f}" for value in cpu)]
        cells += [f"{each[f'{kind}_per_s']:,.0f}" for each in figures.values()]
        if len(cpu) > 1:
            cells.append(f"{cpu[0] / cpu[1]:.2f}")
        yield [*cells, f"{now[f'{kind}_sender_us']:.0f}"]


if __name__ == "__main__":
    main()
