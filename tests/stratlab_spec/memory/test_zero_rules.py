"""What zero1 and zero2 hold and reduce, in numbers small enough to add up by hand."""

import pytest

from stratlab_spec.memory.recording import BACKWARD, Weight
from stratlab_spec.memory.simulation import HeldMemory
from stratlab_spec.memory.zero_rules import ZeroRules

WEIGHT = Weight("weight", (1024,), True, True)
BYTES = 4 * 1024


def build_rules(
    stage: int, *, ranks: int = 2, bucket: int = 1024, accumulates: bool = False, **more
) -> ZeroRules:
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
        **more,
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


def test_an_offloaded_part_needs_room_for_copies_on_both_sides():
    """Of four weights two belong to this rank; zero2 sums up their gradients in buffers of their own."""
    held = HeldMemory()
    build_rules(2, accumulates=True, offloads=True).hold_state(held)
    assert held.held == {"parameters": 4 * BYTES, "other": BYTES}
    assert held.host == {
        "master copies": 2 * BYTES,
        "optimizer state": 4 * BYTES,
        "gradients": 2 * BYTES + 2 * BYTES,
        "other": BYTES + 2 * BYTES,
    }


@pytest.mark.parametrize("stage", [1, 2])
def test_offloaded_gradients_leave_the_device_after_their_norm(stage):
    """Two buckets, the norm of a gradient in fp64, the next gradient that waits for it, and the room for copies."""
    held = pass_backward(build_rules(stage, offloads=True))
    assert held.held["gradients"] == 0
    assert held.fullest["backward"][0] == 4 * BYTES + 2 * BYTES + 2 * BYTES + BYTES + BYTES


def test_an_offloaded_update_takes_host_memory_only():
    held = HeldMemory()
    build_rules(2, offloads=True, update_copies=1).update(held)
    assert (held.total, held.host) == (0, {"other": 2 * BYTES})


@pytest.mark.parametrize(("stage", "gradients", "buckets"), [(1, 4, 2), (2, 2, 0)])
def test_after_an_earlier_micro_batch_zero1_has_reduced_nothing(stage, gradients, buckets):
    held = pass_backward(build_rules(stage, completes=False))
    assert held.held["gradients"] == gradients * BYTES
    assert held.held["gradient buckets"] == buckets * BYTES


@pytest.mark.parametrize(("ranks", "rank", "gradients"), [(16, 0, 3 + 1 + 1), (2, 1, 1 + 1 + 2)])
def test_offloaded_gradients_above_the_bucket_are_copied_and_only_own_ones_freed(ranks, rank, gradients):
    """Buckets of half a gradient. zero1 keeps three that belong to others, while the fourth one is copied.

    The two that the second rank owns are freed after their norms, each while the next one waits.
    """
    held = pass_backward(build_rules(1, ranks=ranks, rank=rank, bucket=512, offloads=True))
    assert held.fullest["backward"][0] == (4 + 1 + 1 + gradients) * BYTES
