"""Manifests that are damaged, or do not fit the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.stratlab.traces.changes import VICTIM, Case


def build_manifest_cases() -> Iterator[Case]:
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
