"""How finely a gradient can be read off weights, and what is still seen above that."""

from pathlib import Path

import torch

from tests.parity.matrix import compare
from tests.parity.suite import Gates

RATE = 0.5
STEP = 2.0**-23 / RATE
"""Between two gradients read off neighbouring weights of fp32 above 1."""


def write(path: Path, gradient: torch.Tensor) -> Path:
    resolution = {"norm.weight": torch.full_like(gradient, STEP)}
    gradients = {"norm.weight": gradient}
    torch.save({"losses": [1.0], "norms": [1.0], "gradients": gradients, "resolution": resolution}, path)
    return path


def difference(folder: Path, ours: torch.Tensor, theirs: torch.Tensor) -> float:
    found = compare(write(folder / "ours.pt", ours), write(folder / "theirs.pt", theirs)).gradient
    assert found is not None
    return found


def test_neighbouring_weights_are_no_difference_and_what_is_larger_is_seen(tmp_path):
    reference = torch.full((64,), 2e-4) + STEP * torch.arange(64)  # as small as a clipped LayerNorm's
    rounded, wrong, broken = reference.clone(), reference.clone(), reference.clone()
    rounded[[3, 9]] -= STEP  # a tie, rounded to the other side
    assert (rounded - reference).norm() / reference.norm() > Gates().gradient
    assert difference(tmp_path, rounded, reference) == 0.0
    wrong[3] -= 3 * STEP
    broken[5] = torch.nan
    for other in (wrong, reference * 1.01, broken):
        assert not difference(tmp_path, other, reference) <= Gates().gradient
