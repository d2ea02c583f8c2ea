"""Packed files that are damaged or too large, and what may lie in a folder in place of a trace or beside it."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stratlab.traces.chunks import LIMITS, Limits
from tests.stratlab.traces.changes import EVENT, Case, Change, Expectation, cut, flip

SMALL = Limits(
    raw_bytes=1 << 20, ratio=30, ratio_from_bytes=64 << 10, head_bytes=32 << 10, piece_bytes=64 << 10
)


def build_packed_cases() -> Iterator[Case]:
    def change(name: str, change: Change, expects: Expectation = "named", **more: Any) -> Case:
        def apply(victim: Path) -> None:
            victim.write_bytes(change(victim.read_bytes()))

        return Case(name, "gpu-gz", apply, expects, **more)

    for i in range(1, 12):
        yield change(f"packed file truncated at {i}/12", cut(i / 12))
    for count in (1, 4, 8, 12):
        yield change(f"packed file without its last {count} bytes", lambda data, count=count: data[:-count])  # type: ignore[misc]
    for seed in range(10):  # the first bytes of the header hold nothing that matters
        yield change(f"packed bit flip {seed}", lambda data, seed=seed: data[:10] + flip(seed)(data[10:]))  # type: ignore[misc]
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


def build_file_cases() -> Iterator[Case]:
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
