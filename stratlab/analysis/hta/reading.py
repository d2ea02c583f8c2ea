"""Lets Holistic Trace Analysis read a trace piece by piece, without what it drops anyway.

HTA decodes the whole text at once and keeps every field of every event until its data frame is made. Here it gets only
events with a duration, of their arguments only those that it looks at, and texts that occur again only once. Its data
frame, and with it every number, is the same (tests/stratlab/analysis/hta/test_reading.py).
"""

from __future__ import annotations

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

    numeric = (ValueType.Int, ValueType.Float)
    wanted = {arg.raw_name: arg.value_type in numeric for arg in ParserConfig.get_default_args()}
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
        events += [_slim(event, wanted, texts.setdefault) for event in found if _is_kept(event)]
    return content | {"traceEvents": events}


def _decode(piece: bytes) -> Any:
    try:
        return msgspec.json.decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(mend_piece(piece, Oddities()))


def _is_kept(event: Any) -> bool:
    return (
        isinstance(event, dict) and event.get("dur") is not None and event.get("cat") not in (None, "Trace")
    )


def _slim(
    event: dict[str, Any], wanted: Mapping[str, bool], once: Callable[[str, str], str]
) -> dict[str, Any]:
    slim = {key: event[key] for key in FIELDS if key in event}
    for key in ("cat", "name"):
        if isinstance(text := slim.get(key), str):
            slim[key] = once(text, text)
    args = event.get("args")
    if isinstance(args, dict):
        kept = args if event["cat"] == COUNTERS else {k: v for k, v in args.items() if k in wanted}
        # without any `args` HTA's data frame lacks columns
        slim["args"] = {k: once(v, v) if isinstance(v, str) else v for k, v in kept.items()} if kept else NONE
    return _drop_quotes(slim, wanted) if isinstance(slim.get("ts"), str) else slim


def _drop_quotes(slim: dict[str, Any], wanted: Mapping[str, bool]) -> dict[str, Any]:
    """HTA calculates with times, ids and arguments, and ends with a TypeError where they are texts."""
    args = {k: _read_number(v) if wanted.get(k) else v for k, v in slim.get("args", NONE).items()}
    numbers = {k: _read_number(slim[k]) for k in ("ts", "dur", "pid", "tid") if k in slim}
    return slim | numbers | ({"args": args} if args else {})


def _read_number(value: Any) -> Any:
    """The number that stands in a text; any other value as it is."""
    try:
        return msgspec.json.decode(value, type=int | float) if isinstance(value, str) else value
    except msgspec.DecodeError:
        return value
