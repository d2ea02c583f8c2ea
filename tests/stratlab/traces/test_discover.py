"""Which file is used for which rank, and why another one is not."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from stratlab.traces.discover import Found, find_traces
from tests.stratlab.simulated.small import build_gpu_trace, write_manifest


def write(folder: Path, names: dict[str, int | None]) -> None:
    """Files by name, each with a rank in it."""
    for name, rank in names.items():
        build_gpu_trace(rank, steps=1).write(folder / name)


def used(found: Found) -> dict[int, str]:
    return {rank: path.name for rank, path in found.files.items()}


def skipped(found: Found) -> dict[str | None, str]:
    return {finding.file: finding.reason for finding in found.findings if finding.action == "skipped"}


def test_manifest_names_the_files(tmp_path: Path) -> None:
    write(tmp_path, {"rank0_trace.json": 0, "rank1_trace.json": 1})
    write_manifest(tmp_path)
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json", 1: "rank1_trace.json"}
    assert found.findings == []
    assert found.manifest is not None and found.manifest.steps == 3


def test_file_that_is_not_what_was_written_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, {f"rank{rank}_trace.json": rank for rank in range(4)})
    write_manifest(tmp_path)
    shorter, other = tmp_path / "rank0_trace.json", tmp_path / "rank1_trace.json"
    shorter.write_bytes(shorter.read_bytes()[:-100])
    other.write_bytes(other.read_bytes().replace(b"adamw", b"sgdxx"))
    (tmp_path / "rank2_trace.json").unlink()
    found = find_traces(tmp_path, 4)
    assert used(found) == {3: "rank3_trace.json"}
    reasons = skipped(found)
    assert "bytes" in reasons["rank0_trace.json"] and "in the manifest" in reasons["rank0_trace.json"]
    assert reasons["rank1_trace.json"] == "differs from the manifest (sha256)"
    assert reasons["rank2_trace.json"] == "listed in the manifest, but missing"


def test_wrong_rank_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, {"rank0_trace.json": 0, "rank1_trace.json": 0})
    write_manifest(tmp_path)
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json"}
    assert skipped(found) == {"rank1_trace.json": "rank 1 in the manifest, rank 0 in the file"}


def test_rank_comes_from_the_file_then_from_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"b.json": 1, "a.json.gz": 0, "rank2_trace.json": None})
    assert used(find_traces(tmp_path, 4)) == {0: "a.json.gz", 1: "b.json", 2: "rank2_trace.json"}


def test_rank_behind_the_events(tmp_path: Path) -> None:
    for rank in range(2):
        content = json.loads(build_gpu_trace(rank, steps=1).text())
        content["distributedInfo"] = content.pop("distributedInfo")  # now the last key
        (tmp_path / f"{'ba'[rank]}.json").write_text(json.dumps(content))
    assert used(find_traces(tmp_path, 2)) == {0: "b.json", 1: "a.json"}


def test_the_only_trace_needs_no_rank(tmp_path: Path) -> None:
    write(tmp_path, {"resnet.json": None})
    found = find_traces(tmp_path, None)
    assert used(found) == {0: "resnet.json"}
    assert found.findings[-1].reason == "names no rank, the only trace counts as rank 0"


def test_of_two_traces_of_a_rank_the_one_whose_name_agrees_is_used(tmp_path: Path) -> None:
    write(tmp_path, {"rank0_trace.json": 1, "rank1_trace.json": 1})
    found = find_traces(tmp_path, 2)
    assert used(found) == {1: "rank1_trace.json"}
    assert skipped(found) == {"rank0_trace.json": "a second trace of rank 1, rank1_trace.json is used"}


def test_other_files_are_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"rank0_trace.json": 0, "rank7_trace.json": 7, ".rank1_trace.tmp.json": 1, "none.json": None},
    )
    (tmp_path / "empty.json").touch()
    (tmp_path / "rank1_trace.json.tmp").write_text("{")
    (tmp_path / "summary.json").write_text('{"loss": 1}')
    (tmp_path / "execution.json").write_text('{"schema": "1.1.1-chakra", "nodes": [{"id": 1}]}')
    merged = build_gpu_trace(0, steps=1)
    merged.head["mergedTrace"] = True
    merged.write(tmp_path / "merged_trace.json.gz")
    (tmp_path / "rank1_trace.json.part").touch()
    (tmp_path / os.fsdecode(b"rank0\xff.json")).touch()
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "link.json").symlink_to(tmp_path / "rank0_trace.json")
    (tmp_path / "folder.json").mkdir()
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json"}
    assert skipped(found) == {
        "rank7_trace.json": "rank 7 of a run with 2 processes",
        ".rank1_trace.tmp.json": "a temporary file: its writer did not finish",
        "rank1_trace.json.tmp": "a temporary file: its writer did not finish",
        "none.json": "names no rank",
        "empty.json": "empty file",
        "summary.json": "holds no traceEvents",
        "link.json": "is a symbolic link, not a file",
        "folder.json": "is a folder, not a file",
        "execution.json": "holds no traceEvents",
        "merged_trace.json.gz": "a merged trace, not that of one rank",
        "rank1_trace.json.part": "its name does not end in .json or .gz",
        "rank0\\udcff.json": "its name holds bytes that are no text",
    }


@pytest.mark.parametrize("listed", [False, True])
def test_named_pipe_does_not_block(tmp_path: Path, listed: bool) -> None:
    reason = "is a pipe or a device, not a file"
    if listed:
        write(tmp_path, {"rank0_trace.json": 0})
        write_manifest(tmp_path)
        (tmp_path / "rank0_trace.json").unlink()
    else:
        os.mkfifo(tmp_path / "manifest.json")
    os.mkfifo(tmp_path / "rank0_trace.json")
    found = find_traces(tmp_path, 1)
    assert skipped(found) == {"rank0_trace.json": reason}
    assert listed or f"{reason}, the traces are found" in found.findings[0].reason


def test_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    """Four TiB without a block on the disk: to hash it would take an hour."""
    write(tmp_path, {"rank0_trace.json": 0, "rank1_trace.json": 1})
    os.truncate(tmp_path / "rank1_trace.json", 1 << 42)
    reason = "takes more than 4 GiB on the disk"
    assert skipped(find_traces(tmp_path, 2)) == {"rank1_trace.json": reason}
    names = {"rank0_trace.json": (0, 100), "rank1_trace.json": (1, 1 << 42)}
    entries = [{"rank": r, "file": name, "bytes": size, "sha256": "0"} for name, (r, size) in names.items()]
    (tmp_path / "manifest.json").write_text(json.dumps({"complete": True, "files": entries}))
    found = skipped(find_traces(tmp_path, 2))
    assert found["rank1_trace.json"] == reason and "100 in the manifest" in found["rank0_trace.json"]


def test_rank_of_the_file_counts_more_than_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"rank0_trace.json": 1, "rank1_trace.json": 0, "rank2_trace.json": 2})
    found = find_traces(tmp_path, 3)
    assert used(found) == {0: "rank1_trace.json", 1: "rank0_trace.json", 2: "rank2_trace.json"}
    assert {f.file: f.reason for f in found.findings if f.file != "manifest.json"} == {
        "rank0_trace.json": "named as rank 0, but of rank 1",
        "rank1_trace.json": "named as rank 1, but of rank 0",
    }


@pytest.mark.parametrize("rank", ["0", 1.5, True, [0], {"rank": 0}])
def test_rank_that_is_no_number(tmp_path: Path, rank: object) -> None:
    trace = build_gpu_trace(0, steps=1)
    trace.head["distributedInfo"]["rank"] = rank
    trace.write(tmp_path / "rank0_trace.json")
    reason = "its distributedInfo names no whole number as rank"
    assert skipped(find_traces(tmp_path, 1)) == {"rank0_trace.json": reason}


def test_head_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0_trace.json").write_text('{"x": 1, y: 2, "traceEvents": []}')
    assert "not JSON before the events" in skipped(find_traces(tmp_path, 1))["rank0_trace.json"]


def test_base_time_that_no_clock_shows(tmp_path: Path) -> None:
    trace = build_gpu_trace(0, steps=1)
    trace.head["baseTimeNanoseconds"] = 10**40
    trace.write(tmp_path / "rank0_trace.json")
    reason = "counts its times from one that no clock shows"
    assert skipped(find_traces(tmp_path, 1)) == {"rank0_trace.json": reason}


@pytest.mark.parametrize("rank", [-1, 2, 10**30])
def test_rank_that_the_run_does_not_have(tmp_path: Path, rank: int) -> None:
    write(tmp_path, {"a.json": rank})
    assert f"rank {rank} of a run with 2 processes" in skipped(find_traces(tmp_path, 2))["a.json"]
    assert bool(skipped(find_traces(tmp_path, None))) == (
        rank not in range(1 << 31)
    )  # numpy's numbers of ranks


def test_nested_head_is_named(tmp_path: Path) -> None:
    deep = "[" * 1_000_000 + "]" * 1_000_000
    (tmp_path / "rank0_trace.json").write_text(f'{{"x": {deep}, "traceEvents": []}}')
    assert skipped(find_traces(tmp_path, 1)) == {"rank0_trace.json": "nests more than 200 brackets"}
    (tmp_path / "manifest.json").write_text(deep)
    assert "is not readable" in find_traces(tmp_path, 1).findings[0].reason


def test_complete_manifest_excludes_other_files(tmp_path: Path) -> None:
    write(tmp_path, {"rank0_trace.json": 0})
    write_manifest(tmp_path)
    write(tmp_path, {"rank1_trace.json": 1})
    assert skipped(find_traces(tmp_path, 2)) == {"rank1_trace.json": "not in the manifest, which is complete"}
    content = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, complete=False, files=content["files"])
    found = find_traces(tmp_path, 2)
    assert used(found) == {0: "rank0_trace.json", 1: "rank1_trace.json"}
    assert [f.reason for f in found.findings] == ["says that the traces are not complete"]


def test_manifest_without_files_excludes_none(tmp_path: Path) -> None:
    write(tmp_path, {"rank0_trace.json": 0})
    write_manifest(tmp_path, files=[])
    found = find_traces(tmp_path, 1)
    assert used(found) == {0: "rank0_trace.json"}
    assert found.findings[0].reason == "names no file, the traces are found by their content"


def test_copy_does_not_take_the_place_of_the_trace(tmp_path: Path) -> None:
    copies = [
        "rank0_trace (1).json",
        "copy of rank0_trace.json",
        "rank_0.json",
        "a.json",
        "rank0_trace.json.gz",
    ]
    write(tmp_path, dict.fromkeys(["rank0_trace.json", *copies], 0))
    found = find_traces(tmp_path, 1)
    assert used(found) == {0: "rank0_trace.json"}
    assert skipped(found) == dict.fromkeys(copies, "a second trace of rank 0, rank0_trace.json is used")


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "sub/rank0_trace.json", "."])
def test_manifest_cannot_point_outside(tmp_path: Path, name: str) -> None:
    entry = {"rank": 0, "file": name, "bytes": 1, "sha256": "0"}
    write_manifest(tmp_path / "traces", files=[entry])
    assert skipped(find_traces(tmp_path / "traces", 1)) == {name: "the manifest points outside the traces"}


@pytest.mark.parametrize("name", ["", "..", "rank0\0.json", "x" * 300])
def test_impossible_name_in_the_manifest(tmp_path: Path, name: str) -> None:
    write_manifest(tmp_path, files=[{"rank": 0, "file": name, "bytes": 1, "sha256": "0"}])
    assert set(skipped(find_traces(tmp_path, 1))) == {name}


@pytest.mark.parametrize("content", ["", "{", '{"files": 3}', '["rank0_trace.json"]'])
def test_unreadable_manifest_is_noted_and_the_files_speak(tmp_path: Path, content: str) -> None:
    write(tmp_path, {"rank0_trace.json": 0})
    (tmp_path / "manifest.json").write_text(content)
    found = find_traces(tmp_path, 1)
    assert used(found) == {0: "rank0_trace.json"}
    assert found.findings[0].file == "manifest.json" and "is not readable" in found.findings[0].reason


def test_bomb_without_an_end_is_named(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "rank0_trace.json.gz", "wb") as file:
        for _ in range(100):
            file.write(b" " * (1 << 20))
    assert skipped(find_traces(tmp_path, 1)) == {
        "rank0_trace.json.gz": "holds no traceEvents in its first 4 MiB"
    }


def test_missing_and_empty_folder(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        found = find_traces(folder, 2)
        assert found.files == {}
        assert json.dumps([f.reason for f in found.findings]).count("is missing") == 1
