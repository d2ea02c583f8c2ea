"""Rows of SimuMax: torch's peak of the fullest rank under Megatron-LM, micro-batches of one row, ZeRO-1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.backtest.counts import Layout, Shape, build_operations, read_engine, read_table
from benchmarks.backtest.report import Bar, Row
from stratlab_spec.memory.profiles import GIB

FILE = "simumax_b200_step_memory.csv"
MOST_PCT = 3.0


def read_rows(path: Path) -> Iterator[Row]:
    """Yield every dense row with its prediction; rows of experts have no shapes in the source's table."""
    engine = read_engine("megatron")
    for given in read_table(path):
        if not given["hidden"]:
            continue
        number = {
            name: int(given[name]) for name in ("layers", "hidden", "heads", "kv_heads", "intermediate")
        }
        shape = Shape(**number, vocabulary=int(given["vocab"]))
        dp, tp, pp, cp = (int(given[name]) for name in ("dp", "tp", "pp", "cp"))
        layout = Layout(dp, tp, pp, cp, 1, int(given["micro_batches"]), int(given["seq_len"]) // cp)
        peak = build_operations(engine, shape, layout).peak(1, layout.ranks)
        yield Row(
            given["case"], peak.total / GIB, float(given["measured_alloc_gib"]), f"{given['model']} tp{tp}"
        )


def judge(rows: list[Row]) -> list[Bar]:
    worst = max(abs(row.error_pct) for row in rows)
    return [Bar("largest error of a dense row", worst, "<=", MOST_PCT, "%", len(rows))]
