"""Kept runs: what an archive holds, and that its pages are today's. All pages: tests/nightly/programs/test_pages.py."""

import json
import random
import tarfile
from pathlib import Path

import pytest

from experiments.kept_runs import (
    ARCHIVE,
    MOST_BYTES,
    STEPS,
    TooLarge,
    choose_steps,
    pack_runs,
    thin_trace,
    unpack_runs,
)
from experiments.pages import list_kept
from tests.experiments.drawn_pages import check_pages
from tests.stratlab.example_run import build_run_dir

KEPT = list(list_kept())


def test_archives_are_small_and_name_no_folder_of_a_machine() -> None:
    assert KEPT
    for _, folder, _ in KEPT:
        assert (folder / ARCHIVE).stat().st_size <= MOST_BYTES
        with tarfile.open(folder / ARCHIVE) as archive:
            texts = [archive.extractfile(name).read() for name in archive.getnames()]  # type: ignore[union-attr]
        assert not any(word in text for text in texts for word in (b"/experiments-results", b"/tmp/"))


def test_the_smallest_is_drawn_as_it_is_kept(tmp_path: Path) -> None:
    _, folder, parts = min(KEPT, key=lambda kept: (kept[1] / ARCHIVE).stat().st_size)
    check_pages(folder, parts, tmp_path)


def write_trace(lengths: list[float]) -> dict[str, object]:
    """A step of each length, with an event of another program in it."""
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}]
    at = 0.0
    for number, dur in enumerate(lengths, 1):
        both = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": at}
        args = {"Total Allocated": 7, "Ev Idx": number}
        events += [{**both, "name": f"ProfilerStep#{number}", "dur": dur}]
        events += [{**both, "name": f"inside {number}", "dur": dur / 2, "args": args, "cat": "cpu_op"}]
        events += [{**both, "name": "fwdbwd", "cat": "fwdbwd"}]
        at += dur + 1
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.mark.parametrize(
    ("lengths", "first"),
    [([90, 40, 10, 10, 12, 11, 30], 4), ([5, 5, 5], 1), ([8, 9], 1), ([1, 9, 9, 9, 10], 2)],
)
def test_steps_of_median_length_are_kept_with_what_stratlab_reads(lengths: list[float], first: int) -> None:
    trace = write_trace(lengths)
    names = choose_steps(trace)
    numbers = range(first, min(first + STEPS, len(lengths) + 1))
    assert names == [f"ProfilerStep#{number}" for number in numbers]
    kept = thin_trace(trace, names)["traceEvents"]
    assert [event["name"] for event in kept if event.get("cat") == "cpu_op"] == [
        f"inside {n}" for n in numbers
    ]
    assert not any(event.get("cat") == "fwdbwd" for event in kept) and kept[0]["ph"] == "M"
    assert [event["args"] for event in kept if event.get("cat") == "cpu_op"] == [
        {"Total Allocated": 7}
    ] * len(names)


def test_a_run_without_its_traces_is_as_complete_as_it_was(tmp_path: Path) -> None:
    run = build_run_dir(tmp_path / "here/demo", "ddp", "ddp")
    (run / "ranks/rank0.log").write_text(f"results in {tmp_path / 'here'}")
    archive = tmp_path / ARCHIVE
    pack_runs(run.parent, archive, tmp_path / "here", with_traces=False)
    unpacked = unpack_runs(archive, tmp_path / "there") / "ddp"
    for name in ("config.json", "metrics.jsonl", "analysis/report.json", "traces/manifest.json"):
        assert (unpacked / name).read_text() == (run / name).read_text()
    assert (unpacked / "ranks/rank0.log").read_text() == "results in FOLDER"
    listed = json.loads((run / "traces/manifest.json").read_text())["files"]
    assert [(unpacked / "traces" / entry["file"]).stat().st_size for entry in listed] == [0] * len(listed)
    pack_runs(run.parent, tmp_path / "again", tmp_path / "here", with_traces=False)
    assert archive.read_bytes() == (tmp_path / "again").read_bytes()


def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    run = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (run / "noise.json").write_bytes(random.Random(0).randbytes(2 * MOST_BYTES))
    with pytest.raises(TooLarge):
        pack_runs(run.parent, tmp_path / ARCHIVE, tmp_path, with_traces=False)
    assert not (tmp_path / ARCHIVE).exists()
