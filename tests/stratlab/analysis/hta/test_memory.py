"""HTA's process never holds more than its limit, and what ended because of that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratlab.analysis.hta_analyses import (
    ANALYSES,
    choose_ranks,
    describe_failure,
    estimate_bytes,
    find_free_bytes,
    lacked_memory,
)
from stratlab.analysis.hta_bridge import HtaLimits, HtaStatus, run_hta
from tests.codes import find_codes
from tests.stratlab.simulated import team

MIB = 1 << 20


def run_limited(limit_bytes: int, code: str) -> subprocess.CompletedProcess[str]:
    head = (
        f"from stratlab.analysis.hta_analyses import apply_memory_limit; apply_memory_limit({limit_bytes}); "
    )
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60)


def test_limit_holds_for_the_process_and_its_children() -> None:
    assert run_limited(200 * MIB, "len(bytes(50 << 20))").returncode == 0
    forked = "import os; pid = os.fork(); pid or len(bytes(300 << 20)); print(pid and os.wait()[1] >> 8)"
    assert run_limited(200 * MIB, forked).stdout == "1\n"


def test_limit_may_only_become_tighter() -> None:
    code = "apply_memory_limit(900 << 20); len(bytes(300 << 20))"
    assert "MemoryError" in run_limited(200 * MIB, code).stderr


def test_what_the_container_may_still_take(tmp_path: Path) -> None:
    """Its limit without what it holds; files that the kernel keeps in memory can go."""
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


def test_half_as_many_where_the_estimate_was_too_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def run_analyses(files: dict[int, Path], *rest: object) -> list[HtaStatus]:
        tried.append(list(files))
        reason = describe_failure("RuntimeError: can't start new thread", MIB)
        return [HtaStatus("a", "ok") if len(files) < 3 else HtaStatus("a", "failed", reason)]

    monkeypatch.setattr("stratlab.analysis.hta_bridge._run_analyses", run_analyses)
    files = {rank: tmp_path / str(rank) for rank in range(8)}
    run = run_hta(files, True, dict.fromkeys(files, MIB), tmp_path)
    assert choose_ranks({5: 9000 * MIB, 3: MIB}, estimate_bytes([300 * MIB])) == [3]
    assert tried == [list(range(8)), [0, 1, 2, 3], [0, 1]] and run.ranks == [0, 1]
    assert find_codes(run.reason) == ["SL-hta-some-ranks"]


def test_where_no_rank_fits_it_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratlab.analysis.hta_bridge._run", lambda *_: pytest.fail("started"))
    run = run_hta({0: tmp_path / "absent"}, True, {0: 800 * MIB}, tmp_path, HtaLimits(memory_bytes=1 << 30))
    assert run.ranks == [] and {s.status for s in run.statuses} == {"unsupported"}
    assert find_codes(run.statuses[0].reason) == ["SL-hta-rank-too-large"]
    assert "1 GiB" in run.statuses[0].reason
    monkeypatch.setattr("stratlab.analysis.hta_analyses.find_free_bytes", lambda: 20 * MIB)
    assert "0.0176 GiB" in run_hta({0: tmp_path / "absent"}, True, {0: MIB}, tmp_path).reason


def test_what_is_a_lack_of_memory() -> None:
    lacks = ("RuntimeError: can't start new thread", "HTA's process ended with -9: x", "MemoryError: Unable")
    lacks += ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2",)
    lacks += ("SystemError: <built-in function f> returned NULL without setting an exception",)
    other = ("SystemError: unknown opcode", "HTA's process ended with -90: x", "KeyError: 'thread_id'")
    for said in (*lacks, *other):
        assert lacked_memory(said) == (said in lacks)
        assert find_codes(describe_failure(said, 2 << 30)) == (["SL-hta-memory"] if said in lacks else [])


@pytest.mark.parametrize(("limit_mib", "ranks"), [(100, 2)])
def test_too_little_memory_is_named(
    tmp_path: Path, limit_mib: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little for its libraries, or for the traces, whatever the estimate says."""
    monkeypatch.setattr("stratlab.analysis.hta_analyses.choose_ranks", lambda sizes, allowed: list(sizes))
    files = team.simulate(tmp_path / "traces", team.Scene(ranks=ranks, steps=20, layers=16)).files
    sizes = dict.fromkeys(files, MIB)
    statuses = run_hta(files, True, sizes, tmp_path, HtaLimits(memory_bytes=limit_mib * MIB)).statuses
    assert [s.analysis for s in statuses] == [a.name for a in ANALYSES]
    assert {s.status for s in statuses} == {"failed"}
    assert "SL-hta-memory" in find_codes(statuses[0].reason), statuses[0]
