"""Single-file corruptions of a run's traces, and what the analysis makes of each.

    python -m tests.stratlab.traces.corruptions FOLDER PART PARTS

runs one part of the cases and writes FOLDER/outcomes.json: a process of its own, so that its memory can be limited.
A case changes the file of rank 1 in a copy of a small run with three ranks.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stratlab.analysis.analyze import NoTraces, analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from stratlab.traces.chunks import LIMITS, Limits
from tests.stratlab.simulated.small import (
    TraceWriter,
    build_cpu_trace,
    build_gpu_trace,
    write_manifest,
    write_run,
)

RANKS, VICTIM, STEPS = 3, 1, 3
MEMORY_BYTES = 512 << 20  # that the process may take beyond its start
SMALL = Limits(
    raw_bytes=1 << 20, ratio=30, ratio_from_bytes=64 << 10, head_bytes=32 << 10, piece_bytes=64 << 10
)

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


@dataclass(frozen=True)
class Outcome:
    """What one analysis gave: a report (`rows` per rank, the findings) or an error."""

    case: str
    error: str  # the traceback of anything but NoTraces
    said: str  # of NoTraces
    found: list[dict[str, Any]]
    rows: dict[str, dict[str, Any]]
    seconds: float
    peak_mib: float  # of the process, beyond its start


def build_bases(folder: Path) -> dict[str, Path]:
    """Runs that are whole: GPU and CPU, plain and packed, with and without a manifest."""
    kinds: dict[str, Callable[[int], TraceWriter]] = {
        "gpu": lambda rank: build_gpu_trace(rank, STEPS),
        "cpu": lambda rank: build_cpu_trace(rank, STEPS),
    }
    bases = {}
    for kind, build in kinds.items():
        for packed in (False, True):
            for listed in (False, True):
                name = f"{kind}{'-gz' if packed else ''}{'-manifest' if listed else ''}"
                facts = {} if kind == "gpu" else {"backend": "gloo", "device_type": "cpu"}
                run = write_run(folder / name, {}, False, world_size=RANKS, **facts)
                for rank in range(RANKS):
                    trace = build(rank)
                    trace.head["distributedInfo"]["world_size"] = RANKS
                    trace.write(run / "traces" / f"rank{rank}_trace.json{'.gz' if packed else ''}")
                if listed:
                    write_manifest(run / "traces")
                bases[name] = run
    return bases


def build_cases() -> list[Case]:
    """All cases; the same in every run."""
    cases = [
        *_content_cases("gpu"),
        *list(_content_cases("cpu-gz"))[::3],
        *_packed_cases(),
        *_file_cases(),
        *_manifest_cases(),
    ]
    # with a manifest, any change is seen by its size or checksum
    for base in ("gpu-manifest", "cpu-gz-manifest"):
        content = list(_content_cases(base))
        cases += [replace(case, expects="named") for case in content[:: len(content) // 20]]
    assert len({(case.base, case.name) for case in cases}) == len(cases)
    return cases


def _change(base: str, name: str, change: Change, expects: Expectation = "named", **more: Any) -> Case:
    """A case that changes the victim's JSON text."""

    def apply(victim: Path) -> None:
        packed, data = victim.suffix == ".gz", victim.read_bytes()
        text = gzip.decompress(data) if packed else data
        changed = change(text)
        assert changed != text, name
        victim.write_bytes(gzip.compress(changed, 1) if packed else changed)

    return Case(name, base, apply, expects, **more)


def _sub(pattern: str, replacement: str, count: int = 1) -> Change:
    """Replaces in the text; fails if there is nothing to replace."""

    def change(data: bytes) -> bytes:
        changed, found = re.subn(pattern.encode(), lambda _: replacement.encode(), data, count=count)
        assert found, pattern
        return changed

    return change


def _cut(share: float) -> Change:
    return lambda data: data[: int(len(data) * share)]


def _with_event(text: str) -> Change:
    """One more event, the first."""
    return lambda data: data.replace(b'"traceEvents": [', b'"traceEvents": [' + text.encode() + b",", 1)


def _events(text: str) -> Change:
    """These instead of all events."""
    return lambda data: re.sub(
        rb'(?s)"traceEvents": \[.*\n  \]', lambda _: b'"traceEvents": ' + text.encode(), data
    )


