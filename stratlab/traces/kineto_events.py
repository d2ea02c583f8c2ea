"""The fields that are read of Kineto's events, and the kinds of events."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import msgspec

# A GPU event is known by its category, not by its stream: Triton's CPU ops carry stream 0.
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
GPU_CATEGORIES = ("kernel", "Kernel", *COPY_CATEGORIES)
RECORD = "record_param_comms"  # torch's operator around a collective; its args describe the collective
# torch's operators that start collectives; old versions do not write a record inside them
COLLECTIVE_OPERATORS = (
    *("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "c10d_functional::"),
    "_dtensor::shard_dim_alltoall",
)

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """Hold the fields read of an event's `args`."""

    correlation: Number = None
    device: Number = None
    stream: Number = None
    bytes: Number = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Number = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    in_elements: Number = msgspec.field(default=None, name="In msg nelems")
    out_elements: Number = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")
    connection: Number = msgspec.field(default=None, name="connection_id")  # this and the next: Ascend's
    task: Number = msgspec.field(default=None, name="Task Type")
    stream_id: Number = msgspec.field(default=None, name="Stream Id")


class Event(msgspec.Struct, gc=False):
    """Hold one event; times in us."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float = 0
    dur: int | float | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: Args | None = None


class ExactTimes(msgspec.Struct, gc=False):
    """Hold the times of an event as their text; us."""

    ts: Decimal = Decimal(0)
    dur: Decimal | None = None


class Behind(msgspec.Struct):
    """Hold the possible fields after the last event of a file."""

    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None


NO_ARGS = Args()
_SHORT = {"Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1}
ELEMENT_BYTES = _SHORT | {"Double": 8, "Long": 8}  # by torch's names
UNDECODABLE = (msgspec.DecodeError, UnicodeError, RecursionError)  # exceptions of the decoders


@cache
def _build_decoders(kind: Any, strict: bool) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    rest = msgspec.defstruct("Rest", [("traceEvents", list[kind])])
    decoders = (msgspec.json.Decoder(each, strict=strict).decode for each in (list[kind], rest))
    return next(decoders), next(decoders)


def decode_piece(piece: bytes, kind: Any, *, strict: bool = True) -> list[Any]:
    """Decode the events of one piece of `split_events`, each as `kind`. `strict=False` accepts numbers in quotes."""
    decode_list, decode_rest = _build_decoders(kind, strict)
    return decode_list(piece) if piece.startswith(b"[") else decode_rest(piece).traceEvents
