"""Memory: the configurations that are counted, how a count is judged, the table of batches that fit."""

import json
import re

import pytest

from benchmarks.batch_sizes import BUDGET_GIB, MICRO, NOT_COUNTED, REPORT, STRATEGIES, find_largest
from benchmarks.memory.configurations import CONFIGURATIONS, SMALLEST, Configuration
from benchmarks.memory.report import BUCKETS_GIB, RECORD, SIZES, compare, reckon
from docs.building.batches_page import write_batches
from stratlab.compare.placement import STATE
from stratlab_spec.registry import NETWORKS
from stratlab_spec.strategies import STRATEGIES as STRATEGY_TABLE
from tests.documents.commands import ROOT
from trainer.memory_estimation.rules import read_countable

SHARDED = "model=vit_huge strategy=fsdp"
ALONE = {"peak": 20.0, "parameters": 3.0, "gradients": 3.0, "optimizer state": 6.0}
ALONE |= dict.fromkeys(("master copies", "gradient buckets"), 0.0)


def test_every_configuration_can_be_counted_and_has_a_name_and_figures_of_its_own():
    for one in CONFIGURATIONS:
        named = dict(setting.split("=", 1) for setting in f"run=x {one.settings}".split())
        env = {f"TRAINER_{name.upper()}": value for name, value in named.items()}
        per_node = 4 if "strategy=zeropp" in one.settings else one.ranks  # hpz is refused on one node
        read_countable(env, one.ranks, one.rank, per_node)
    names = [one.name for one in CONFIGURATIONS]
    assert set(json.loads(RECORD.read_text())["gib"]) == set(names) and len(set(names)) == len(names)
    assert {*SMALLEST, *(one.alone for one in CONFIGURATIONS)} - {""} < set(names)


def test_arithmetic_shards_the_state_and_adds_the_blocks_in_use_and_the_work():
    sizes = SIZES["vit_huge"]
    in_use = (2 * (sizes.root + 2 * sizes.block) + 4 * sizes.block) / 2**30
    for settings, gib in (
        (SHARDED, 8.0 + sizes.gib / 2 + in_use),
        (f"{SHARDED} dp_shard=4", 8.0 + sizes.gib + in_use),
        ("model=vit_huge strategy=zero2", 8.0 + sizes.gib * (1 + 4 / 8) + BUCKETS_GIB),
    ):
        assert reckon(Configuration("x", settings), ALONE) == pytest.approx(gib)


def test_a_figure_out_of_one_percent_is_told():
    found = [
        compare({"peak": 10.0}, {"peak": counted})["peak"]["inside"] for counted in (10.09, 9.91, 10.11, 9.89)
    ]
    assert found == [True, True, False, False]


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
def test_the_largest_power_of_two_that_fits(peak, per_sample, micro, largest):
    assert find_largest(peak, per_sample, micro) == largest


def test_every_network_has_rows_that_follow_from_their_figures_and_the_page_shows_them():
    assert {row["model"] for row in ROWS} == MICRO.keys() and len(ROWS) == len(MICRO) * len(STRATEGIES)
    assert MICRO.keys() | NOT_COUNTED.keys() <= NETWORKS.keys()
    wanted = {}
    for row in ROWS:
        micro, peak, largest = row["micro_batch_size"], row["peak_gib"], row["largest"]
        assert micro == MICRO[row["model"]][STRATEGIES.index(row["strategy"])]
        assert row["fits"] is (peak <= BUDGET_GIB)
        assert largest == find_largest(peak, row["per_sample_gib"], micro)
        wanted.setdefault(row["model"], []).append(f"{micro}: {peak:.2f} GiB, up to {largest}")
    shown = re.findall(r"^\| `(\w+)` \| (.+) \|$", write_batches(ROOT), re.MULTILINE)
    assert {name: cells.split(" | ") for name, cells in shown} == wanted


def test_bytes_per_parameter_on_the_page_are_what_runs_are_held_against():
    words = {"parameters": 4.0, "gradients": 4.0, "optimizer": 8.0}
    told = set()
    for strategy, row in STRATEGY_TABLE.items():
        promise = row.holds
        ranks = 4 if strategy == "hsdp" else 8
        held = sum(words[kind] / (ranks if kind in promise.divided else 1) for kind in STATE)
        held += 4 / ranks if promise.copies else 0
        if cell := re.search(rf"^\| `{strategy}` \| [^|]+ \| ([0-9.]+) \|", PAGE, re.MULTILINE):
            assert float(cell[1]) == held, strategy
            told.add(STRATEGY_TABLE[strategy].file)
    assert told == {row.file for row in STRATEGY_TABLE.values()}, "of each file's strategies one at least"
