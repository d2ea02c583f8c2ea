"""Lets Holistic Trace Analysis read a trace piece by piece, without what it drops anyway.

HTA decodes the whole text at once and keeps every field of every event until its data frame is made. Here it gets only
events with a duration, of their arguments only those that it looks at, and texts that occur again only once. Its data
frame, and with it every number, is the same (tests/stratlab/analysis/hta/test_reading.py). A number in quotes becomes a
number. An event that our own reader leaves out for its types is left out here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stratlab.traces.chunks import split_events
from stratlab.traces.odd_values import Oddities, decode_head, mend_piece

FIELDS = ("cat", "name", "pid", "tid", "ts", "dur")
NONE: dict[str, Any] = {}
COUNTERS = "cuda_profiler_range"  # its arguments are counters with any name


def apply_slim_reading() -> None:
    """From now on HTA reads in this process as `read_slim` does."""
    from hta.common import trace_parser
    from hta.configs.parser_config import ParserConfig, ValueType

    numbers = (ValueType.Int, ValueType.Float)
    wanted = {arg.raw_name: arg.value_type in numbers for arg in ParserConfig.get_default_args()}
    trace_parser.parse_trace_dict = lambda path: read_slim(Path(path), wanted)


def read_slim(path: Path, wanted: Mapping[str, bool]) -> dict[str, Any]:
    """Return the trace as `json.loads` would give it, reduced, with numbers where a writer put them into quotes.

    Args:
        wanted: arguments by name; the value says whether it is a number.

    Raises:
        TraceError: as `load_trace`.
    """
    pieces = split_events(path)
    content = decode_head(next(pieces))
    events: list[dict[str, Any]] = []
    texts: dict[str, str] = {}
    for piece in pieces:
        found = _decode(piece)
        if isinstance(found, dict):
            content |= {key: value for key, value in found.items() if key != "traceEvents"}
            found = found["traceEvents"]
        events += filter(None, (_slim(event, wanted, texts.setdefault) for event in found))
    return content | {"traceEvents": events}


def _decode(piece: bytes) -> Any:
    try:
        return msgspec.json.decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(mend_piece(piece, Oddities()))


def _slim(event: Any, wanted: Mapping[str, bool], once: Callable[[str, str], str]) -> dict[str, Any] | None:
    """None for what is left out."""
    if not isinstance(event, dict) or event.get("cat") in (None, "Trace"):
        return None
    slim = {key: event[key] for key in FIELDS if key in event}
    for key in ("ts", "dur"):
        if (number := _read_number(slim.get(key))) is None:
            return None
        slim[key] = number
    if isinstance(event["ts"], str):  # in traces of 2021 ids are texts, and times are not
        slim |= {key: _read_text(slim[key]) for key in ("pid", "tid") if key in slim}
    for key in ("cat", "name"):
        if not isinstance(text := slim.get(key, ""), str):
            return None
        slim[key] = once(text, text)
    args = event.get("args")
    if isinstance(args, dict):
        every = event["cat"] == COUNTERS
        kept = {k: v for k, v in args.items() if every or k in wanted}
        kept = {k: _read_text(v) if every or wanted[k] else v for k, v in kept.items()}
        # without any `args` HTA's data frame lacks columns
        slim["args"] = {k: once(v, v) if isinstance(v, str) else v for k, v in kept.items()} if kept else NONE
    return None if args is not None and not isinstance(args, dict) else slim


def _read_text(value: Any) -> Any:
    """The number in a text; any other value as it is."""
    number = _read_number(value) if isinstance(value, str) else None
    return value if number is None else number


def _read_number(value: Any) -> int | float | None:
    """Also of a text; None for what is no finite number."""
    if isinstance(value, str):
        try:
            value = msgspec.convert(value, int | float, strict=False)
        except msgspec.ValidationError:
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None
