from __future__ import annotations

from pathlib import Path

from stratlab.analysis.reporting.recordings import find_recordings
from trainer.record.run_directory import RunDirectory


def test_what_the_trainer_writes_is_found_where_it_writes_it(tmp_path: Path) -> None:
    assert find_recordings(tmp_path) == []
    folder = RunDirectory(tmp_path, "demo", "x")
    folder.create()
    folder.flight_recorder.mkdir(parents=True)
    folder.memory_snapshots.mkdir()
    for rank in (0, 2, 10):
        folder.memory_snapshot(rank).write_bytes(b"ab")
    (folder.memory_snapshots / ".rank3.pickle.tmp").write_bytes(b"half")
    (folder.flight_recorder / ".nfs0001").write_bytes(b"left by a file system")
    (folder.memory_snapshots / "rank4.pickle").symlink_to("/etc/passwd")
    folder.flops_profiler.write_text("MACs")
    (folder.flight_recorder / "rank_1").write_bytes(b"")
    rows = {row["recording"]: row["files"] for row in find_recordings(folder.path)}
    assert rows == {
        "memory snapshot": {f"traces/memory_snapshots/rank{rank}.pickle": 2 for rank in (0, 2, 10)},
        "flops profiler": {"traces/flops_profiler.txt": 4},
        "flight recorder": {"hangs/flight_recorder/rank_1": 0},
    }
    assert list(rows["memory snapshot"])[-1].endswith("rank10.pickle"), "by their number"
