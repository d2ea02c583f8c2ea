"""Find, read and merge the trace files of a run. Times are whole nanoseconds.

This file has the fields that are read of Kineto's events, and the kinds of events. Some writers of traces emit invalid
JSON. `repair_piece` reads it too: an odd value loses only itself or its event, not the file. It runs only after the
typed decoder has refused a piece, because it is twenty times slower.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from typing import Any

import msgspec

from stratlab.traces.chunks import TraceError, build_not_json

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


def decode_odd_piece(piece: bytes, kind: Any) -> list[Any]:
    """Decode a piece that may hold invalid JSON."""
    try:
        return decode_piece(piece, kind)
    except UNDECODABLE:
        return decode_piece(repair_piece(piece, Oddities()), kind)


LATEST_NS = 1 << 62  # in the year 2116
NO_CLOCK = "its base time is not a possible time of a clock [SL-trace-base-time]"
# Python's str() of such a number; after the texts, which stay
WORDS = re.compile(r'"(?:\\.|[^"\\])*"|-?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
MOST_DIGITS = 300  # of a number that fits a float64

_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass
class Oddities:
    """Count the irregularities of one file.

    Attributes:
        values: invalid JSON (NaN, inf, numbers beyond a float64, half a character, bytes that are not UTF-8); now
        unknown. events: with a field of another type than in every other trace; left out.
    """

    values: int = 0
    events: int = 0


def repair_piece(piece: bytes, odd: Oddities, start: int | None = None) -> bytes:
    """Repair a piece of `split_events` so that the decoders read it. Adds to `odd`.

    Args:
        start: offset of the piece from `split_placed`; None = an error names no place.

    Raises:
        TraceError: truncated or not JSON.
    """
    content = _load(piece, odd, start)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise build_not_json("its traceEvents are not a list")
    kept = [text for text in map(_encode, events) if _is_event(text)]
    odd.events += len(events) - len(kept)
    repaired = b"[" + b",".join(kept) + b"]"
    if not isinstance(content, dict):
        return repaired
    behind = _encode({key: value for key, value in content.items() if key != "traceEvents"})
    return b'{"traceEvents":' + repaired + (b"}" if behind == b"{}" else b"," + behind[1:])


def decode_head(head: bytes) -> dict[str, Any]:
    """Decode the object before the events, with any content.

    Raises:
        TraceError: not JSON.
    """
    try:
        content = msgspec.json.decode(head)
    except UNDECODABLE as failure:
        try:
            content = _load(head, Oddities(), None)
        except TraceError:
            raise TraceError(say_no_head(failure)) from failure
    return content if isinstance(content, dict) else {}


def say_no_head(why: object) -> str:
    """Describe a file with an unreadable head."""
    return f"not JSON before the events ({why}) [SL-trace-head-not-json]"


def read_base_ns(value: Any) -> int:
    """Read `baseTimeNanoseconds`, also in quotes; 0 if it is not a time."""
    if isinstance(value, str) and value.isdecimal() and len(value) < MOST_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return 0
    is_time = -LATEST_NS < value < LATEST_NS and value == int(value)
    return int(value) if is_time else 0


def _load(piece: bytes, odd: Oddities, start: int | None) -> Any:
    def drop(constant: str) -> None:
        odd.values += 1

    def read_number(number: str) -> Any:
        value = Decimal(number)
        return value if abs(value.adjusted()) < MOST_DIGITS else drop(number)

    def read_integer(number: str) -> Any:
        return int(number) if len(number) < MOST_DIGITS else drop(number)

    numbers: dict[str, Any] = {"parse_float": read_number, "parse_int": read_integer, "parse_constant": drop}
    read: Any = partial(json.loads, strict=False, **numbers)
    text, known = piece.decode("utf-8", "surrogateescape"), odd.values
    try:
        try:
            content = read(text)
        except ValueError:
            odd.values = known
            content = read(WORDS.sub(lambda found: found[0] if found[0][0] == '"' else "NaN", text))
        return _whole(content, odd)
    except json.JSONDecodeError as failure:
        reason = failure.msg
        if start is not None:
            before = len(text[: failure.pos].encode("utf-8", "surrogateescape"))
            reason += f" at byte {start + before} of the file"
        raise build_not_json(reason) from failure
    except (ValueError, RecursionError) as failure:
        raise build_not_json(failure) from failure


def _whole(value: Any, odd: Oddities) -> Any:
    """Return the value with a question mark for every half of a character."""
    if isinstance(value, str) and not value.isascii():
        whole = value.encode("utf-8", "replace").decode()
        odd.values += whole != value
        return whole
    if isinstance(value, list):
        return [_whole(item, odd) for item in value]
    if isinstance(value, dict):
        return {_whole(key, odd): _whole(item, odd) for key, item in value.items()}
    return value


def _is_event(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=Event, strict=False)
    except msgspec.DecodeError:
        return False
    return True
