"""HTA on the reduced events is HTA on the whole file: the same data frame."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.hta.reading import apply_slim_reading
from stratlab.traces.chunks import TraceError
from tests.stratlab.analysis.hta.loading import load_hta
from tests.stratlab.real_traces import NAMES, unpack
from tests.stratlab.simulated.small import build_cpu_trace, build_gpu_trace
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


def test_numbers_in_quotes_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hta.common import trace_parser

    plain = build_gpu_trace(0).write(tmp_path / "plain.json")
    content = json.loads(plain.read_text())
    for event in content["traceEvents"]:
        event |= {key: str(event[key]) for key in ("ts", "dur", "pid", "tid") if key in event}
        if "args" in event:
            event["args"] = {key: str(value) for key, value in event["args"].items()}
    quoted = tmp_path / "quoted.json"
    quoted.write_text(json.dumps(content))
    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)
    apply_slim_reading()
    ours, theirs = (load_hta({0: path}).get_temporal_breakdown(visualize=False) for path in (quoted, plain))
    assert ours.to_dict() == theirs.to_dict()


def test_damaged_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hta.common import trace_parser

    path = tmp_path / "rank0.json"
    path.write_text(build_gpu_trace(0).text()[:-100])
    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)
    apply_slim_reading()
    with pytest.raises(TraceError, match="truncated or not JSON"):
        load_hta({0: path})
