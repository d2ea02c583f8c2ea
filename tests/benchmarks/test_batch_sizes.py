"""The table of batches that fit: its arithmetic, one pair counted, and the page that shows it."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.batch_sizes import BUDGET_GIB, MICRO, NOT_COUNTED, REPORT, STRATEGIES, find_largest
from stratlab.compare.judging.sharding import KINDS, PROMISES
from tests.documents.commands import ROOT
from trainer.settings.network_table import NETWORKS
from trainer.settings.strategy_table import STRATEGIES as STRATEGY_TABLE

PAGE = (ROOT / "docs/strategies.md").read_text()
ROWS = json.loads((ROOT / REPORT).read_text())["rows"]


def test_every_network_has_its_rows_or_the_reason_why_not() -> None:
    assert {row["model"] for row in ROWS} == MICRO.keys()
    assert len(ROWS) == len(MICRO) * len(STRATEGIES) and not [row for row in ROWS if "failed" in row]
    finetuned = {name for name in NETWORKS if name.endswith("_finetuned")}
    assert MICRO.keys() | NOT_COUNTED.keys() == NETWORKS.keys() - finetuned


@pytest.mark.parametrize(
    ("peak", "per_sample", "micro", "largest"),
    [
        (10.0, 0.25, 32, 256),  # 2 GiB, and 0.25 for each: 66 at 256, 130 at 512
        (BUDGET_GIB, 1.0, 4, 4),
        (BUDGET_GIB + 0.01, 1.0, 4, 2),
        (200.0, 1.0, 8, 0),
        (1.0, 0.0, 8, 4096),
    ],
)
def test_the_largest_power_of_two_that_fits(peak: float, per_sample: float, micro: int, largest: int) -> None:
    assert find_largest(peak, per_sample, micro) == largest


def test_the_rows_follow_from_their_own_figures() -> None:
    for row in ROWS:
        assert row["micro_batch_size"] == MICRO[row["model"]][STRATEGIES.index(row["strategy"])]
        assert row["fits"] is (row["peak_gib"] <= BUDGET_GIB)
        assert row["largest"] == find_largest(row["peak_gib"], row["per_sample_gib"], row["micro_batch_size"])


def test_the_page_shows_the_report() -> None:
    section = PAGE.partition("## Batches that fit")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert [name for name, _ in shown] == list(MICRO)
    for name, cells in shown:
        wanted = [row for row in ROWS if row["model"] == name]
        assert cells.split(" | ") == [
            f"{row['micro_batch_size']}: {row['peak_gib']:.2f} GiB, up to {row['largest']}" for row in wanted
        ]


def test_bytes_per_parameter_on_the_page_are_what_runs_are_held_against() -> None:
    words = {"parameters": 4.0, "gradients": 4.0, "optimizer": 8.0}
    ranks = dict.fromkeys(PROMISES, 8) | {"hsdp": 4}
    told = {}
    for strategy, promise in PROMISES.items():
        held = sum(words[kind] / (ranks[strategy] if kind in promise.divided else 1) for kind in KINDS)
        held += 4 / ranks[strategy] if promise.copies else 0
        cell = re.search(rf"^\| `{strategy}` \| [^|]+ \| ([0-9.]+) \|", PAGE, re.MULTILINE)
        if cell:
            told[strategy] = float(cell[1])
            assert told[strategy] == held, strategy
    files = {row.file for row in STRATEGY_TABLE.values()}
    assert {STRATEGY_TABLE[name].file for name in told} == files, "of each file's strategies one at least"
