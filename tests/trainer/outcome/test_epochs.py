"""What an epoch's line says, by hand: batches that cross into the next epoch, a restart inside one."""

from __future__ import annotations

import pytest

from trainer.metrics.progress import EpochCount


def run(samples: int, batch: int, steps: range, correct: float | None = 3.0) -> dict[int, dict]:
    """Step -> line; each step ends at its own second and takes half of one; its loss is its number."""
    count = EpochCount(samples)
    found = {step: count.add(step, float(step), 500.0, batch, float(step), correct) for step in steps}
    return {step: line for step, line in found.items() if line}


def test_an_epoch_lasts_from_its_first_step_to_its_last() -> None:
    assert run(10, 5, range(1, 5)) == {
        2: {"epoch": 1, "epoch_time_s": 1.5, "epoch_train_loss": 1.5, "epoch_train_accuracy_pct": 60.0},
        4: {"epoch": 2, "epoch_time_s": 2.0, "epoch_train_loss": 3.5, "epoch_train_accuracy_pct": 60.0},
    }


def test_a_batch_that_crosses_counts_with_the_epoch_that_it_ends() -> None:
    found = run(10, 4, range(1, 6))  # 4, 8, 12 | 16, 20
    assert {step: (line["epoch"], line["epoch_train_loss"]) for step, line in found.items()} == {
        3: (1, pytest.approx((1 + 2 + 3) / 3)),
        5: (2, pytest.approx((4 + 5) / 2)),
    }


@pytest.mark.parametrize(
    ("first", "epochs"),
    [(3, [2, 3]), (4, [3])],  # behind a whole epoch; inside the second
)
def test_after_a_restart_only_whole_epochs_are_told(first: int, epochs: list[int]) -> None:
    assert [line["epoch"] for line in run(10, 5, range(first, 7)).values()] == epochs