def _json(**style: Any) -> Change:
    return lambda data: json.dumps(json.loads(data), **style).encode()


def _without(field: str, *beginnings: str) -> Change:
    """Without the events whose name or category begins so."""

    def change(data: bytes) -> bytes:
        content = json.loads(data)
        kept = [event for event in content["traceEvents"] if not event.get(field, "").startswith(beginnings)]
        return json.dumps(content | {"traceEvents": kept}).encode()

    return change


def _flip(seed: int) -> Change:
    def change(data: bytes) -> bytes:
        draw = random.Random(seed)
        at, bit = draw.randrange(len(data)), draw.randrange(8)
        return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

    return change


def _zero(share: float) -> Change:
    def change(data: bytes) -> bytes:
        at = int((len(data) - 512) * share)
        return data[:at] + bytes(512) + data[at + 512 :]

    return change


def _content_cases(base: str) -> Iterator[Case]:
    for i in range(16):
        yield _change(base, f"truncated at {i}/16", _cut(i / 16))
    for count in (2, 3, 4, 10, 30):
        yield _change(base, f"without its last {count} bytes", lambda data, count=count: data[:-count])  # type: ignore[misc]
    for share in (0, 0.2, 0.5, 0.8, 1):
        yield _change(base, f"512 zero bytes at {share}", _zero(share))
    for seed in range(16):
        yield _change(base, f"bit flip {seed}", _flip(seed), "either")
    for name, content in NOT_TRACES.items():
        yield _change(base, name, lambda _, content=content: content)  # type: ignore[misc]
    for name, text in LISTS.items():
        yield _change(base, f"events: {name}", _events(text))
    for name, change in BROKEN.items():
        yield _change(base, name, change)
    for name, change in ODD.items():
        yield _change(base, name, change, "either")
    for name, change in VALID.items():
        yield _change(base, name, change, "valid")


