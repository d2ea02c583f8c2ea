"""Read trace files of writers that emit invalid JSON: an odd value loses only itself or its event, not the file.

`repair_piece` runs only after the typed decoder has refused a piece, because it is twenty times slower.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from stratlab.traces.chunks import TraceError, build_not_json
from stratlab.traces.kineto_events import UNDECODABLE, Event, decode_piece


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
