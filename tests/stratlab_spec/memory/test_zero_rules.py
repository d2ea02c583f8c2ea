"""What zero1 and zero2 hold and reduce, in numbers small enough to add up by hand."""

import pytest

from stratlab_spec.memory.recording import BACKWARD, Weight
from stratlab_spec.memory.simulation import HeldMemory
from stratlab_spec.memory.zero_rules import ZeroRules

WEIGHT = Weight("weight", (1024,), True, True)
BYTES = 4 * 1024


def build_rules(stage: int, *, ranks: int = 2, bucket: int = 1024, accumulates: bool = False) -> ZeroRules:
    """Return the rules of four weights of 1,024 elements, two of them in one layer."""
    return ZeroRules(
        first=[WEIGHT],
        blocks=[[WEIGHT, WEIGHT]],
        last=[WEIGHT],
        shards=ranks,
        stage=stage,
        bucket_elements=bucket,
        buckets=2,
        moments=2,
        accumulates=accumulates,
    )


def pass_backward(rules: ZeroRules) -> HeldMemory:
    held = HeldMemory()
    rules.hold_state(held)
    held.begin("backward")
    for segment, layer, gradients in (
        (f"head{BACKWARD}", -1, 1),
        (f"last{BACKWARD}", 0, 2),
        (f"start{BACKWARD}", -1, 1),
    ):
        rules.enter(held, segment, layer)
        for _ in range(gradients):
            rules.take_gradient(held, BYTES)
            rules.complete_gradient(held, BYTES)
        rules.leave(held, segment, layer)
    held.look()
    return held


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_masters_and_moments_are_one_share_of_the_weights(ranks):
    held = HeldMemory()
    build_rules(1, ranks=ranks).hold_state(held)
    assert held.held["parameters"] == 4 * BYTES
    assert held.held["master copies"] == 4 * BYTES / ranks
    assert held.held["optimizer state"] == 2 * 4 * BYTES / ranks


def test_shares_are_equal_and_in_whole_blocks():
    held = HeldMemory()
    build_rules(1, ranks=3).hold_state(held)
    assert held.held["master copies"] == 5632  # 4,096 / 3 elements, as 1,366; 5,464 bytes in blocks of 512
    assert held.held["parameters"] == 16896  # 3 x 1,366 elements


@pytest.mark.parametrize(("stage", "gradients"), [(1, 4), (2, 2)])
def test_between_micro_batches_zero1_keeps_all_gradients_and_zero2_its_own(stage, gradients):
    held = HeldMemory()
    build_rules(stage, accumulates=True).hold_state(held)
    assert held.held["gradients"] == gradients * BYTES


@pytest.mark.parametrize("bucket", [512, 1024])
@pytest.mark.parametrize("stage", [1, 2])
def test_after_a_pass_a_rank_holds_its_gradients_and_no_bucket(stage, bucket):
    held = pass_backward(build_rules(stage, bucket=bucket))
    assert held.held["gradients"] == 2 * BYTES
    assert held.held["gradient buckets"] == 0


def test_slices_of_two_ranks_are_joined_in_a_copy():
    _, apart = pass_backward(build_rules(1, bucket=1024)).fullest["backward"]
    _, joined = pass_backward(build_rules(1, bucket=4096)).fullest["backward"]
    assert apart["gradient buckets"] == 2 * BYTES
    assert joined["gradient buckets"] == 2 * 4 * BYTES + 4 * BYTES  # two buckets of all weights, and the copy
