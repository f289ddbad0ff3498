"""The exchange between ranks: a star over TCP, rank 0 in its middle.

Rank 0 receives one buffer from every peer, adds them in the order of their ranks, and sends the sum back, so all ranks
hold the same bits. On one machine a star is quicker than a ring, and it cannot deadlock: rank 0 only ever waits for a
rank that is sending, or sends to one that is waiting. Whoever is missing, late or gone ends the training with an error.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from layers import Array

GREETING = struct.Struct("!8sII")  # magic, rank, world size
LENGTH = struct.Struct("!Q")
MAGIC = b"aisbench"


class ExchangeError(Exception):
    """Another rank is missing, late, gone, or not what it should be."""


class Exchange:
    """``size`` ranks, each of which must make the same calls in the same order.

    ``timeout`` is how long, in seconds, a rank waits for another before it gives up.
    """

    def __init__(self, rank: int, size: int, address: tuple[str, int] | None, timeout: float = 60.0) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers: dict[int, socket.socket] = {}
        if size == 1:
            return
        if address is None:
            raise ExchangeError(f"{size} ranks need MASTER_ADDR and MASTER_PORT to find each other")
        if rank == 0:
            self._gather(address)
        else:
            self._reach(address)

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()

    def broadcast(self, buffer: Array) -> None:
        """Everybody's buffer becomes rank 0's."""
        if self.rank == 0:
            for peer in self.peers:
                self._send(peer, buffer)
        else:
            self._receive(0, buffer)

    def sum(self, buffer: Array) -> None:
        """Everybody's buffer becomes the sum of all."""
        if self.rank == 0:
            other = np.empty_like(buffer)
            for peer in sorted(self.peers):
                self._receive(peer, other)
                buffer += other
        else:
            self._send(0, buffer)
        self.broadcast(buffer)

    def _gather(self, address: tuple[str, int]) -> None:
        deadline = time.monotonic() + self.timeout
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(address)
            except OSError as error:
                raise ExchangeError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from error
            door.listen(self.size)
            while len(self.peers) < self.size - 1:
                door.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    peer, _ = door.accept()
                except TimeoutError:
                    absent = ", ".join(str(r) for r in range(1, self.size) if r not in self.peers)
                    raise ExchangeError(f"rank {absent} did not come within {self.timeout:g} s") from None
                self._admit(peer)

    def _admit(self, peer: socket.socket) -> None:
        peer.settimeout(min(self.timeout, 5.0))
        greeting = bytearray(GREETING.size)
        with contextlib.suppress(OSError):
            fill(peer, memoryview(greeting))
        magic, rank, size = GREETING.unpack(greeting)
        if magic != MAGIC:
            peer.close()  # a stranger at the door is no reason to stop
            return
        if size != self.size or not 0 < rank < size or rank in self.peers:
            raise ExchangeError(
                f"somebody came as rank {rank} of {size}, among {self.size} with {sorted(self.peers)} present"
            )
        self._keep(rank, peer)

    def _reach(self, address: tuple[str, int]) -> None:
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                peer = socket.create_connection(address, timeout=max(deadline - time.monotonic(), 0.001))
                if peer.getsockname() != peer.getpeername():
                    break
                peer.close()  # before rank 0 listens, a connection on one host may meet its own port, and itself
            except OSError as error:
                if time.monotonic() >= deadline:
                    where = f"{address[0]}:{address[1]}"
                    raise ExchangeError(
                        f"rank 0 did not answer on {where} within {self.timeout:g} s: {error}"
                    ) from error
            time.sleep(0.05)
        self._keep(0, peer)
        peer.sendall(GREETING.pack(MAGIC, self.rank, self.size))

    def _keep(self, rank: int, peer: socket.socket) -> None:
        peer.settimeout(self.timeout)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peers[rank] = peer

    def _send(self, rank: int, buffer: Array) -> None:
        try:
            self.peers[rank].sendall(LENGTH.pack(buffer.nbytes) + buffer.tobytes())
        except OSError as error:
            raise self._lost(rank, error) from error

    def _receive(self, rank: int, buffer: Array) -> None:
        head = bytearray(LENGTH.size)
        try:
            fill(self.peers[rank], memoryview(head))
            (length,) = LENGTH.unpack(head)
            if length != buffer.nbytes:
                raise ExchangeError(f"rank {rank} sent {length} bytes where {buffer.nbytes} were due")
            fill(self.peers[rank], buffer.data.cast("B"))
        except OSError as error:
            raise self._lost(rank, error) from error

    def _lost(self, rank: int, error: OSError) -> ExchangeError:
        if isinstance(error, TimeoutError):
            return ExchangeError(f"rank {rank} was silent for {self.timeout:g} s")
        return ExchangeError(f"rank {rank} left the exchange: {error}")


def fill(peer: socket.socket, view: memoryview) -> None:
    """Receive until the view is full."""
    while view:
        got = peer.recv_into(view)
        if not got:
            raise ConnectionError("the connection was closed")
        view = view[got:]
