"""Writes TFRecord files, whose format is simple and whose library is large."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

POLYNOMIAL = 0x82F63B78  # of CRC-32C
WORD = 0xFFFFFFFF


def tfrecord(rows: Iterable[Mapping[str, Sequence[float]]]) -> bytes:
    """One `tf.train.Example` for each row; a column with a float in it is of floats."""
    return b"".join(_record(_field(1, b"".join(_feature(*pair) for pair in row.items()))) for row in rows)


def _record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + _masked_crc(head) + data + _masked_crc(data)


def _feature(name: str, values: Sequence[float]) -> bytes:
    if any(isinstance(value, float) for value in values):
        packed = _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
    else:
        packed = _field(3, _field(1, b"".join(_varint(int(value)) for value in values)))
    return _field(1, _field(1, name.encode()) + _field(2, packed))


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def _step(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_step(byte) for byte in range(256)]


def _masked_crc(data: bytes) -> bytes:
    crc = WORD
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= WORD
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & WORD)
