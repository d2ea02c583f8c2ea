"""When reductions begin, and what stage 3 gathers after the update."""

from __future__ import annotations

import pytest

from stratlab_spec.step_time.collectives import ALL_GATHER, ALL_REDUCE, InNode, Links, Network
from stratlab_spec.step_time.strategy_collectives import StrategyCollectives

MIB = 2**20
HOP_S = 1e-3


def build(
    strategy: str, elements: dict[str, int], bucket_bytes: int, whole: tuple[int, ...] = ()
) -> StrategyCollectives:
    row = {2: InNode(0.0, 1e9, 0.0)}  # bytes take no time, hops of gloo a millisecond
    links = Links({ALL_REDUCE: row, ALL_GATHER: row}, Network("none", 1), 2, HOP_S * 1e6)
    return StrategyCollectives(strategy, elements, elements, 2, 1, 2, links, bucket_bytes, 1e12, whole)


def count(seconds: list[float]) -> list[int]:
    """All-reduces of two ranks: two hops each."""
    return [round(one / HOP_S / 2) for one in seconds]


@pytest.mark.parametrize(
    ("strategy", "completes", "sent"),
    [
        ("ddp", True, [2, 1, 3]),  # 3, 3 and 4 MiB in buckets of 1, then of 2 MiB; the rest at the end
        ("zero1", True, [1, 2, 2]),
        ("zero2", False, [1, 2, 2]),
        ("zero1", False, [0, 0, 0]),
        ("ddp", False, [0, 0, 0]),
        ("fsdp", True, [0, 0, 0]),
    ],
)
def test_a_bucket_is_reduced_when_it_is_full_and_the_last_one_at_the_end(
    strategy: str, completes: bool, sent: list[int]
) -> None:
    elements = {"head": 3 * MIB // 4, "layer": 3 * MIB // 4, "start": MIB}
    found = build(strategy, elements, 2 * MIB).fill_buckets(["head", "first", "start"], completes)
    assert count(found) == sent


def test_a_small_model_is_one_bucket_after_the_whole_pass() -> None:
    elements = {"head": 10, "layer": 1000, "start": 10}
    found = build("zero2", elements, 200 * MIB).fill_buckets(["head", "first", "second", "start"], True)
    assert count(found) == [0, 0, 0, 1]


def test_stage_3_gathers_each_weight_that_stays_whole() -> None:
    """One hop each for two ranks."""
    found = build("zero3", {"layer": 10}, MIB, (64, 64, 64)).update(10)
    assert found == pytest.approx(3 * HOP_S, rel=1e-3)
    assert build("fsdp", {"layer": 10}, MIB).update(10) == 0.0
