"""What real traces of other projects mean, against figures computed by hand from their JSON (in the README of
tests/data/traces), and their tables against each other."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratlab.analysis.measuring.measure import measure_traces
from stratlab.analysis.measuring.rank import RankAnalysis
from tests.stratlab.real_traces import EVERY, unpack

Ranks = list[RankAnalysis]
Read = Callable[[str], Ranks]


@pytest.fixture(scope="module")
def read() -> Iterator[Read]:
    with tempfile.TemporaryDirectory() as folder:

        @functools.cache
        def measure(name: str) -> Ranks:
            return measure_traces(unpack(name, Path(folder) / name), processes=1).ranks

        yield measure


def total(ranks: Ranks, name: str) -> float:
    """Over the steps of rank 0, ms."""
    return sum(getattr(row, name) for row in ranks[0].rows)


def share(ranks: Ranks, name: str, of: str) -> float:
    return 100 * total(ranks, name) / total(ranks, of)


def all_to_all(ranks: Ranks, rank: int, name: str) -> float | None:
    (row,) = (row for row in ranks[rank].collectives if row.collective == "all_to_all")
    return getattr(row, name)


def all_reduce(ranks: Ranks, name: str) -> float | None:
    (row,) = (row for row in ranks[0].collectives if row.collective == "all_reduce")
    return getattr(row, name)


TEAM, DATA, DEVICE, LATE = (
    "dlrm_8xv100",
    "resnet50_dataloader_v100",
    "mtia_hccl_rank0",
    "sglang_prefilldecode_mi300x",
)
FIGURES: list[tuple[str, str, Callable[[Ranks], float | None], float]] = [
    # trace, what, how it is read, by hand
    ("resnet_checkpointing_mi300x", "step 1", lambda r: r[0].rows[0].step_ms, 18.980),
    ("resnet_checkpointing_mi300x", "step 2", lambda r: r[0].rows[1].step_ms, 18.983),
    ("resnet_checkpointing_mi300x", "step 3", lambda r: r[0].rows[2].step_ms, 18.554),
    ("in_flight_a100_rank0", "step 1", lambda r: r[0].rows[0].step_ms, 216.286),
    (DATA, "data, % of the labels of steps", lambda r: share(r, "data_wait_ms", "host_step_ms"), 33.9),
    (DATA, "data, % of the idle time", lambda r: share(r, "data_wait_ms", "idle_ms"), 77),
    (DEVICE, "compute", lambda r: total(r, "compute_ms"), 13_256),
    (DEVICE, "host wait", lambda r: total(r, "host_wait_ms"), 65),
    (LATE, "host wait", lambda r: total(r, "host_wait_ms"), 0.99),
    (LATE, "idle", lambda r: total(r, "idle_ms"), 494),
    (LATE, "between launch and start", lambda r: total(r, "launch_wait_ms"), 493),
    *((TEAM, f"all-to-all of rank {rank}", functools.partial(all_to_all, rank=rank, name="total_ms"), ms)
      for rank, ms in {0: 3.999, 1: 9.506, 3: 8.002, 7: 0.389}.items()),
    *((TEAM, f"exposed waiting, rank {rank}", functools.partial(all_to_all, rank=rank, name="exposed_wait_ms"), ms)
      for rank, ms in {0: 3.840, 1: 9.347, 3: 7.851, 7: 0.295}.items()),
    (TEAM, "its mean", lambda r: sum(all_to_all(r, i, "exposed_wait_ms") or 0 for i in range(8)) / 8, 4.61),
    (TEAM, "waiting, % of the step",
     lambda r: 100 * sum(a.rows[0].straggler_ms for a in r) / sum(a.rows[0].step_ms for a in r), 36),
    (TEAM, "rank 7 is last", lambda r: all_to_all(r, 7, "arrived_last"), 4),
    (TEAM, "of calls", lambda r: all_to_all(r, 7, "count"), 5),
    (TEAM, "all-reduce waiting", lambda r: all_reduce(r, "wait_ms"), 1.624),
    (TEAM, "all-reduce waiting, exposed", lambda r: all_reduce(r, "exposed_wait_ms"), 1.503),
    (TEAM, "all-reduce", lambda r: all_reduce(r, "total_ms"), 1.799),
    ("alltoall_sendrecv_a100_rank3", "all-to-all", lambda r: all_to_all(r, 0, "count"), 42),
]  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "what", "measure", "by_hand"), FIGURES, ids=[f"{t}: {w}" for t, w, *_ in FIGURES]
)
def test_figure(
    read: Read, trace: str, what: str, measure: Callable[[Ranks], float | None], by_hand: float
) -> None:
    digits = len(str(by_hand).partition(".")[2])
    assert measure(read(trace)) == pytest.approx(by_hand, abs=0.6 * 10**-digits)


@pytest.mark.parametrize("trace", EVERY)
def test_tables_do_not_contradict_each_other(read: Read, trace: str) -> None:
    for rank in read(trace):
        for row in rank.rows:
            waits = (
                row.data_wait_ms,
                row.host_wait_ms,
                row.launch_wait_ms,
                row.kernel_wait_ms,
                row.other_idle_ms,
            )
            assert sum(ms for ms in waits if ms is not None) == pytest.approx(row.idle_ms, abs=1e-5)
            parts = row.compute_ms + row.comm_exposed_ms + row.copy_exposed_ms + row.idle_ms
            assert parts == pytest.approx(row.step_ms, abs=1e-5)
            assert (row.data_wait_ms is None) == ("data" not in rank.phases) == (row.data_ms is None)
            mine = [phase for phase in rank.phase_rows if phase.step == row.step]
            assert sum(phase.idle_ms for phase in mine) == pytest.approx(row.idle_ms, abs=1e-5)
        parts_ms = sum(rank.parts_ns.values()) / 1e6
        assert parts_ms == pytest.approx(sum(row.step_ms for row in rank.rows), abs=1e-5)
        of_kind = {
            kind: sum(k.sum_ms for k in rank.kernels if k.type == kind) for kind in ("compute", "comm")
        }
        if rank.source == "gpu":  # kernels are over the whole recording, and several run at once
            assert of_kind["compute"] >= sum(row.compute_ms for row in rank.rows) - 1e-5
            assert of_kind["comm"] >= sum(row.comm_ms for row in rank.rows) - 1e-5
            assert bool(of_kind["comm"]) >= bool(rank.collectives)
            # every launch is in the trace or none is: the steps wait for the host only where a stream does
            waits_ms = sum(row.host_wait_ms + row.launch_wait_ms for row in rank.rows)
            assert not waits_ms or rank.idle
        else:
            assert not rank.kernels and not rank.idle and not rank.copies


@pytest.mark.parametrize(
    ("trace", "kind"),
    [("timesformer_mi300x", "first"), (LATE, "label"), ("nccl_a100", "short"), (DEVICE, None)],
)
def test_kind_of_gaps(read: Read, trace: str, kind: str | None) -> None:
    assert read(trace)[0].gaps.kind == kind
