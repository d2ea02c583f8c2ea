"""Merged traces in the real Perfetto: nothing lost, nothing refused, ranks kept apart, every time exact."""

import json
import os
from collections import Counter

import pytest

from stratlab.traces.merge import HOUR_NS, merge_traces
from stratlab.traces.merged_events import read_ns
from tests.stratlab.browser import ABSENT, CHROMIUM
from tests.stratlab.perfetto import query_each
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.small import build_gpu_trace
from tests.stratlab.simulated.team import simulate

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

SKEW_NS = 40_000_001
SQL = {
    "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
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


def test_perfetto_reads_what_is_merged(tmp_path):
    files = simulate(tmp_path / "ranks", Scene(ranks=4, steps=2, skew_ns=SKEW_NS)).files
    trace = build_gpu_trace(4, steps=2)
    for i in range(40):
        trace.add("python_function", f"train.py({i}): step", 5040.5 + 50 * i, 5085.5 + 50 * i)
    files[4] = trace.write(tmp_path / "stack.json")
    contents = {rank: json.loads(path.read_text(), parse_float=str) for rank, path in files.items()}
    merge_traces(
        {rank: files[rank] for rank in range(4)}, ours := tmp_path / "ours.json.gz", offsets_ns={3: SKEW_NS}
    )
    merge_traces({4: files[4]}, stack := tmp_path / "stack.json.gz", offsets_ns={})
    *answers, control = query_each([ours, stack, files[4]], list(SQL.values()))
    for (errors, processes, slices, connected), ranks in zip(answers, (range(4), [4]), strict=True):
        assert errors == []
        assert {f"rank {rank} {of}" for rank in ranks for of in ("CPU", "GPU 0")} <= {
            p["name"] for p in processes
        }
        ends = sum(e["ph"] in ("t", "f") for rank in ranks for e in contents[rank]["traceEvents"])
        assert sum(row["count"] for row in connected) == ends and (ends or 4 in ranks)
        assert all(row["one"].split()[:2] == row["other"].split()[:2] for row in connected)
        firsts = {rank: _find_times(contents[rank], SKEW_NS if rank == 3 else 0) for rank in ranks}
        origin = (min(at for times in firsts.values() for _, at, _ in times) // HOUR_NS - 1) * HOUR_NS
        for rank, times in firsts.items():
            mine = [row for row in slices if row["process"].startswith(f"rank {rank} ")]
            expected = Counter((name, at - origin, dur) for name, at, dur in times)
            assert not expected - Counter((row["name"], row["ts"], row["dur"]) for row in mine)
            instants = sum(e["ph"] == "i" and e.get("s") == "t" for e in contents[rank]["traceEvents"])
            assert len(mine) == expected.total() + instants
    assert [row["name"] for row in control[0]] == ["slice_drop_overlapping_complete_event"], "not merged"


def _find_times(content, ahead_ns):
    base = content.get("baseTimeNanoseconds", 0) - ahead_ns
    events = (e for e in content["traceEvents"] if e["ph"] == "X")
    found = []
    for event in events:
        at, dur = read_ns(str(event["ts"]).encode()), read_ns(str(event["dur"]).encode())
        assert at is not None and dur is not None
        found.append((event["name"], at + base, dur))
    return found
