"""How far a run is from its reference."""

from __future__ import annotations

from pathlib import Path

from tests.parity.suite import DID_NOT_END, FLOOR, Difference


def compare(run: Path, reference: Path) -> Difference:
    """Losses and norms absolutely, first-step gradients relative to each parameter's own norm.

    Gradients are read off weights, so equal ones can differ by one step of what fp32 can hold: 2.4e-7 at a LayerNorm's
    weight of 1 and a rate of 0.5, above the gate where the gradient is clipped. That much is taken off each element.
    """
    import torch

    if not run.exists():
        return DID_NOT_END
    ours, theirs = (torch.load(path, weights_only=True) for path in (run, reference))
    assert ours["gradients"].keys() == theirs["gradients"].keys()
    errors: dict[str, float] = {}
    if theirs["gradients"]:
        whole = torch.stack([g.norm() for g in theirs["gradients"].values()]).norm()
        assert whole > 0
        for name, gradient in theirs["gradients"].items():
            beyond = (ours["gradients"][name] - gradient).abs() - theirs["resolution"][name]
            errors[name] = float(beyond.clamp_min(0.0).norm() / (gradient.norm() + FLOOR * whole))
    worst = max(errors, key=lambda name: errors[name], default="")
    loss, norm = (_furthest(ours[name], theirs[name]) for name in ("losses", "norms"))
    return Difference(loss, norm, errors.get(worst), worst)


def _furthest(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))
