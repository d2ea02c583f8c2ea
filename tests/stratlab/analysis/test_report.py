"""A run's row by hand: ranks that differ, an odd number of steps, sizes that are told and not."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stratlab.analysis.kernels import EDGES_US, CopyRow, Durations
from stratlab.analysis.report import build_mean_row, build_rank_row, find_recordings
from stratlab.analysis.step_rows import PART_NAMES, Gaps, MemoryPoint, StepRow
from stratlab.analysis.tables import FROM_REPORT, SCHEMA, write_tables
from stratlab_spec.run_directory import RunDirectory
from tests.stratlab.analysis.example_report import blank, build_example, build_example_ranks

NOTHING = [0] * (len(EDGES_US) - 1)


def step(rank, number, compute_ms):
    """A step that computes half of its time and is idle for the rest."""
    parts = dict.fromkeys((f"{name}_ms" for name in PART_NAMES), 0.0)
    parts |= {"compute_ms": compute_ms, "idle_ms": compute_ms, "host_wait_ms": compute_ms}
    phases = dict.fromkeys(("data_ms", "forward_ms", "backward_ms", "optimizer_ms"))
    times = {"step_ms": 2 * compute_ms, "host_step_ms": 2 * compute_ms, **parts, **phases}
    return StepRow(rank=rank, step=number, source="gpu", **times)


def rank(number, *compute_ms, copies=None, **facts):
    rows = [step(number, i, ms) for i, ms in enumerate(compute_ms)]
    plain = {
        "rank": number, "host": "here", "source": "gpu", "rows": rows, "copies": copies or [],
        "durations": Durations(EDGES_US, NOTHING, NOTHING, NOTHING, 0, 12), "collectives": [],
        "memory": [], "device_memory_gib": None, "allocations": None, "gaps": Gaps(), "unrecorded": 0,
    }  # fmt: skip
    return SimpleNamespace(**(plain | facts))


@pytest.mark.parametrize(
    ("pp", "micro_batches", "ideal"),
    [(1, 8, None), (2, 1, 50), (2, 8, 100 / 9), (4, 1, 75), (4, 5, 37.5), (4, 8, 300 / 11), (8, 3, 70)],
)
def test_the_ideal_bubble_is_a_share_of_the_whole_step(pp, micro_batches, ideal):
    """Of p stages and m micro-batches a stage works m of m + p - 1 turns."""
    found = build_mean_row([rank(0, 1.0)], {"pp": pp, "dp_shard": 2}, micro_batches)["bubble_ideal_pct"]
    assert found == (None if ideal is None else pytest.approx(ideal))


def test_the_ideal_bubble_is_one_of_the_schedule_and_smaller_with_more_stages_on_a_rank():
    whole = rank(0, 1.0)
    whole.rows[0] = replace(whole.rows[0], forward_ms=0.25, backward_ms=0.75)  # of a step of 2 ms
    found = [build_mean_row([whole], {"pp": 4}, 5, stages)["bubble_ideal_pct"] for stages in (1, 2)]
    assert found == pytest.approx([37.5 / 2, 300 / 13 / 2])


def test_a_rate_is_all_bytes_over_all_time_in_gb_per_second():
    """Rank 0: 6e9 bytes in 500 ms, rank 1: 1e9 in 200 ms: 7 GB in 0.7 s are 10 GB/s."""
    first = [CopyRow(0, "HtoD", 3, 6_000_000_000, 500.0, 12.0), CopyRow(0, "DtoH", 1, 500_000, 0.25, 2.0)]
    second = [CopyRow(1, "HtoD", 1, 1_000_000_000, 200.0, 5.0), CopyRow(1, "DtoD", 2, None, 3.0, None)]
    ranks = [rank(0, 1.0, copies=first), rank(1, 1.0, copies=second)]
    found = build_mean_row(ranks, {}, 1)
    assert found["h2d_gbps"] == pytest.approx(10) and found["d2h_gbps"] == pytest.approx(2)
    assert found["d2d_gbps"] is None, "its size is not told"
    assert build_rank_row(ranks[0])["h2d_gbps"] == pytest.approx(12)
    assert build_rank_row(ranks[1])["h2d_gbps"] == pytest.approx(5)


def test_means_and_the_slowest_of_unequal_ranks():
    """Three ranks with 3, 3 and 1 step: compute 2, 4 and 9 ms a step."""
    ranks = [rank(0, 1, 2, 3), rank(1, 4, 4, 4), rank(2, 9)]
    ranks[2].rows[0] = replace(ranks[2].rows[0], comm_ms=8, comm_overlap_ms=2)
    found = build_mean_row(ranks, {"dp_replicate": 3}, 2)
    assert (found["ranks"], found["steps"]) == (3, 3)
    assert found["step_ms"] == pytest.approx(2 * (6 + 12 + 9) / 7)
    assert found["compute_pct"] == pytest.approx(50)
    assert found["slowest_rank"] is None, "one step in common tells nothing"
    assert found["compute_imbalance"] == pytest.approx(9 / 5)
    assert found["kernels_per_step"] == pytest.approx(36 / 7)
    assert found["comm_overlap_pct"] == pytest.approx(25), "of the communication, not of the step"
    assert build_rank_row(ranks[0])["kernels_per_step"] == pytest.approx(4)


@pytest.mark.parametrize(
    ("sizes", "per_step"), [((600, 300), 300), ((600, None), None), ((None,), None), ((), None), ((0,), 0)]
)
def test_communication_is_given_where_the_size_of_each_collective_is_told(sizes, per_step):
    collectives = [SimpleNamespace(bytes=size, step=0, name="x") for size in sizes]
    ranks = [rank(0, 1, 2, collectives=collectives[:1]), rank(1, 4, collectives=collectives[1:])]
    assert build_mean_row(ranks, {}, 1)["comm_bytes_per_step"] == per_step


def test_memory_is_that_of_the_rank_with_most_in_gib():
    def points(rank, *mib):
        return [MemoryPoint(rank, device, 0.0, held, kept) for device, held, kept in mib]

    ranks = [
        rank(0, 1, memory=points(0, ("cuda:0", 512, 1024), ("cpu", 9e9, None)), device_memory_gib=80.0),
        rank(1, 1, memory=points(1, ("cuda:0", 1536, None)), device_memory_gib=40.0, allocations=7),
        rank(2, 1, memory=points(2, ("cuda:0", 256, 2560)), allocations=4),
    ]
    found = build_mean_row(ranks, {}, 1)
    assert (found["peak_allocated_gib"], found["peak_reserved_gib"]) == (1.5, 2.5)
    assert found["device_memory_gib"] == 40 and found["allocations_per_step"] == pytest.approx(11 / 3)


def write(report, folder):
    write_tables(folder, report, build_example_ranks(report))
    return {path.stem: list(csv.reader(path.open(newline=""))) for path in folder.glob("*.csv")}


def test_rows_have_the_columns_of_the_schema(plain_report):
    for table, key in FROM_REPORT.items():
        for report in (plain_report, build_example()):
            if report[key]:
                assert {"run", *report[key][0]} == set(SCHEMA[table]), table
    report = build_example()
    for table, rows in (("kernel_stats", "kernels"), ("memory_curve", "memory")):
        row = getattr(build_example_ranks(report)[0], rows)[0]
        assert {"run", *row.__dataclass_fields__} == set(SCHEMA[table])


def test_text_is_no_formula_and_unknown_is_empty(tmp_path):
    report = build_example()
    report["run"]["run"] = "=cmd|' /C calc'!A0"
    evil = ["+1", "-1", "@x", "\tx", "\rx", "=1", "a=1"]
    report["quality"] = [{"action": "noted", "reason": text, "file": None, "rank": None} for text in evil]
    report["steps"][0]["idle_ms"] = -1.5
    found = write(report, tmp_path)
    assert [line[2] for line in found["quality"][1:]] == [
        *("'+1", "'-1", "'@x", "'\tx", "'\rx", "'=1"),
        "a=1",
    ]
    assert {line[0] for line in found["quality"][1:]} == {"'=cmd|' /C calc'!A0"}
    assert found["quality"][1][3:] == ["", ""]
    assert dict(zip(*found["step_metrics"][:2], strict=True))["idle_ms"] == "-1.5"  # a number stays one
    report = blank(build_example("cpu"))
    write_tables(tmp_path / "blank", report, [])
    with (tmp_path / "blank" / "rank_metrics.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert len(lines) == 3 and {cell for line in lines[1:] for cell in line[4:]} == {""}


def test_what_the_trainer_writes_is_found_where_it_writes_it(tmp_path):
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
