"""HTA on the reduced events is HTA on the whole file: the same data frame."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.hta.reading import apply_slim_reading, read_slim
from stratlab.traces.chunks import TraceError
from tests.stratlab.analysis.hta.loading import load_hta
from tests.stratlab.real_traces import NAMES, unpack
from tests.stratlab.simulated.small import build_cpu_trace, build_gpu_trace, quote_numbers
from tests.stratlab.simulated.team import Scene, simulate

pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2


def read_both(files: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    from hta.common import trace_parser

    whole = load_hta(files)
    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)  # taken back with the test
    apply_slim_reading()
    return whole, load_hta(files)


def assert_same(files: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    whole, slim = read_both(files, monkeypatch)
    names = whole.t.symbol_table.get_sym_table(), slim.t.symbol_table.get_sym_table()
    for rank in files:
        frames = []
        for hta, table in zip((whole, slim), names, strict=True):
            frame = hta.t.get_trace(rank).reset_index(drop=True)
            # events are numbered, and numbers of events stand in other columns: without those left out they are others
            frame = frame.drop(columns=[c for c in frame.columns if "index" in c])
            for column in ("cat", "name"):
                frame[column] = [table[code] for code in frame[column]]
            frame["bytes"] = pd.to_numeric(frame["bytes"])  # ROCm's profiler has them in quotes
            frames.append(frame)
        pd.testing.assert_frame_equal(*frames, check_like=True, check_dtype=False)
        assert whole.t.meta_data[rank] == slim.t.meta_data[rank]
    breakdowns = [hta.get_temporal_breakdown(visualize=False) for hta in (whole, slim)]
    pd.testing.assert_frame_equal(*breakdowns, check_dtype=False)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "in_flight_a100_rank0"])
def test_real_traces(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(unpack(name, tmp_path), monkeypatch)


def test_simulated_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(simulate(tmp_path, Scene()).files, monkeypatch)


def test_cpu_trace_on_one_line_and_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hta.common import trace_parser

    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(json.loads(build_cpu_trace(0).text())).encode()))
    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)
    apply_slim_reading()
    assert [int(step) for step in load_hta({0: path}).get_profiler_steps()] == []


def test_numbers_in_quotes_are_numbers_and_odd_events_are_left_out(tmp_path: Path) -> None:
    """What our own reader keeps, HTA gets, and no more; with numbers where it counts."""
    plain = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 123.456, "dur": 2}
    args = {"stream": 7, "correlation": 11, "memory bandwidth (GB/s)": 1.5, "Collective name": "12"}
    quoted = plain | {"ts": "123.456", "dur": "2"}
    odd = [
        {"ts": "noon"},
        {"dur": "nan"},
        {"dur": "null"},
        {"ts": True},
        {"ts": None},
        {"name": 7},
        {"cat": 7},
    ]
    odd += [{"args": [1]}]
    events = [
        plain | {"args": args},
        quoted | {"args": {k: str(v) for k, v in args.items()}},
        *(plain | one for one in odd),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    first, second = read_slim(path, dict.fromkeys(args, True) | {"Collective name": False})["traceEvents"]
    assert first == second
    assert [type(second[key]) for key in ("ts", "dur")] == [float, int]


def test_a_whole_trace_with_numbers_in_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTA's answers are those of the same trace with plain numbers."""
    import pandas as pd
    from hta.common import trace_parser

    plain = build_gpu_trace(0)
    quoted = quote_numbers(plain)
    files = [{0: t.write(tmp_path / f"{i}" / "rank0.json")} for i, t in enumerate((plain, quoted))]
    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)
    apply_slim_reading()
    first, second = (load_hta(file) for file in files)
    for ask in ("get_temporal_breakdown", "get_comm_comp_overlap", "get_memory_bw_summary"):
        options = {} if ask == "get_memory_bw_summary" else {"visualize": False}
        frames = [getattr(hta, ask)(**options) for hta in (first, second)]
        pd.testing.assert_frame_equal(*frames)


def test_damaged_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hta.common import trace_parser

    path = tmp_path / "rank0.json"
    path.write_text(build_gpu_trace(0).text()[:-100])
    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)
    apply_slim_reading()
    with pytest.raises(TraceError, match="truncated or not JSON"):
        load_hta({0: path})
