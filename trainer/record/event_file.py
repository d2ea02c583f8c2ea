"""TensorBoard's event file: records of TFRecord that hold protocol buffers, of which a scalar needs six fields.

The format is old and does not change; TensorBoard itself, which writes it too, brings eleven packages that nothing
else here needs. Its own reader reads these files in tests/trainer/record/test_event_file.py.

Sources: tensorflow/core/util/event.proto, framework/summary.proto, and lib/io/record_writer.cc for the record: length,
masked CRC-32C of the length, data, masked CRC-32C of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reflected
MASK_DELTA = 0xA282EAD8
VERSION = "brain.Event:2"


def _build_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


TABLE = _build_table()


def build_first_record(wall_time_s: float) -> bytes:
    """What every file begins with."""
    return _record(_double(1, wall_time_s) + _bytes(3, VERSION.encode()))


def build_record(wall_time_s: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """All scalars of one step as one event. TensorBoard keeps 32 bits of each."""
    values = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", _to_float32(value)))
        for tag, value in scalars.items()
    )
    return _record(_double(1, wall_time_s) + b"\x10" + _varint(step) + _bytes(5, values))


def _to_float32(value: float) -> float:
    """Nothing in a metrics file is so large; if it were, infinity says so."""
    return value if abs(value) < 3.4e38 else float("inf") * (1 if value > 0 else -1)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
