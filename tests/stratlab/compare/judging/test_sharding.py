"""What a rank holds against an even share and against the promise: figures by hand, and planted ones that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.compare.comparison import compare
from stratlab.compare.judging.sharding import KINDS, PROMISES, say_sharding
from stratlab.compare.reading.comparison_folder import load_runs
from stratlab.compare.showing.sharding_section import build_sharding_section
from stratlab.compare.showing.summary_page import build_markdown
from tests.stratlab.example_run import build_run_dir
from trainer.settings.strategy_table import STRATEGIES

GIB = 2**30
WEIGHTS = 1000


def held(parameters: float, gradients: float, optimizer: float) -> dict[str, float]:
    """Of a rank, in bytes per parameter."""
    words = zip(KINDS, (parameters, gradients, optimizer), strict=True)
    return {kind: size * WEIGHTS / GIB for kind, size in words}


def judge(
    root: Path, strategy: str, state: dict[str, float], ranks: int = 4, **changes: Any
) -> dict[str, Any]:
    shard = 1 if strategy in ("single", "ddp") else ranks
    axes = changes.pop("axes", {"dp_replicate": ranks // shard, "dp_shard": shard})
    changes = {"parameters": WEIGHTS, "trainable_parameters": WEIGHTS, **changes}
    build_run_dir(
        root, "run", strategy, world_size=ranks, state_memory_gib=state, axes=axes, **_lasting(changes)
    )
    _put(root / "run", changes)
    (entry,) = compare(load_runs(root))["sharding"]
    return dict(entry)


def _lasting(changes: dict[str, Any]) -> dict[str, Any]:
    """`parameters` is also a kind of what a rank holds: that one is put in by hand."""
    return {name: value for name, value in changes.items() if name not in ("parameters", "dtypes")}


def _put(run: Path, changes: dict[str, Any]) -> None:
    config = json.loads((run / "config.json").read_text())
    config["resolved"]["parameters"] = changes["parameters"]
    (run / "config.json").write_text(json.dumps(config))
    for file in (run / "ranks").glob("rank*.json"):
        rank = json.loads(file.read_text())
        rank["dtypes"] |= changes.get("dtypes", {})
        file.write_text(json.dumps(rank))


PROMISED = {  # strategy -> bytes per parameter of a rank of 4, AdamW in fp32, by hand; of the state of 16
    "single": (4, 4, 8),
    "ddp": (4, 4, 8),
    "fsdp": (1, 1, 2),
    "zero1": (4 + 1, 4, 2),
    "zero2": (4 + 1, 1, 2),
    "zero3": (1 + 1, 1, 2),
    "zeropp": (1 + 1 + 2, 1, 2),  # and what two ranks of a node share once more
}


def test_each_strategy_has_its_promise() -> None:
    assert PROMISES.keys() == STRATEGIES.keys()


@pytest.mark.parametrize("strategy", PROMISED)
def test_what_is_promised_by_hand(tmp_path: Path, strategy: str) -> None:
    ranks = 1 if strategy == "single" else 4
    entry = judge(tmp_path, strategy, held(*PROMISED[strategy]), ranks)
    total = sum(PROMISED[strategy])
    assert entry["state_gib"] * GIB == pytest.approx(16 * WEIGHTS)
    assert entry["even_share_gib"] * GIB == pytest.approx(16 * WEIGHTS / ranks)
    assert entry["promised_gib"] * GIB == pytest.approx(total * WEIGHTS)
    assert entry["sharding_effectiveness_pct"] == pytest.approx(100 * 16 / ranks / total)
    assert entry["promised_effectiveness_pct"] == pytest.approx(entry["sharding_effectiveness_pct"])
    assert entry["kept"] is True and entry["why"] == "as promised"


def test_without_hpz_there_is_no_copy_in_the_node(tmp_path: Path) -> None:
    entry = judge(tmp_path, "zeropp", held(1 + 1, 1, 2), zeropp="qwz")
    assert entry["kept"] is True, entry["why"]
    entry = judge(tmp_path, "zeropp", held(1 + 1, 1, 2), zeropp="qwz,hpz")
    assert entry["kept"] is False and entry["why"].startswith(
        "recorded before the copy in each node was counted"
    )
    entry = judge(tmp_path, "zeropp", held(1, 1, 2), zeropp="qwz,hpz")
    assert entry["why"] == "less parameters than promised"


def test_replicas_of_shards_divide_by_the_shards_alone(tmp_path: Path) -> None:
    entry = judge(tmp_path, "hsdp", held(2, 2, 4), axes={"dp_replicate": 2, "dp_shard": 2})
    assert entry["divided_by"] == 2 and entry["kept"] is True
    assert entry["sharding_effectiveness_pct"] == pytest.approx(50.0)


def test_sixteen_bits_have_their_master_copies_in_the_state(tmp_path: Path) -> None:
    types = {"parameters": ["bfloat16", "float32"], "gradients": ["bfloat16"]}
    entry = judge(tmp_path, "zero2", held(2 + 1, 0.5, 2), dtypes=types)
    assert entry["state_gib"] * GIB == pytest.approx((2 + 4 + 2 + 8) * WEIGHTS)
    assert entry["kept"] is True, entry["why"]


def test_of_adapters_only_what_is_trained_has_gradients(tmp_path: Path) -> None:
    entry = judge(tmp_path, "ddp", held(4, 0.04, 0.08), trainable_parameters=WEIGHTS // 100)
    assert entry["state_gib"] * GIB == pytest.approx(4.12 * WEIGHTS) and entry["kept"] is True


def test_sgd_keeps_what_its_momentum_needs(tmp_path: Path) -> None:
    entry = judge(tmp_path, "ddp", held(4, 4, 4), optimizer="sgd", momentum=0.9)
    assert entry["state_gib"] * GIB == pytest.approx(12 * WEIGHTS) and entry["kept"] is True
    entry = judge(tmp_path, "ddp", held(4, 4, 4), optimizer="sgd", momentum=0.0)
    assert entry["why"] == "more optimizer than promised"


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_planted_amount_is_seen(tmp_path: Path, strategy: str, kind: int, factor: float) -> None:
    """A rank that holds twice, or half, of what is promised of one kind."""
    amounts = list(PROMISED[strategy])
    amounts[kind] = amounts[kind] * factor
    entry = judge(tmp_path, strategy, held(*amounts))
    word = "more" if factor > 1 else "less"
    assert entry["kept"] is False and entry["why"].startswith(f"{word} {KINDS[kind]} than promised")
    assert say_sharding([entry])[0].startswith("run holds ")


def test_one_rank_that_holds_it_all_is_the_one_that_counts(tmp_path: Path) -> None:
    judge(tmp_path, "fsdp", held(1, 1, 2))
    file = tmp_path / "run/ranks/rank2.json"
    rank = json.loads(file.read_text()) | {"state_memory_gib": held(4, 4, 8)}
    file.write_text(json.dumps(rank))
    (entry,) = compare(load_runs(tmp_path))["sharding"]
    assert entry["kept"] is False and entry["sharding_effectiveness_pct"] == pytest.approx(25.0)


def test_small_parameters_of_stage_3_are_named(tmp_path: Path) -> None:
    entry = judge(tmp_path, "zero3", held(4 + 1 + 1, 1, 2))
    usual = "parameters of fewer elements than persistent_elements stay whole on every rank"
    assert entry["why"] == f"more parameters than promised ({usual})"


def test_stage_1_may_have_reduced_its_gradients_already(tmp_path: Path) -> None:
    assert judge(tmp_path, "zero1", held(5, 1, 2))["kept"] is True
    assert judge(tmp_path, "zero1", held(5, 8, 2))["kept"] is False


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"parameters": None}, "not known: how many parameters it has and trains"),
        ({"optimizer": "lion"}, "not known: what the optimizer lion keeps"),
        (
            {"dtypes": {"parameters": ["int4"]}},
            "not known: the element types of its parameters and gradients",
        ),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    entry = judge(tmp_path, "ddp", held(4, 4, 8), **changes)
    assert entry["why"] == why and entry["kept"] is None and entry["sharding_effectiveness_pct"] is None
    assert say_sharding([entry]) == []


def test_a_rank_that_does_not_tell_makes_it_unknown(tmp_path: Path) -> None:
    judge(tmp_path, "fsdp", held(1, 1, 2))
    (tmp_path / "run/ranks/rank3.json").unlink()
    (entry,) = compare(load_runs(tmp_path))["sharding"]
    assert entry["why"].startswith("not known: what its ranks hold")


def test_page_and_markdown_show_it(tmp_path: Path) -> None:
    judge(tmp_path, "fsdp", held(4, 1, 2))
    report = compare(load_runs(tmp_path))
    (section,) = build_sharding_section(report["sharding"])
    assert "not kept" in section.html and "more parameters than promised" in section.html
    assert "run: even share" in section.html and "<svg" in section.html
    table, _, below = section.html.partition("</table>")
    assert "more parameters" not in table and '<p class="note">run: more parameters than promised' in below
    text = build_markdown(report)
    assert "## Sharding" in text and "not kept" in text and "57.1" in text
    assert report["runs"][0]["sharding_effectiveness_pct"] == pytest.approx(400 / 7)


def test_repeats_that_hold_the_same_share_a_sentence(tmp_path: Path) -> None:
    one = judge(tmp_path / "one", "zero2", held(4 + 1, 2, 2))
    other = judge(tmp_path / "other", "zero2", held(4 + 1, 3, 2))
    entries = [one | {"run": "a"}, one | {"run": "b"}, other | {"run": "c"}]
    first, second = say_sharding(entries)
    assert first.startswith("a, b hold ") and "more gradients than promised" in first
    assert second.startswith("c holds ")
