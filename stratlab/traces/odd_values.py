"""What writers of traces put into JSON and JSON does not know. One odd value costs itself or its event, not the file.

Tried only where the typed decoder has refused a piece, because it is twenty times slower.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from stratlab.traces.chunks import TraceError, build_not_json
from stratlab.traces.events import decode_event

LATEST_NS = 1 << 62  # in the year 2116
NO_CLOCK = "counts its times from one that no clock shows [SL-trace-base-time]"
# what Python's str() makes of such a number; behind the texts, which stay
WORDS = re.compile(r'"(?:\\.|[^"\\])*"|-?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
MOST_DIGITS = 300  # of a number that a float64 holds

_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass
class Oddities:
    """How much of one file was odd.

    Attributes:
        values: no JSON (NaN, inf, numbers beyond a float64, half a character, bytes that are not UTF-8); unknown now.
        events: with a field of another type than it has in every other trace; left out.
    """

    values: int = 0
    events: int = 0


def mend_piece(piece: bytes, odd: Oddities, start: int | None = None) -> bytes:
    """A piece of `split_events` that the decoders of events.py read. Adds to `odd`.

    Args:
        start: what `split_placed` tells of the piece; None = a refusal names no place.

    Raises:
        TraceError: truncated or not JSON.
    """
    content = _load(piece, odd, start)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise build_not_json("its traceEvents are not a list")
    kept = [text for text in map(_encode, events) if _is_event(text)]
    odd.events += len(events) - len(kept)
    mended = b"[" + b",".join(kept) + b"]"
    if not isinstance(content, dict):
        return mended
    behind = _encode({key: value for key, value in content.items() if key != "traceEvents"})
    return b'{"traceEvents":' + mended + (b"}" if behind == b"{}" else b"," + behind[1:])


def decode_head(head: bytes) -> dict[str, Any]:
    """The object before the events, by whatever it holds.

    Raises:
        TraceError: not JSON.
    """
    try:
        content = msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        try:
            content = _load(head, Oddities(), None)
        except TraceError:
            raise TraceError(say_no_head(failure)) from failure
    return content if isinstance(content, dict) else {}


def say_no_head(why: object) -> str:
    """Of a file whose head cannot be read."""
    return f"not JSON before the events ({why}) [SL-trace-head-not-json]"


def read_base_ns(value: Any) -> int:
    """`baseTimeNanoseconds`, also in quotes; 0 for what is no time."""
    if isinstance(value, str) and value.isdecimal() and len(value) < MOST_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return 0
    is_time = -LATEST_NS < value < LATEST_NS and value == int(value)
    return int(value) if is_time else 0


def _load(piece: bytes, odd: Oddities, start: int | None) -> Any:
    def drop(constant: str) -> Any:
        odd.values += 1
        return None

    def read_number(number: str) -> Any:
        value = Decimal(number)
        return value if abs(value.adjusted()) < MOST_DIGITS else drop(number)

    def read_integer(number: str) -> Any:
        return int(number) if len(number) < MOST_DIGITS else drop(number)

    def read(text: str) -> Any:
        return json.loads(
            text, parse_constant=drop, parse_float=read_number, parse_int=read_integer, strict=False
        )

    text, before = piece.decode("utf-8", "surrogateescape"), odd.values
    try:
        try:
            content = read(text)
        except ValueError:
            odd.values = before
            content = read(WORDS.sub(lambda found: found[0] if found[0][0] == '"' else "NaN", text))
        return _whole(content, odd)
    except json.JSONDecodeError as failure:
        said = failure.msg
        if start is not None:
            said += (
                f" at byte {start + len(text[: failure.pos].encode('utf-8', 'surrogateescape'))} of the file"
            )
        raise build_not_json(said) from failure
    except (ValueError, RecursionError) as failure:
        raise build_not_json(failure) from failure


def _whole(value: Any, odd: Oddities) -> Any:
    """With a question mark for every half of a character."""
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
        decode_event(text)
    except msgspec.DecodeError:
        return False
    return True
