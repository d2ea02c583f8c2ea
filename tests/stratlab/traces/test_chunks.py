"""The pieces hold every event once, whatever the formatting and wherever the file is cut; memory stays bounded."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces import chunks
from stratlab.traces.chunks import Limits, TraceError, split_events
from tests.codes import find_codes
from tests.stratlab.simulated.small import build_gpu_trace

NAMES = ["plain", 'quo"te', "back\\slash", '\\"', "}, {", "],", "ü€", "tab\t", "\\", "{[", "line\n  },\n  {"]


def build_events(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Events whose texts look like the borders between events."""
    draw = random.Random(seed)
    return [
        {
            "ph": "X",
            "name": draw.choice(NAMES) * draw.randrange(3),
            "ts": i,
            "args": {draw.choice(NAMES): [{}, [], {"a": [{"b": draw.choice(NAMES)}]}][draw.randrange(3)]},
        }
        for i in range(count)
    ]


def as_kineto(events: list[dict[str, Any]]) -> str:
    lines = ",\n".join("  " + json.dumps(event, indent=2).replace("\n", "\n  ") for event in events)
    return f'{{\n  "rank": 3,\n    "traceEvents": [\n    \n{lines}\n  ],\n  "traceName": "x" }}'


def as_json(**style: Any) -> Callable[[list[dict[str, Any]]], str]:
    return lambda events: json.dumps(
        {"rank": 3, "traceEvents": events, "tail": [{"a": 1}, {"b": {}}]}, **style
    )


FORMATS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "kineto": as_kineto,
    "compact": as_json(separators=(",", ":"), ensure_ascii=False),
    "indent 2": as_json(indent=2),
    "tabs": as_json(indent="\t"),
    "brace behind a comma": lambda events: (
        '{"rank":3,"traceEvents" : ['
        + ",\n{".join(json.dumps(e)[1 if i else 0 :] for i, e in enumerate(events))
        + "]}"
    ),
    "comma before a brace": lambda events: (
        '{"rank":3,\n"traceEvents"\n:\n[\n' + "\n, ".join(map(json.dumps, events)) + "\n]\n}\n\n"
    ),
    "kineto, then compact": lambda events: as_kineto(events).replace(
        "\n  ],\n", ",\n" + ",".join(json.dumps(event) for event in events) + "]\n,"
    ),
}


def read_all(path: Path, limits: Limits = chunks.LIMITS) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Head, events, and the length of the largest piece."""
    head, *pieces = split_events(path, limits)
    *lists, last = (json.loads(piece) for piece in pieces)
    events = [event for part in lists for event in part] + last["traceEvents"]
    return json.loads(head), events, max(map(len, pieces))


def refuse(path: Path, limits: Limits = chunks.LIMITS) -> list[str]:
    with pytest.raises(TraceError) as refusal:
        list(split_events(path, limits))
    return find_codes(refusal.value)


@pytest.mark.parametrize(
    ("style", "block_bytes"),
    [*((style, 333) for style in FORMATS), ("kineto", 5), ("compact", 5), ("kineto, then compact", 1 << 20)],
)
def test_every_event_once_in_any_formatting(tmp_path, monkeypatch, style, block_bytes):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    path, events = tmp_path / "trace.json", build_events(40, block_bytes)
    text = FORMATS[style](events)
    path.write_bytes(text.encode())
    head, found, largest = read_all(path)
    assert found == json.loads(text)["traceEvents"]
    assert head == {"rank": 3}
    if style != "kineto, then compact":
        assert largest < len(text) / 4  # it was cut


@pytest.mark.parametrize("style", ["kineto", "compact"])
def test_a_cut_off_file_never_passes_as_whole(tmp_path, monkeypatch, style):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 64)
    path, text = tmp_path / "trace.json", FORMATS[style](build_events(6)).encode()
    for length in range(0, len(text.rstrip()), 7):
        path.write_bytes(text[:length])
        with pytest.raises((TraceError, ValueError)):
            read_all(path)


HEAD, BLOCK = b'{"traceEvents": [', 1 << 16
HOSTILE: dict[str, tuple[list[bytes], str]] = {
    "a second list": ([b'{"traceEvents": [{"ts": 1}], "x": 1, "traceEvents": []}'], "SL-trace-events-twice"),
    "an object of events": ([b'{"traceEvents": {}}'], "SL-trace-events-no-list"),
    "no comma": ([HEAD, b'{"a": "' + b"x" * BLOCK + b'"}\n{"b": 1}', b" " * BLOCK], "SL-trace-not-json"),
    "white space before the list": ([b'{"traceEvents":', *[b" " * BLOCK] * 20], "SL-trace-head-large"),
    "an endless string": ([HEAD, b'{"name": "', *[b"x" * BLOCK] * 20], "SL-event-too-large"),
    "brackets": ([HEAD, *[b"[" * BLOCK] * 20], "SL-trace-nested"),
    "Kineto's event without an end": (
        [HEAD, b'\n  {\n    "args": [', *[b"[]," * (BLOCK >> 2)] * 20],
        "SL-event-too-large",
    ),
    "an endless tail": ([HEAD, b'{}], "x": [', *[b"[]," * (BLOCK >> 2)] * 20], "SL-event-too-large"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_refused_before_it_fills_the_memory(name, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "BLOCK_BYTES", BLOCK)
    blocks, code = HOSTILE[name]
    limits = Limits(ratio=10_000, head_bytes=4 * BLOCK, piece_bytes=8 * BLOCK)
    read: list[bytes] = []
    monkeypatch.setattr(chunks, "read_blocks", lambda *_: _keep(blocks, read))
    assert refuse(tmp_path, limits) == [code]
    assert sum(map(len, read)) <= 10 * BLOCK


def _keep(blocks: list[bytes], read: list[bytes]) -> Any:
    for block in blocks:
        read.append(block)
        yield block


def test_caps_apply_before_and_while_reading(tmp_path):
    path = build_gpu_trace(0).write(tmp_path / "trace.json")
    size = path.stat().st_size
    assert refuse(path, Limits(raw_bytes=size - 1)) == ["SL-trace-too-large"]
    assert refuse(path, Limits(head_bytes=20)) == ["SL-trace-head-large"]
    assert refuse(path, Limits(piece_bytes=200)) == ["SL-event-too-large"]
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert refuse(packed, Limits(raw_bytes=size - 1)) == ["SL-trace-unpacked-large"]
    assert refuse(packed, Limits(ratio=2, ratio_from_bytes=100)) == ["SL-gzip-bomb"]
    assert list(split_events(packed, Limits(raw_bytes=size)))
