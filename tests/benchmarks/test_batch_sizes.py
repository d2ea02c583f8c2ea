"""The table of batches that fit: its arithmetic, and the page that shows it."""

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


@pytest.mark.parametrize(
    ("peak", "per_sample", "micro", "largest"),
    [
        (10.0, 0.25, 32, 256),  # 2 GiB, and 0.25 for each: 66 at 256, 130 at 512
        (BUDGET_GIB + 0.01, 1.0, 4, 2),
        (200.0, 1.0, 8, 0),
        (1.0, 0.0, 8, 4096),
    ],
)
def test_the_largest_power_of_two_that_fits(peak: float, per_sample: float, micro: int, largest: int) -> None:
    assert find_largest(peak, per_sample, micro) == largest


def test_every_network_has_rows_that_follow_from_their_figures_and_the_page_shows_them() -> None:
    assert {row["model"] for row in ROWS} == MICRO.keys() and len(ROWS) == len(MICRO) * len(STRATEGIES)
    finetuned = {name for name in NETWORKS if name.endswith("_finetuned")}
    assert MICRO.keys() | NOT_COUNTED.keys() == NETWORKS.keys() - finetuned
    wanted: dict[str, list[str]] = {}
    for row in ROWS:
        micro, peak, largest = row["micro_batch_size"], row["peak_gib"], row["largest"]
        assert micro == MICRO[row["model"]][STRATEGIES.index(row["strategy"])]
        assert row["fits"] is (peak <= BUDGET_GIB)
        assert largest == find_largest(peak, row["per_sample_gib"], micro)
        wanted.setdefault(row["model"], []).append(f"{micro}: {peak:.2f} GiB, up to {largest}")
    section = PAGE.partition("## Batches that fit")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert {name: cells.split(" | ") for name, cells in shown} == wanted


def test_bytes_per_parameter_on_the_page_are_what_runs_are_held_against() -> None:
    words = {"parameters": 4.0, "gradients": 4.0, "optimizer": 8.0}
    told = set()
    for strategy, promise in PROMISES.items():
        ranks = 4 if strategy == "hsdp" else 8
        held = sum(words[kind] / (ranks if kind in promise.divided else 1) for kind in KINDS)
        held += 4 / ranks if promise.copies else 0
        if cell := re.search(rf"^\| `{strategy}` \| [^|]+ \| ([0-9.]+) \|", PAGE, re.MULTILINE):
            assert float(cell[1]) == held, strategy
            told.add(STRATEGY_TABLE[strategy].file)
    assert told == {row.file for row in STRATEGY_TABLE.values()}, "of each file's strategies one at least"
