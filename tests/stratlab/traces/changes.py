"""Ways to change the file of a trace, and what is then expected of the analysis."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stratlab.traces.chunks import LIMITS, Limits

VICTIM = 1  # the rank whose file is changed
EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::x", "pid": 4000, "tid": 4000, "ts": 5100, "dur": 1}'

Change = Callable[[bytes], bytes]
# named: quality names the file (or, where it is gone, the rank), or NoTraces names it. valid: as without the change.
# either: a value may be changed unnoticed, but nothing breaks
Expectation = Literal["named", "valid", "either"]


@dataclass(frozen=True)
class Case:
    """`apply` changes the folder of the traces, given the victim's file."""

    name: str
    base: str
    apply: Callable[[Path], None]
    expects: Expectation
    limits: Limits = LIMITS
    also: str = ""  # another file that may be named instead


def build_case(base: str, name: str, change: Change, expects: Expectation = "named", **more: Any) -> Case:
    """A case that changes the victim's JSON text."""

    def apply(victim: Path) -> None:
        packed, data = victim.suffix == ".gz", victim.read_bytes()
        text = gzip.decompress(data) if packed else data
        changed = change(text)
        assert changed != text, name
        victim.write_bytes(gzip.compress(changed, 1) if packed else changed)

    return Case(name, base, apply, expects, **more)


def sub(pattern: str, replacement: str, count: int = 1) -> Change:
    """Replaces in the text; fails if there is nothing to replace."""

    def change(data: bytes) -> bytes:
        changed, found = re.subn(pattern.encode(), lambda _: replacement.encode(), data, count=count)
        assert found, pattern
        return changed

    return change


def cut(share: float) -> Change:
    return lambda data: data[: int(len(data) * share)]


def with_event(text: str) -> Change:
    """One more event, the first."""
    return lambda data: data.replace(b'"traceEvents": [', b'"traceEvents": [' + text.encode() + b",", 1)


def with_events(text: str) -> Change:
    """These instead of all events."""
    return lambda data: re.sub(
        rb'(?s)"traceEvents": \[.*\n  \]', lambda _: b'"traceEvents": ' + text.encode(), data
    )


def as_json(**style: Any) -> Change:
    return lambda data: json.dumps(json.loads(data), **style).encode()


def without(field: str, *beginnings: str) -> Change:
    """Without the events whose name or category begins so."""

    def change(data: bytes) -> bytes:
        content = json.loads(data)
        kept = [event for event in content["traceEvents"] if not event.get(field, "").startswith(beginnings)]
        return json.dumps(content | {"traceEvents": kept}).encode()

    return change


def flip(seed: int) -> Change:
    def change(data: bytes) -> bytes:
        draw = random.Random(seed)
        at, bit = draw.randrange(len(data)), draw.randrange(8)
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    return change


def zero(share: float) -> Change:
    def change(data: bytes) -> bytes:
        at = int((len(data) - 512) * share)
        return data[:at] + bytes(512) + data[at + 512 :]

    return change
