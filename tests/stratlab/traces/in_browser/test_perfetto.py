"""Merged traces in the real Perfetto: nothing lost, nothing refused, ranks kept apart, every time exact."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stratlab.traces.merge import merge_traces
from stratlab.traces.renamed import read_ns
from tests.stratlab.browser import ABSENT, CHROMIUM
from tests.stratlab.perfetto import PerfettoError, query, query_each
from tests.stratlab.simulated.small import build_gpu_trace
from tests.stratlab.simulated.team import Scene, simulate

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

SKEW_NS = 40_000_001
SQL = {
    "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "flows": "select count(*) count from flow",
    "processes": "select name from process where name is not null",
    "slices": """
        select p.name process, s.name, s.ts, s.dur, s.category from slice s
        join thread_track on s.track_id = thread_track.id join thread using (utid) join process p using (upid)""",
    "connected": """
        select p.name one, q.name other, count(*) count from flow
        join slice s on flow.slice_out = s.id join slice z on flow.slice_in = z.id
        join thread_track a on s.track_id = a.id join thread t on a.utid = t.utid join process p on t.upid = p.upid
        join thread_track b on z.track_id = b.id join thread u on b.utid = u.utid join process q on u.upid = q.upid
        group by 1, 2""",
}


@dataclass(frozen=True)
class Seen:
    """What went in, and what Perfetto says of the merged file."""

    events: dict[int, list[dict[str, Any]]]  # per rank, times as text
    bases_ns: dict[int, int]
    origin_ns: int
    answers: dict[str, list[dict[str, Any]]]

    def slices(self, rank: int) -> list[dict[str, Any]]:
        return [row for row in self.answers["slices"] if row["process"].startswith(f"rank {rank} ")]


def read_events(path: Path) -> tuple[int, list[dict[str, Any]]]:
    content = json.loads(path.read_text(), parse_float=str)
    return content.get("baseTimeNanoseconds", 0), content["traceEvents"]


@pytest.fixture(scope="module")
def everything(
    gloo_traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Seen], list[list[dict[str, Any]]]]:
    """Four simulated ranks with a skewed clock, two gloo ranks of a real training, two with Python's stack."""
    folder = tmp_path_factory.mktemp("perfetto")
    truth = simulate(folder / "simulated", Scene(ranks=4, steps=2, skew_ns=SKEW_NS))
    for rank in range(2):
        trace = build_gpu_trace(rank, steps=2)
        for i in range(40):  # each reaches over the end of a label or an operator
            trace.add("python_function", f"train.py({i}): step", 5040.5 + 50 * i, 5085.5 + 50 * i)
        trace.write(folder / "stack" / f"rank{rank}_trace.json")
    sets = {
        "simulated": (truth.files, {3: SKEW_NS}),
        "gloo": ({rank: gloo_traces / f"rank{rank}_trace.json" for rank in range(2)}, {}),
        "stack": ({rank: folder / "stack" / f"rank{rank}_trace.json" for rank in range(2)}, {}),
    }
    merged = {}
    for name, (files, offsets) in sets.items():
        merged[name] = folder / f"{name}.json.gz"
        merge_traces(files, merged[name], offsets_ns=offsets)
    control = folder / "stack" / "rank0_trace.json"  # not merged
    answers = query_each([*merged.values(), control], list(SQL.values()))
    result = {}
    for (name, (files, offsets)), rows in zip(sets.items(), answers[:-1], strict=True):
        read = {rank: read_events(path) for rank, path in files.items()}
        with gzip.open(merged[name], "rt") as file:
            head = json.loads(file.readline().partition(',"traceEvents"')[0] + "}")
        result[name] = Seen(
            events={rank: events for rank, (_, events) in read.items()},
            bases_ns={rank: base - offsets.get(rank, 0) for rank, (base, _) in read.items()},
            origin_ns=head["baseTimeNanoseconds"],
            answers=dict(zip(SQL, rows, strict=True)),
        )
    return result, answers[-1]


@pytest.fixture
def seen(everything: tuple[dict[str, Seen], Any]) -> dict[str, Seen]:
    return everything[0]


@pytest.fixture
def control(everything: tuple[Any, list[list[dict[str, Any]]]]) -> list[list[dict[str, Any]]]:
    return everything[1]


SETS = pytest.mark.parametrize("name", ["simulated", "gloo", "stack"])


@SETS
def test_no_import_error(seen: dict[str, Seen], name: str) -> None:
    assert seen[name].answers["errors"] == []


@SETS
def test_every_slice_with_its_exact_time(seen: dict[str, Seen], name: str) -> None:
    for rank, events in seen[name].events.items():
        shift = seen[name].bases_ns[rank] - seen[name].origin_ns
        expected = Counter(
            (e["name"], read_ns(str(e["ts"]).encode()) + shift, read_ns(str(e["dur"]).encode()))
            for e in events
            if e["ph"] == "X"
        )
        found = Counter((row["name"], row["ts"], row["dur"]) for row in seen[name].slices(rank))
        instants = sum(event["ph"] == "i" and event.get("s") == "t" for event in events)
        assert found.total() == expected.total() + instants
        assert not expected - found


@SETS
def test_every_label_of_every_rank(seen: dict[str, Seen], name: str) -> None:
    for rank, events in seen[name].events.items():
        labels = Counter(
            e["name"] for e in events if e["ph"] == "X" and e["name"].startswith(("## ", "ProfilerStep#"))
        )
        found = Counter(row["name"] for row in seen[name].slices(rank))
        assert labels and {label: found[label] for label in labels} == labels


@SETS
def test_arrows_are_all_there_and_connect_no_two_ranks(seen: dict[str, Seen], name: str) -> None:
    ends = sum(event["ph"] in ("t", "f") for events in seen[name].events.values() for event in events)
    assert seen[name].answers["flows"] == [{"count": ends}]
    assert ends or name == "stack"
    connected = seen[name].answers["connected"]
    assert sum(row["count"] for row in connected) == ends
    assert all(row["one"].split()[:2] == row["other"].split()[:2] for row in connected)


def test_processes_are_named_by_rank(seen: dict[str, Seen]) -> None:
    names = {row["name"] for row in seen["simulated"].answers["processes"]}
    assert {f"rank {rank} {device}" for rank in range(4) for device in ("CPU", "GPU 0")} <= names
    names = {row["name"] for row in seen["gloo"].answers["processes"]}
    assert {"rank 0 CPU", "rank 1 CPU", "rank 0 Spans", "rank 1 Spans"} <= names


def test_collectives_end_together_once_clocks_are_corrected(seen: dict[str, Seen]) -> None:
    ends = [
        sorted(
            row["ts"] + row["dur"] for row in seen["simulated"].slices(rank) if row["name"].startswith("nccl")
        )
        for rank in (0, 3)
    ]
    assert len(ends[0]) > 2 and max(abs(a - b) for a, b in zip(*ends, strict=True)) < 1_000_000


def test_stack_on_the_same_track_is_an_error(control: list[list[dict[str, Any]]]) -> None:
    """The check itself: without the merge, Perfetto drops slices of this input, and says so."""
    assert [row["name"] for row in control[0]] == ["slice_drop_overlapping_complete_event"]


def test_file_that_perfetto_refuses(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 9}, {"ph": }'
    )
    with pytest.raises(PerfettoError, match="reading the trace: Failure parsing JSON"):
        query(bad, [SQL["errors"]])
