"""The local cloud's HTTP server beside starlette on uvicorn with httptools: what a request costs before any service.

    python tests/bench/http_stacks.py [ROUNDS]

Each server is a process of its own, reads the body and answers with a small document. Best of the rounds, in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import localcloud
import track

REQUESTS = 1200
_OURS = """
import sys, threading
from pytest_aisbench.localcloud.http import Listener
from pytest_aisbench.localcloud.messages import Response
class Answer:
    def answer(self, request):
        request.bytes()
        return Response.json(200, {"answer": "a small document"})
    def quick(self, request):
        return %s
with Listener(Answer()) as listener:
    print(listener.url, flush=True)
    sys.stdin.read()
"""
_STARLETTE = """
import os, sys, socket, threading
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
def work(body):
    return {"answer": "a small document"}
async def answer(request):
    body = await request.body()
    return JSONResponse(%s)
app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "PUT"])])
listening = socket.create_server(("127.0.0.1", 0), backlog=256)
listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("http://127.0.0.1:%%d" %% listening.getsockname()[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
config = uvicorn.Config(app, http="httptools", loop="asyncio", access_log=False, log_level="error")
uvicorn.Server(config).run(sockets=[listening])
"""
SERVERS = {
    "`localcloud/http.py`, at once": _OURS % "True",
    "`localcloud/http.py`, in threads": _OURS % "False",
    "starlette, async": _STARLETTE % "work(body)",
    "starlette, in threads": _STARLETTE % "await run_in_threadpool(work, body)",
}
KINDS = {
    ("GET", 1): localcloud.plain("GET", "/x"),
    ("GET", 8): localcloud.plain("GET", "/x"),
    ("PUT, 10 KiB", 1): localcloud.plain("PUT", "/x", localcloud.CONTENT),
    ("PUT, 10 KiB", 8): localcloud.plain("PUT", "/x", localcloud.CONTENT),
}


def costs(code: str) -> dict[tuple[str, int], localcloud.Cost]:
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=track.environment(),
        cwd=Path(os.sep),
    ) as server:
        assert server.stdin
        assert server.stdout
        url = server.stdout.readline().decode().strip()
        localcloud.send(url, [localcloud.plain("GET", "/x")] * 50)
        measured = {
            kind: localcloud.load(server.pid, url, [request] * REQUESTS, connections=kind[1])
            for kind, request in KINDS.items()
        }
        server.stdin.close()
        return measured


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    best: dict[str, dict[tuple[str, int], localcloud.Cost]] = {name: {} for name in SERVERS}
    for _ in range(rounds):
        for name, code in SERVERS.items():
            for kind, cost in costs(code).items():
                best[name][kind] = cost.best(best[name].get(kind, cost))
            time.sleep(0.1)
    print(f"{track.machine()}, best of {rounds} rounds: requests/s, and the server's CPU per request\n")
    track.table(
        ["request", "connections", *SERVERS],
        (
            [
                kind,
                str(number),
                *(f"{each[kind, number].per_s:,.0f}/s, {each[kind, number].cpu_us:.0f} µs" for each in best.values()),
            ]
            for kind, number in KINDS
        ),
    )


if __name__ == "__main__":
    main()
