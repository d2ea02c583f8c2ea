"""HTA on the reduced events is HTA on the whole file: the same data frame."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.analysis.hta_worker import apply_slim_reading, read_slim
from tests.stratlab.analysis.hta.loading import load_hta
from tests.stratlab.real_traces import unpack
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.team import simulate

pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2


@pytest.fixture
def slim(monkeypatch: pytest.MonkeyPatch) -> None:
    from hta.common import trace_parser

    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)  # taken back with the test


@pytest.mark.parametrize("name", ["simulated", "mi250_rocm62", "event_sync_a100"])
def test_reduced_events_give_the_same_frames(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import pandas as pd

    files = simulate(tmp_path, Scene()).files if name == "simulated" else unpack(name, tmp_path)
    whole = load_hta(files)
    request.getfixturevalue("slim")
    apply_slim_reading()
    both = whole, load_hta(files)
    names = [hta.t.symbol_table.get_sym_table() for hta in both]
    for rank in files:
        frames = []
        for hta, table in zip(both, names, strict=True):
            frame = hta.t.get_trace(rank).reset_index(drop=True)
            # events are numbered, and numbers of events stand in other columns: without those left out they are others
            frame = frame.drop(columns=[c for c in frame.columns if "index" in c])
            for column in ("cat", "name"):
                frame[column] = [table[code] for code in frame[column]]
            frame["bytes"] = pd.to_numeric(frame["bytes"])  # ROCm's profiler has them in quotes
            frames.append(frame)
        pd.testing.assert_frame_equal(*frames, check_like=True, check_dtype=False)
        assert both[0].t.meta_data[rank] == both[1].t.meta_data[rank]


def test_numbers_in_quotes_are_numbers_and_odd_events_are_left_out(tmp_path: Path) -> None:
    """What our own reader keeps, HTA gets, and no more; with numbers where it counts."""
    plain = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 123.456, "dur": 2}
    args = {"stream": 7, "correlation": 11, "memory bandwidth (GB/s)": 1.5, "Collective name": "12"}
    quoted = plain | {"ts": "123.456", "dur": "2", "args": {k: str(v) for k, v in args.items()}}
    odd = [{"ts": "noon"}, {"dur": "nan"}, {"ts": True}, {"ts": None}, {"name": 7}, {"cat": 7}, {"args": [1]}]
    events = [plain | {"args": args}, quoted, *(plain | one for one in odd)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    first, second = read_slim(path, dict.fromkeys(args, True) | {"Collective name": False})["traceEvents"]
    assert first == second
    assert [type(second[key]) for key in ("ts", "dur")] == [float, int]