EVENT = '{"ph": "X", "cat": "cpu_op", "name": "aten::x", "pid": 4000, "tid": 4000, "ts": 5100, "dur": 1}'
NOT_TRACES: dict[str, bytes] = {
    "empty": b"",
    "a line feed": b"\n",
    "zeros": bytes(20_000),
    "text": b"the disk is full\n" * 50,
    "web page": b"<!doctype html><title>502 Bad Gateway</title>",
    "picture": b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3000),
    "random bytes": random.Random(2).randbytes(20_000),
    "pickle": b"\x80\x04\x95" + random.Random(3).randbytes(500),
    "begins like gzip": b"\x1f\x8b\x08\x00" + random.Random(4).randbytes(500),
    "zip": b"PK\x03\x04" + random.Random(5).randbytes(500),
    "null": b"null",
    "number": b"3",
    "empty object": b"{}",
    "empty list": b"[]",
    "summary": b'{"steps": 3, "loss": 0.1}',
    "execution trace": b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": "x"}]}',
    "list of events": f"[{EVENT}]".encode(),
    "lines of events": f"{EVENT}\n{EVENT}\n".encode(),
    "python": b"{'traceEvents': [{'ph': 'X'}]}",
    "csv": b"ts,dur,name\n1,2,a\n",
    "only an opening bracket": b"{",
    "a million brackets": b"[" * 1_000_000,
    "half a key": b'{"schemaVersion": 1, "traceEve',
    "head only": b'{"schemaVersion": 1, "distributedInfo": {"rank": 1}}',
    "head and an opening list": b'{"distributedInfo": {"rank": 1}, "traceEvents": [',
    "head and nothing of the list": b'{"distributedInfo": {"rank": 1}, "traceEvents":',
    "key as a value": b'{"distributedInfo": {"rank": 1}, "x": "traceEvents"}',
}
LISTS: dict[str, str] = {
    "none": "[]",
    "null": "null",
    "text": '"x"',
    "object": "{}",
    "number": "5",
    "numbers": "[1, 2, 3]",
    "texts": '["a", "b"]',
    "nulls": "[null, null]",
    "lists": "[[], [[]]]",
    "empty objects": "[{}, {}]",
    "of metadata only": '[{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]',
    "without steps": f"[{EVENT}]",
    "without times": "[" + EVENT.replace('"ts": 5100', '"ts": 0.000') + "]",
    "without durations": "[" + EVENT.replace(', "dur": 1', "") + "]",
}
BROKEN: dict[str, Change] = {
    "ts is a text": _sub(r'"ts": [\d.]+', '"ts": "5100"'),
    "ts is null": _sub(r'"ts": [\d.]+', '"ts": null'),
    "ts is a list": _sub(r'"ts": [\d.]+', '"ts": [1]'),
    "all ts are texts": _sub(r'"ts": [\d.]+', '"ts": "5100"', 0),
    "dur is a text": _sub(r'"dur": [\d.]+', '"dur": "1"'),
    "dur is an object": _sub(r'"dur": [\d.]+', '"dur": {}'),
    "all dur are negative": _sub(r'"dur": ', '"dur": -', 0),
    "dur is negative": _sub(r'"dur": ', '"dur": -'),
    "ts is not a number": _sub(r'"ts": [\d.]+', '"ts": NaN'),
    "ts is infinite": _sub(r'"ts": [\d.]+', '"ts": Infinity'),
    "ts is 1e999": _sub(r'"ts": [\d.]+', '"ts": 1e999'),
    "ts is 1e300": _sub(r'"ts": [\d.]+', '"ts": 1e300'),
    "ts has 40 digits": _sub(r'"ts": [\d.]+', '"ts": 1' + "0" * 40),
    "ts has 9000 digits": _sub(r'"ts": [\d.]+', '"ts": 1' + "0" * 9000),
    "dur is 1e300": _sub(r'"dur": [\d.]+', '"dur": 1e300'),
    "dur has 40 digits": _sub(r'"dur": [\d.]+', '"dur": 1' + "0" * 40),
    "all ts are 1e18": _sub(r'"ts": [\d.]+', '"ts": 1e18', 0),
    "ts is negative": _sub(r'"ts": ', '"ts": -'),
    "all ts are negative": _sub(r'"ts": ', '"ts": -', 0),
    "name is a number": _sub(r'"name": "[^"]+"', '"name": 5'),
    "name is null": _sub(r'"name": "[^"]+"', '"name": null'),
    "ph is a number": _sub(r'"ph": "X"', '"ph": 5'),
    "cat is a list": _sub(r'"cat": "[^"]+"', '"cat": []'),
    "args is a text": _with_event(EVENT[:-1] + ', "args": "x"}'),
    "args is a list": _with_event(EVENT[:-1] + ', "args": [1]}'),
    "args nest 100000 deep": _with_event(
        EVENT[:-1] + ', "args": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    ),
    "args nest 1500 deep": _with_event(
        EVENT[:-1] + ', "args": {"a": ' + '{"b":' * 1500 + "1" + "}" * 1500 + "}}"
    ),
    "an event of 20 MB": _with_event(EVENT[:-1] + ', "args": {"a": "' + "x" * 20_000_000 + '"}}'),
    "a name of 12 MB": _with_event(EVENT.replace("aten::x", "x" * 12_000_000)),
    "head of 9 MB": _sub(r'"schemaVersion": 1', f'"x": "{"x" * 9_000_000}"'),
    "head nests 100000 deep": _sub(r'"schemaVersion": 1', f'"x": {"[" * 100_000}{"]" * 100_000}'),
    "tail nests 100000 deep": _sub(r'"traceName": "synthetic"', f'"x": {"[" * 100_000}{"]" * 100_000}'),
    "tail of 9 MB": _sub(r'"traceName": "synthetic"', f'"x": "{"x" * 9_000_000}"'),
    "head is no JSON": _sub(r'"schemaVersion": 1', "schemaVersion: 1"),
    "tail is no JSON": _sub(r'"traceName": "synthetic"', "traceName"),
    "control character in a name": _with_event(EVENT.replace("aten::x", "a\x01b")),
    "bytes that are no UTF-8 in a name": lambda data: data.replace(b"aten::", b"aten\xff\xfe", 1),
    "half a surrogate in a name": _with_event(EVENT.replace("aten::x", "\\ud800")),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "zero byte behind the end": lambda data: data + b"\0",
    "page of zeros behind the end": lambda data: data + bytes(4096),
    "twice in one file": lambda data: data + data,
    "text behind the end": lambda data: data + b"done\n",
    "events twice": _sub(r'"traceName": "synthetic"', f'"traceEvents": [{EVENT}]'),
    "comma behind the last event": _sub(r"\}\n  \]", "},\n  ]"),
    "two commas": _sub(r"\},\n  \{", "},,\n  {"),
    "no comma": _sub(r"\},\n  \{", "}\n  {"),
    "comments": _sub(r'"traceEvents"', '// a comment\n"traceEvents"'),
    "single quotes": lambda data: data.replace(b'"', b"'"),
    "middle third missing": lambda data: data[: len(data) // 3] + data[2 * len(data) // 3 :],
    "first third missing": lambda data: data[len(data) // 3 :],
    "two halves swapped": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
    "rank of another": _sub(r'"rank": 1', '"rank": 2'),
    "rank of nobody": _sub(r'"rank": 1', '"rank": 3'),
    "rank is negative": _sub(r'"rank": 1', '"rank": -1'),
    "rank has 30 digits": _sub(r'"rank": 1', '"rank": 1' + "0" * 30),
    "rank is a text": _sub(r'"rank": 1', '"rank": "1"'),
    "rank is a fraction": _sub(r'"rank": 1', '"rank": 1.5'),
    "rank is true": _sub(r'"rank": 1', '"rank": true'),
    "distributedInfo is a list": _sub(r'"distributedInfo": \{[^}]*\}', '"distributedInfo": [1]'),
    "no label of a step": _without("name", "## Training Step", "ProfilerStep"),
    "no label of a phase": _without("name", "## Forward"),
    "fewer steps": _without("name", "## Training Step 12", "ProfilerStep#2"),
    "marked as merged": _sub(r'"schemaVersion": 1', '"mergedTrace": true'),
}
# what reaches no number, or a number that may be so
ODD: dict[str, Change] = {
    "pid is an object": _sub(r'"pid": \d+', '"pid": {}'),
    "tid is null": _sub(r'"tid": \d+', '"tid": null'),
    "pid is a text": _sub(r'"pid": \d+', '"pid": "Spans"', 0),
    "pid has 40 digits": _sub(r'"pid": \d+', '"pid": 1' + "0" * 40),
    "all names are empty": _sub(r'"name": "aten[^"]*"', '"name": ""', 0),
    "args is null": _with_event(EVENT[:-1] + ', "args": null}'),
    "backend is a number": _sub(r'"backend": "\w+"', '"backend": 5'),
    "world_size is a text": _sub(r'"world_size": 3', '"world_size": "x"'),
    "distributedInfo is null": _sub(r'"distributedInfo": \{[^}]*\}', '"distributedInfo": null'),
    "distributedInfo is empty": _sub(r'"distributedInfo": \{[^}]*\}', '"distributedInfo": {}'),
    "deviceProperties is a text": _sub(r'"deviceProperties": \[\]', '"deviceProperties": "x"'),
    "base time is a text": _sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": "x"'),
    "base time has 40 digits": _sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": 1' + "0" * 40),
    "base time is negative": _sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": -5'),
    "base time is a fraction": _sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": 1.5'),
    "dur is 1e12": _sub(r'"dur": [\d.]+', '"dur": 1e12'),
    "odd args": _with_event(
        EVENT[:-1]
        + ', "args": {"correlation": 1e300, "stream": "x", "bytes": -1, "device": [1], "External id": {}}}'
    ),
    "odd arguments of a kernel": _with_event(
        EVENT.replace("cpu_op", "kernel")[:-1]
        + ', "args": {"correlation": 1e30, "stream": {}, "bytes": "x", "Collective name": 5, "Group size": []}}'
    ),
    "odd memory event": _with_event(
        '{"ph": "i", "name": "[memory]", "ts": 5100, "args": {"Total Allocated": 1e40, "Device Type": "x"}}'
    ),
    "memory event without a time": _with_event(
        '{"ph": "i", "name": "[memory]", "args": {"Total Allocated": 1}}'
    ),
    "odd arrow": _with_event('{"ph": "s", "id": {"local": "0x1"}, "pid": 1, "tid": 1, "ts": 5100}'),
    "step number of 30 digits": _sub("Training Step 11", "Training Step 1" + "0" * 30),
    "step label twice": _with_event(
        EVENT.replace("cpu_op", "user_annotation").replace("aten::x", "## Training Step 11 ##")
    ),
    "operators named as launches": _sub(r'"name": "aten::linear"', '"name": "cudaLaunchKernel"', 0),
    "markup in a name": _sub(r'"name": "aten::linear"', '"name": "</svg><script>alert(1)</script>"', 0),
    "a name of 1 MB": _sub(r'"name": "aten::\w+"', f'"name": "{"x" * 1_000_000}"'),
}
VALID: dict[str, Change] = {
    "compact": _json(separators=(",", ":")),
    "one line": _json(),
    **{f"indented by {width}": _json(indent=width) for width in (1, 2, 3, 4)},
    "tabs": _json(indent="\t"),
    "sorted keys": _json(sort_keys=True),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "white space behind the end": lambda data: data + b"\n \r\n" * 1000,
    "unknown fields": _sub(r'"ph": "X"', '"ph": "X", "cname": "good", "x": [{}]', 0),
    "a name of 1 MB more": _with_event(
        EVENT.replace("aten::x", "x" * 1_000_000).replace("cpu_op", "python_function")
    ),
}


def _packed_cases() -> Iterator[Case]:
    def change(name: str, change: Change, expects: Expectation = "named", **more: Any) -> Case:
        def apply(victim: Path) -> None:
            victim.write_bytes(change(victim.read_bytes()))

        return Case(name, "gpu-gz", apply, expects, **more)

    for i in range(1, 12):
        yield change(f"packed file truncated at {i}/12", _cut(i / 12))
    for count in (1, 4, 8, 12):
        yield change(f"packed file without its last {count} bytes", lambda data, count=count: data[:-count])  # type: ignore[misc]
    for seed in range(10):  # the first bytes of the header hold nothing that matters
        yield change(f"packed bit flip {seed}", lambda data, seed=seed: data[:10] + _flip(seed)(data[10:]))  # type: ignore[misc]
    yield change("text behind the packed end", lambda data: data + b"rubbish")
    yield change("zeros behind the packed end", lambda data: data + bytes(100), "valid")
    yield change("packed twice", lambda data: gzip.compress(data))
    yield change("not packed", gzip.decompress, "valid")
    yield change("packed in two members", lambda data: _in_members(gzip.decompress(data)), "valid")
    yield change("packed file twice", lambda data: data + data)
    head = b'{"distributedInfo": {"rank": 1}, '
    mib, fields = b" " * (1 << 20), EVENT.replace("aten::x", "x" * 4000).encode() + b","
    big = fields * ((1 << 20) // len(fields))
    bombs: dict[str, list[bytes]] = {
        "white space": [head, b'"traceEvents": [', *[mib] * 100],
        "zeros": [*[bytes(1 << 20)] * 100],
        "the head": [head, b'"x": "', *[mib] * 100],
        "a name": [head, b'"traceEvents": [{"name": "', *[mib] * 100],
        "brackets": [head, b'"traceEvents": [', *[b"[" * (1 << 20)] * 100],
        "one event, again and again": [head, b'"traceEvents": [', *[big] * 100],
        "a complete list of them": [head, b'"traceEvents": [', *[big] * 66, EVENT.encode(), b"]}"],
        "the tail": [head, b'"traceEvents": [' + EVENT.encode() + b"]", *[mib] * 100, b"}"],
    }
    for name, blocks in bombs.items():
        yield change(f"bomb: {name}", lambda _, blocks=blocks: _pack(blocks))  # type: ignore[misc]
        few = [block[: 1 << 20] for block in blocks[:3]] + [block[:1000] for block in blocks[-1:]]
        yield change(f"small bomb: {name}", lambda _, few=few: _pack(few), limits=SMALL)  # type: ignore[misc]
    small = {"raw_bytes": 3000, "ratio_from_bytes": 3000, "head_bytes": 20, "piece_bytes": 100}
    for name, limit in small.items():
        limits = (
            replace(LIMITS, **{name: limit})
            if name != "ratio_from_bytes"
            else Limits(ratio=2, ratio_from_bytes=limit)
        )
        yield Case(f"all files above the limit {name}", "gpu-gz", lambda victim: None, "named", limits)


def _in_members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


def _pack(blocks: list[bytes]) -> bytes:
    return gzip.compress(b"".join(blocks), 1)


def _file_cases() -> Iterator[Case]:
    def make(
        name: str, apply: Callable[[Path], Any], expects: Expectation = "named", also: str = ""
    ) -> Iterator[Case]:
        def act(victim: Path) -> None:
            apply(victim)

        for base in ("gpu", "gpu-manifest"):
            yield Case(name, base, act, expects, also=also)

    def instead(make_other: Callable[[Path], Any]) -> Callable[[Path], None]:
        def apply(victim: Path) -> None:
            victim.unlink()
            make_other(victim)

        return apply

    def beside(name: str, content: Callable[[Path], bytes]) -> Callable[[Path], Any]:
        return lambda victim: (victim.parent / name).write_bytes(content(victim))

    def swap(victim: Path) -> None:
        other, aside = victim.with_name("rank2_trace.json"), victim.with_name("aside")
        victim.rename(aside)
        other.rename(victim)
        aside.rename(other)

    def overwrite(victim: Path) -> None:
        shutil.copy(victim.with_name("rank0_trace.json"), victim)

    yield from make("missing", lambda victim: victim.unlink())
    yield from make("a folder", instead(lambda victim: victim.mkdir()))
    yield from make("a pipe", instead(os.mkfifo))
    yield from make("a link to another rank", instead(lambda victim: victim.symlink_to("rank0_trace.json")))
    yield from make("a link to a device", instead(lambda victim: victim.symlink_to("/dev/zero")))
    yield from make("a link to nothing", instead(lambda victim: victim.symlink_to("nothing")))
    yield from make("a link to itself", instead(lambda victim: victim.symlink_to(victim.name)))
    yield from make("a hole of 1 TiB", lambda victim: os.truncate(victim, 1 << 40))
    yield from make("a hole of 100 MiB behind it", lambda victim: os.truncate(victim, 100 << 20))
    yield from make("another rank's trace", overwrite)
    yield from make("swapped with another rank's", swap)
    yield from make(
        "not renamed by its writer",
        lambda victim: victim.rename(f"{victim}.tmp"),
        also="rank1_trace.json.tmp",
    )
    yield from make(
        "hidden temporary file",
        lambda victim: victim.rename(victim.with_name(".rank1_trace.tmp.json")),
        also=".rank1_trace.tmp.json",
    )
    yield from make(
        "half of it under a temporary name",
        beside("rank1_trace.json.tmp", lambda v: v.read_bytes()[:500]),
        also="rank1_trace.json.tmp",
    )
    yield from make(
        "part of a download", lambda victim: victim.rename(f"{victim}.part"), also="rank1_trace.json.part"
    )
    for name in ("rank1_trace (1).json", "copy of rank1_trace.json", "old.json", "rank_1.json.gz"):
        yield from make(f"a copy named {name}", beside(name, lambda v: v.read_bytes()), also=name)
    yield from make(
        "a summary beside it", beside("summary.json", lambda _: b'{"loss": 1}'), also="summary.json"
    )
    yield from make("an empty file beside it", beside("empty.json", lambda _: b""), also="empty.json")
    yield from make(
        "a packed copy beside it",
        beside("rank1_trace.json.gz", lambda v: gzip.compress(v.read_bytes())),
        also="rank1_trace.json.gz",
    )
    yield from make(
        "a name that is no text",
        beside(os.fsdecode(b"rank1\xff.json"), lambda _: b"{}"),
        also="rank1\\udcff.json",
    )
    yield from make("a name with a line feed", beside("rank1\n.json", lambda _: b"{}"), also="rank1\\n.json")
    yield from make(
        "a name with markup", beside("<script>rank1.json", lambda _: b"{}"), also="<script>rank1.json"
    )


def _manifest_cases() -> Iterator[Case]:
    """The one corrupt file is the manifest."""

    def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
        def apply(victim: Path) -> None:
            path = victim.with_name("manifest.json")
            content = json.loads(path.read_text())
            change(content)
            path.write_text(json.dumps(content))

        return apply

    def put(content: bytes) -> Callable[[Path], Any]:
        return lambda victim: victim.with_name("manifest.json").write_bytes(content)

    def case(name: str, apply: Callable[[Path], Any], also: str = "manifest.json") -> Case:
        return Case(f"manifest: {name}", "gpu-manifest", lambda victim: apply(victim), "named", also=also)

    contents = {
        "empty": b"",
        "no JSON": b"{",
        "a list": b"[]",
        "null": b"null",
        "no files": b'{"complete": true}',
        "files is a text": b'{"complete": true, "files": "x"}',
        "nested": b"[" * 500_000,
        "zeros": bytes(4096),
        "no UTF-8": b'{"complete": true, "files": [], "x\xff": 1}',
        "above its limit": b" " * (17 << 20),
    }
    for name, content in contents.items():
        yield case(name, put(content))
    yield case("missing", lambda victim: victim.with_name("manifest.json").unlink())

    def other(make_other: Callable[[Path], Any]) -> Callable[[Path], None]:
        def apply(victim: Path) -> None:
            path = victim.with_name("manifest.json")
            path.unlink()
            make_other(path)

        return apply

    yield case("a pipe", other(os.mkfifo))
    yield case("a folder", other(lambda path: path.mkdir()))
    yield case("a link", other(lambda path: path.symlink_to("rank0_trace.json")))
    yield case("not complete", edit(lambda content: content.update(complete=False)))
    for name, change in {
        "another size": {"bytes": 5},
        "another checksum": {"sha256": "00"},
        "points outside": {"file": "../config.json"},
        "an absolute name": {"file": "/etc/passwd"},
        "a name of 300 letters": {"file": "x" * 300},
        "a name with a zero byte": {"file": "a\0b"},
        "an empty name": {"file": ""},
        "rank of another": {"rank": 2},
        "rank is negative": {"rank": -1},
        "rank is huge": {"rank": 2**62},
    }.items():
        file = str(change.get("file", "rank1_trace.json"))
        yield case(name, edit(lambda content, change=change: content["files"][VICTIM].update(change)), file)  # type: ignore[misc]
    yield case("a rank is a text", edit(lambda content: content["files"][VICTIM].update(rank="1")))
    twice, out = "names a file twice", "leaves a file out"
    yield case(
        twice, edit(lambda content: content["files"].append(content["files"][VICTIM])), "rank1_trace.json"
    )
    yield case(out, edit(lambda content: content["files"].pop(VICTIM)), "rank1_trace.json")
    yield case("names no file", edit(lambda content: content["files"].clear()))


def run_case(case: Case, run: Path) -> Outcome:
    """Analyses `run` after the change."""
    rows: dict[str, Any] = {}
    found, said, error, start = [], "", "", time.monotonic()
    victim = next(path for path in (run / "traces").iterdir() if path.name.startswith(f"rank{VICTIM}_"))
    case.apply(victim)
    try:
        report = analyze_run(run, tracking_uri=None, limits=case.limits, hta_limits=HtaLimits(raw_bytes=0))
        json.loads((run / "analysis" / "report.json").read_text())
        rows = {str(row["rank"]): row for row in report["ranks"]}
        found = report["quality"]
    except NoTraces as failure:
        said = str(failure)
    except Exception:
        error = traceback.format_exc()
    return Outcome(case.name, error, said, found, rows, time.monotonic() - start, 0.0)


def _read_memory(field: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) << 10


def main(folder: Path, part: int, parts: int) -> None:
    """Runs the cases with a limit on this process's memory."""
    bases = build_bases(folder / "bases")
    cases = [Case("unchanged", base, lambda victim: None, "valid") for base in bases]
    cases += build_cases()[part::parts]
    outcomes, start = {}, 0
    warm = replace(cases[0], name="warm-up")
    for case in [warm, *cases]:
        key = f"{case.base}: {case.name}"
        run = folder / "run" / case.base
        shutil.copytree(bases[case.base], run)
        outcome = run_case(case, run)
        shutil.rmtree(run)
        if case is warm:
            start, limit = _read_memory("VmRSS"), _read_memory("VmData") + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        else:
            outcomes[key] = replace(outcome, peak_mib=(_read_memory("VmHWM") - start) / 2**20)
    (folder / "outcomes.json").write_text(
        json.dumps({key: asdict(o) for key, o in outcomes.items()}, default=float)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
