"""Holistic Trace Analysis: its numbers are ours, and every analysis says how it went."""

import csv
import json
import resource

import pytest
from typer.testing import CliRunner

from stratlab import cli
from stratlab.analysis import hta_bridge
from stratlab.analysis.hta_analyses import (
    ANALYSES,
    Analysis,
    Scene,
    apply_memory_limit,
    describe_failure,
    find_free_bytes,
    lacked_memory,
)
from stratlab.analysis.hta_bridge import HtaLimits, HtaRun, HtaStatus, run_hta
from stratlab.analysis.hta_worker import apply_slim_reading, read_slim, run_analysis
from tests.codes import find_codes
from tests.stratlab.analysis.hta.loading import load_hta
from tests.stratlab.real_traces import unpack
from tests.stratlab.simulated import team
from tests.stratlab.simulated.small import build_gpu_trace, write_run

MIB = 1 << 20


def read_table(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_every_analysis_has_a_status_on_gpu_traces(gpu_run, gpu_report):
    tables = gpu_run / "analysis" / "tables" / "hta"
    statuses = {row["analysis"]: row for row in gpu_report["hta"]}
    assert list(statuses) == [analysis.name for analysis in ANALYSES]
    assert [name for name, row in statuses.items() if row["status"] == "failed"] == []
    assert statuses["memory_bandwidth_summary"]["status"] == "ok"
    assert find_codes(statuses["potential_stragglers"]["reason"]) == ["SL-hta-nccl-names"]
    for name, row in statuses.items():
        assert (row["status"] == "ok") == bool(row["tables"])
        assert row["reason"] or row["status"] == "ok", name
        for table in row["tables"]:
            assert read_table(tables / table), table
    assert len(read_table(tables / "profiler_steps.csv")) == 3, "the last one as well"
    rows = read_table(tables / "gpu_kernel_breakdown_kernels.csv")
    (gemm,) = [r for r in rows if r["name"] == "sm90_gemm<float>" and r["rank"] == "0"]
    assert (float(gemm["sum (us)"]), float(gemm["mean (us)"])) == (pytest.approx(900), pytest.approx(300))
    sequences = [
        {row["kernel_sequence"] for row in read_table(tables / f"aten_op_kernels_and_delay_rank{rank}.csv")}
        for rank in (0, 1)
    ]
    assert sequences[0] == sequences[1], "each rank is counted by itself"
    html = (gpu_run / "analysis" / "report.html").read_text()
    assert "<details><summary>temporal_breakdown</summary>" in html


def test_status_of_an_analysis(tmp_path, monkeypatch):
    import pandas as pd

    def crash(scene):
        raise KeyError("thread_id")

    def run(analysis, has_gpu=True):
        scene = Scene(hta=None, ranks=[0], has_gpu=has_gpu, names=["gemm"], scratch="")
        outcome = run_analysis(analysis, scene, tmp_path)
        return outcome["status"], outcome["reason"]

    frame = pd.DataFrame({"a": [1.5]})
    assert run(Analysis("good", lambda scene: frame)) == ("ok", "")
    assert (tmp_path / "good.csv").read_text() == "a\n1.5\n"
    assert run(Analysis("crash", crash)) == ("failed", "KeyError: 'thread_id'")
    for empty in (None, pd.DataFrame(), pd.DataFrame({"a": [float("nan")]}), {"x": None}):
        status, reason = run(Analysis("empty", lambda scene, e=empty: e))
        assert status == "unsupported" and find_codes(reason) == ["SL-hta-nothing"]
    # on CPU traces an analysis for GPUs is not even called: its crash says nothing
    assert run(Analysis("crash", crash), has_gpu=False)[0] == "unsupported"
    assert run(Analysis("no", crash, obstacle=lambda scene: "why not")) == ("unsupported", "why not")
    monkeypatch.setattr("stratlab.analysis.hta_worker.MOST_ROWS", 2)
    status, reason = run(Analysis("big", lambda scene: pd.DataFrame({"a": [1, 2, 3]})))
    assert status == "ok" and find_codes(reason) == ["SL-hta-rows-cut"]
    assert len(read_table(tmp_path / "big.csv")) == 2


ONE_OF_THREE = [
    HtaStatus("a", "failed", "KeyError"),
    HtaStatus("b", "ok"),
    HtaStatus("c", "unsupported", "x"),
]


@pytest.mark.parametrize(
    ("statuses", "exit_code"), [(ONE_OF_THREE[:1], 1), (ONE_OF_THREE, 0), (ONE_OF_THREE[2:], 0)]
)
def test_nothing_but_failures_is_no_success(tmp_path, monkeypatch, statuses, exit_code):
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    monkeypatch.setattr("stratlab.analysis.run_analysis.run_hta", lambda *_: HtaRun(statuses, [0]))
    done = CliRunner().invoke(cli.app, ["analyze", str(run)])
    assert done.exit_code == exit_code and ("SL-hta-all-failed" in done.output) == bool(exit_code)
    assert ("a: KeyError" in done.output) == (statuses[0].status == "failed")
    assert (run / "analysis" / "report.html").is_file()


def test_where_it_is_not_installed_it_does_not_fail(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", {0: build_gpu_trace(0)})
    monkeypatch.setattr(hta_bridge, "find_spec", lambda name: None if name == "plotly" else name)
    assert CliRunner().invoke(cli.app, ["analyze", str(run)]).exit_code == 0
    rows = json.loads((run / "analysis" / "report.json").read_text())["hta"]
    assert len(rows) == len(ANALYSES) and {row["status"] for row in rows} == {"unsupported"}
    assert find_codes(rows[0]["reason"]) == ["SL-hta-not-installed"] and "plotly" in rows[0]["reason"]


def test_process_that_takes_too_long_is_ended(tmp_path):
    path = build_gpu_trace(0).write(tmp_path / "rank0_trace.json")
    statuses = run_hta({0: path}, True, {0: MIB}, tmp_path, HtaLimits(timeout_s=0.3)).statuses
    assert {(s.status, *find_codes(s.reason)) for s in statuses} == {("failed", "SL-hta-timeout")}


def test_process_that_dies_says_so_and_keeps_what_was_done(tmp_path):
    (tmp_path / "rank0_trace.json").write_text('{"traceEvents": [')
    statuses = run_hta({0: tmp_path / "rank0_trace.json"}, True, {0: MIB}, tmp_path).statuses
    assert {s.status for s in statuses} == {"failed"}
    assert "SL-hta-process-ended" in find_codes(statuses[0].reason)
    row = {"analysis": "profiler_steps", "status": "ok", "reason": "", "tables": ["a.csv"], "seconds": 1.5}
    (tmp_path / "status.jsonl").write_text(json.dumps(row) + "\n")
    first, second = hta_bridge._read_statuses(tmp_path / "status.jsonl", "killed")[:2]
    assert (first.status, first.tables, first.seconds) == ("ok", ("a.csv",), 1.5)
    assert (second.status, second.reason) == ("failed", "killed")


def test_what_the_container_may_still_take(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:    10485760 kB\n")
    stat = "anon 1048576\nfile 900000000\nkernel 5\nshmem 2097152\ninactive_file 7\n"
    old = tmp_path / "old" / "memory"
    old.mkdir(parents=True)
    (old / "memory.stat").write_text(f"cache 1\nrss 9\ntotal_rss {MIB}\ntotal_shmem 0\n")
    (tmp_path / "memory.stat").write_text(stat)
    assert find_free_bytes(tmp_path, tmp_path / "meminfo") == 10 << 30
    for text, free in (("max", 10 << 30), (str(100 * MIB), 97 * MIB), ("1000", 0)):
        (tmp_path / "memory.max").write_text(f"{text}\n")
        assert find_free_bytes(tmp_path, tmp_path / "meminfo") == free
    for text, free in (("9223372036854771712", 10 << 30), (str(2 * MIB), MIB)):  # of version 1: none, some
        (old / "memory.limit_in_bytes").write_text(f"{text}\n")
        assert find_free_bytes(old.parent, tmp_path / "meminfo") == free
    assert find_free_bytes() > 100 * MIB


@pytest.mark.parametrize(("hard", "allowed"), [(resource.RLIM_INFINITY, 5), (9, 5), (3, 3)])
def test_the_limit_of_a_process_is_never_above_the_hard_one(monkeypatch, hard, allowed):
    taken = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (0, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: taken.append(limits))
    apply_memory_limit(5)
    assert taken == [(allowed, allowed)]


def test_what_is_a_lack_of_memory():
    lacks = ("RuntimeError: can't start new thread", "HTA's process ended with -9: x", "MemoryError: Unable")
    lacks += ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2",)
    lacks += ("SystemError: <built-in function f> returned NULL without setting an exception",)
    other = ("SystemError: unknown opcode", "HTA's process ended with -90: x", "KeyError: 'thread_id'")
    for said in (*lacks, *other):
        assert lacked_memory(said) == (said in lacks)
        assert find_codes(describe_failure(said, 2 << 30)) == (["SL-hta-memory"] if said in lacks else [])


pytestmark = pytest.mark.filterwarnings("ignore")  # HTA on pandas 2


@pytest.fixture
def slim(monkeypatch):
    from hta.common import trace_parser

    monkeypatch.setattr(trace_parser, "parse_trace_dict", None)  # taken back with the test


@pytest.mark.parametrize("name", ["simulated", "mi250_rocm62", "event_sync_a100"])
def test_reduced_events_give_the_same_frames(name, tmp_path, request):
    import pandas as pd

    files = team.simulate(tmp_path, team.Scene()).files if name == "simulated" else unpack(name, tmp_path)
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


def test_numbers_in_quotes_are_numbers_and_odd_events_are_left_out(tmp_path):
    plain = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 123.456, "dur": 2}
    args = {"stream": 7, "correlation": 11, "memory bandwidth (GB/s)": 1.5, "Collective name": "12"}
    quoted = plain | {"ts": "123.456", "dur": "2", "args": {k: str(v) for k, v in args.items()}}
    odd = [{"ts": "noon"}, {"dur": "nan"}, {"ts": True}, {"ts": None}, {"name": 7}, {"cat": 7}, {"args": [1]}]
    events = [plain | {"args": args}, quoted, *(plain | one for one in odd)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    first, second = read_slim(path, dict.fromkeys(args, True) | {"Collective name": False})["traceEvents"]
    assert first == second and [type(second[key]) for key in ("ts", "dur")] == [float, int]
