"""The pieces hold every event once, whatever the formatting and wherever the file is cut; memory stays bounded."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces import chunks
from stratlab.traces.chunks import Limits, TraceError, read_head, split_events
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
    "kineto, CRLF": lambda events: as_kineto(events).replace("\n", "\r\n"),
    "json.dumps": as_json(),
    "compact": as_json(separators=(",", ":"), ensure_ascii=False),
    **{f"indent {width}": as_json(indent=width) for width in (0, 1, 2, 3, 4)},
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


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("block_bytes", [5, 333, 1000, 1 << 20])
def test_every_event_once_in_any_formatting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str, block_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    path, events = tmp_path / "trace.json", build_events(40, block_bytes)
    text = FORMATS[style](events)
    path.write_bytes(text.encode())
    head, found, largest = read_all(path)
    assert found == json.loads(text)["traceEvents"]
    assert head == {"rank": 3}
    if block_bytes < 500 and style != "kineto, then compact":
        assert largest < len(text) / 4  # it was cut


@pytest.mark.parametrize("style", ["kineto", "compact", "indent 1", "indent 2"])
def test_a_cut_off_file_never_passes_as_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 64)
    path, text = tmp_path / "trace.json", FORMATS[style](build_events(6)).encode()
    for length in range(len(text.rstrip())):
        path.write_bytes(text[:length])
        with pytest.raises((TraceError, ValueError)):
            read_all(path)


@pytest.mark.parametrize(
    "events",
    ['[,{"a":1}]', '[{"a":1},]', '[{"a":1},,{"b":1}]', '[{"a":1}{"b":1}]', '[{"a":1}],{"b":1}]', "{}"],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_what_is_not_json_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str, block_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", block_bytes)
    (tmp_path / "trace.json").write_text(f'{{"traceEvents": {events}}}')
    with pytest.raises((TraceError, ValueError)):
        read_all(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("tail", "accepted"),
    [
        ("", True),
        (" \r\n\n", True),
        ("\0", False),
        ("}", False),
        ('{"traceEvents": []}', False),
        ("\ufeff", False),
    ],
)
def test_nothing_may_stand_behind_the_end(tmp_path: Path, tail: str, accepted: bool) -> None:
    path = tmp_path / "trace.json"
    path.write_text(as_kineto(build_events(3)) + tail)
    if accepted:
        assert len(read_all(path)[1]) == 3
    else:
        with pytest.raises(ValueError):
            read_all(path)


def test_byte_order_mark_is_left_out_and_utf16_is_no_trace(tmp_path: Path) -> None:
    path, text = tmp_path / "trace.json", as_kineto(build_events(3))
    path.write_bytes(text.encode("utf-8-sig"))
    assert read_all(path)[0] == {"rank": 3}
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(TraceError, match="is UTF-16 text"):
        read_head(path)


def test_second_list_of_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ts": 1}], "x": 1, "traceEvents": []}')
    with pytest.raises(TraceError, match="holds traceEvents twice"):
        read_all(path)


def test_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0_trace.json")
    with pytest.raises(TraceError, match="not a regular file"):
        read_head(tmp_path / "rank0_trace.json")


MIB = b" " * (1 << 20)
HEAD = b'{"traceEvents": ['
HOSTILE: dict[str, tuple[list[bytes], str]] = {
    "zeros": ([HEAD, *[b"\0" * (1 << 20)] * 20], "holds more than 8 MiB in one event"),
    "white space": ([HEAD, *[MIB] * 20], "holds more than 8 MiB in one event"),
    "white space before the list": (
        [b'{"traceEvents":', *[MIB] * 20],
        "holds no traceEvents in its first 4 MiB",
    ),
    "one endless string": (
        [HEAD, b'{"name": "', *[b"x" * (1 << 20)] * 20],
        "holds more than 8 MiB in one event",
    ),
    "one endless list": ([HEAD, b'{"a": [', *[b"0," * (1 << 19)] * 20], "holds more than 8 MiB in one event"),
    "brackets": ([HEAD, *[b"[" * (1 << 20)] * 20], "nests more than 200 brackets"),
    "closing brackets": ([HEAD, *[b"]" * (1 << 20)] * 20], "holds more than 8 MiB in one event"),
    "quotes": ([HEAD, *[b'"' * (1 << 20)] * 20], "holds more than 8 MiB in one event"),
    "backslashes": ([HEAD, b'"', *[b"\\" * (1 << 20)] * 20], "holds more than 8 MiB in one event"),
    "Kineto's event without an end": (
        [HEAD, b'\n  {\n    "args": [', *[b"[]," * (1 << 18)] * 20],
        "holds more than 8 MiB in one event",
    ),
    "endless head": ([b'{"x": [', *[b"[]," * (1 << 18)] * 20], "holds no traceEvents in its first 4 MiB"),
    "endless tail": (
        [HEAD, b'{}], "x": [', *[b"[]," * (1 << 18)] * 20],
        "holds more than 8 MiB in one event",
    ),
    "empty events": ([HEAD, *[b"{}," * (1 << 18)] * 60, b"{}]}"], ""),
}
IN_A_PROCESS = """
import sys
from pathlib import Path
from stratlab.traces.chunks import Limits, TraceError, split_events
# not getrusage's: that begins with the parent's
def peak(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
before, limits = peak(), Limits(ratio=10_000)
for name in sys.argv[1:]:
    try:
        for piece in split_events(Path(name), limits): pass
        print("whole")
    except TraceError as failure:
        print(failure)
print(peak() - before)
"""


def test_hostile_content_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """20 MiB behind a small gzip file; the memory of a process of its own grows by less than 60 MiB."""
    paths = []
    for number, (blocks, _) in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f"{number}.json.gz")
        with gzip.open(paths[-1], "wb", compresslevel=1) as file:
            file.write(b"".join(blocks))
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, *map(str, paths)], capture_output=True, text=True
    )
    *answers, grown_mib = done.stdout.splitlines()
    for name, answer, (_, reason) in zip(HOSTILE, answers, HOSTILE.values(), strict=True):
        assert answer.startswith(reason or "whole"), f"{name}: {answer}"
    assert int(grown_mib) < 60, done.stderr


def test_caps_apply_before_and_while_reading(tmp_path: Path) -> None:
    path = build_gpu_trace(0).write(tmp_path / "trace.json")
    size = path.stat().st_size
    for limits, reason in [
        (Limits(raw_bytes=size - 1), "on the disk"),
        (Limits(head_bytes=20), "holds no traceEvents in its first 0 MiB"),
        (Limits(piece_bytes=200), "holds more than 0 MiB in one event"),
    ]:
        with pytest.raises(TraceError, match=reason):
            list(split_events(path, limits))
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(TraceError, match="holds more than"):
        list(split_events(packed, Limits(raw_bytes=size - 1)))
    with pytest.raises(TraceError, match="unpacks to more than 2 times its size"):
        list(split_events(packed, Limits(ratio=2, ratio_from_bytes=100)))
    assert list(split_events(packed, Limits(raw_bytes=size)))
