"""Which file is used for which rank, and why another one is not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces.discover import Found, find_traces
from tests.codes import find_codes
from tests.stratlab.simulated.small import build_gpu_trace, write_manifest


def write(folder: Path, names: dict[str, int | None]) -> None:
    """Files by name, each with a rank in it."""
    for name, rank in names.items():
        build_gpu_trace(rank, steps=1).write(folder / name)


def used(found: Found) -> dict[int, str]:
    return {rank: path.name for rank, path in found.files.items()}


def said(found: Found, action: str = "skipped") -> dict[str | None, list[str]]:
    return {f.file: find_codes(f.reason) for f in found.findings if f.action == action}


def test_file_that_is_not_what_was_written_is_skipped(tmp_path):
    write(tmp_path, {f"rank{rank}_trace.json": rank for rank in range(4)} | {"rank4_trace.json": 0})
    write_manifest(tmp_path)
    shorter, other = tmp_path / "rank0_trace.json", tmp_path / "rank1_trace.json"
    shorter.write_bytes(shorter.read_bytes()[:-100])
    other.write_bytes(other.read_bytes().replace(b"adamw", b"sgdxx"))
    (tmp_path / "rank2_trace.json").unlink()
    found = find_traces(tmp_path, 5)
    assert used(found) == {3: "rank3_trace.json"}
    assert said(found) == {
        "rank0_trace.json": ["SL-manifest-size"],
        "rank1_trace.json": ["SL-manifest-sha256"],
        "rank2_trace.json": ["SL-manifest-file-missing"],
        "rank4_trace.json": ["SL-manifest-rank"],
    }


def test_every_unusable_file_is_named(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0, "rank7_trace.json": 7, "none.json": None, "huge.json": 10**30})
    write(tmp_path, {".rank1_trace.tmp.json": 1, "negative.json": -1})
    (tmp_path / "empty.json").touch()
    (tmp_path / "rank1_trace.json.tmp").write_text("{")
    (tmp_path / "summary.json").write_text('{"loss": 1}')
    deep = "[" * 1_000_000 + "]" * 1_000_000
    (tmp_path / "deep.json").write_text(f'{{"x": {deep}, "traceEvents": []}}')
    (tmp_path / "head.json").write_text('{"x": 1, y: 2, "traceEvents": []}')
    heads: dict[str, dict[str, Any]] = {"merged_trace.json.gz": {"mergedTrace": True}}
    heads |= {"clock.json": {"baseTimeNanoseconds": 10**40}}
    for number, rank in enumerate(("0", 1.5, True, [0])):
        heads[f"odd{number}.json"] = {"distributedInfo": {"rank": rank}}
    for name, head in heads.items():
        trace = build_gpu_trace(0, steps=1)
        trace.head |= head
        trace.write(tmp_path / name)
    (tmp_path / "rank1_trace.json.part").touch()
    (tmp_path / os.fsdecode(b"rank0\xff.json")).touch()
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "link.json").symlink_to(tmp_path / "rank0_trace.json")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # does not block
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json"}
    assert said(found) == {
        **{name: ["SL-rank-outside"] for name in ("rank7_trace.json", "huge.json", "negative.json")},
        ".rank1_trace.tmp.json": ["SL-file-temporary"],
        "rank1_trace.json.tmp": ["SL-file-temporary"],
        "none.json": ["SL-rank-untold"],
        "empty.json": ["SL-file-empty"],
        "summary.json": ["SL-trace-no-events"],
        "deep.json": ["SL-trace-nested"],
        "head.json": ["SL-trace-head-not-json"],
        "merged_trace.json.gz": ["SL-trace-merged"],
        "clock.json": ["SL-trace-base-time"],
        **{f"odd{number}.json": ["SL-rank-no-number"] for number in range(4)},
        "link.json": ["SL-file-irregular"],
        "folder.json": ["SL-file-irregular"],
        "pipe.json": ["SL-file-irregular"],
        "rank1_trace.json.part": ["SL-trace-ending"],
        "rank0\\udcff.json": ["SL-name-no-text"],
    }


def test_file_above_the_limit_is_not_read(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0, "rank1_trace.json": 1})
    os.truncate(tmp_path / "rank1_trace.json", 1 << 42)
    for entries in ([], [{"rank": 1, "file": "rank1_trace.json", "bytes": 1 << 42, "sha256": "0"}]):
        (tmp_path / "manifest.json").write_text(json.dumps({"complete": False, "files": entries}))
        assert said(find_traces(tmp_path, 2)) == {"rank1_trace.json": ["SL-file-too-large"]}


def test_rank_of_the_file_counts_more_than_its_name(tmp_path):
    write(tmp_path, {"rank0_trace.json": 1, "rank1_trace.json": 0, "rank2_trace.json": 2})
    found = find_traces(tmp_path, 3)
    assert used(found) == {0: "rank1_trace.json", 1: "rank0_trace.json", 2: "rank2_trace.json"}
    noted = said(found, "noted")
    assert noted["rank0_trace.json"] == noted["rank1_trace.json"] == ["SL-rank-other-name"]
    assert "rank2_trace.json" not in noted


def test_complete_manifest_excludes_other_files(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0})
    write_manifest(tmp_path)
    write(tmp_path, {"rank1_trace.json": 1})
    assert said(find_traces(tmp_path, 2)) == {"rank1_trace.json": ["SL-manifest-unlisted"]}
    content = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, complete=False, files=content["files"])
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json", 1: "rank1_trace.json"}
    assert said(found, "noted") == {"manifest.json": ["SL-manifest-incomplete"]}


def test_copy_does_not_take_the_place_of_the_trace(tmp_path):
    copies = ["rank0_trace (1).json", "copy of rank0_trace.json", "a.json", "rank0_trace.json.gz"]
    write(tmp_path, dict.fromkeys(["rank0_trace.json", *copies], 0))
    found = find_traces(tmp_path, 1)
    assert used(found) == {0: "rank0_trace.json"}
    assert said(found) == {name: ["SL-rank-second-trace"] for name in copies}


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", ".", "", "rank0\0.json", "x" * 300])
def test_manifest_cannot_point_outside_or_at_an_impossible_name(tmp_path, name):
    write_manifest(tmp_path / "traces", files=[{"rank": 0, "file": name, "bytes": 1, "sha256": "0"}])
    outside = name in ("../secret.json", "/etc/passwd", ".")
    found = said(find_traces(tmp_path / "traces", 1))
    assert list(found) == [name] and (found[name] == ["SL-manifest-outside"]) == outside


MANIFESTS = {None: "SL-trace-file-missing", '{"complete": true, "files": []}': "SL-manifest-no-files"}
MANIFESTS |= dict.fromkeys(("", '{"files": 3}', '["rank0_trace.json"]', "[" * 500_000), "SL-trace-unreadable")


def test_without_a_usable_manifest_the_files_speak(tmp_path):
    write(tmp_path, {"rank0_trace.json": 0})
    for content, code in MANIFESTS.items():
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        found = find_traces(tmp_path, 1)
        assert used(found) == {0: "rank0_trace.json"}
        assert said(found, "noted") == {"manifest.json": [code]}, content
