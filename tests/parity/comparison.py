"""How far a run is from its reference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.parity.cases import Case

FLOOR = 1e-3
"""Of the whole gradient's norm: below it a parameter's own gradient is rounding noise, not a yardstick."""


@dataclass(frozen=True)
class Difference:
    """Largest differences between two runs, and the parameter whose gradient is furthest off."""

    loss: float
    grad_norm: float
    gradient: float | None
    """None where it cannot be told (Adam)."""
    parameter: str


def compare(run: Path, reference: Path) -> Difference:
    """Losses and norms absolutely, first-step gradients relative to each parameter's own norm.

    A run without a file has not ended: it is infinitely far off.
    Gradients are read off weights, so equal ones can differ by one step of what fp32 can hold: 2.4e-7 at a LayerNorm's
    weight of 1 and a rate of 0.5, above the gate where the gradient is clipped. That much is taken off each element.
    """
    import torch

    if not run.exists():
        return Difference(float("inf"), float("inf"), None, "did not end")

    ours, theirs = (torch.load(path, weights_only=True) for path in (run, reference))
    assert ours["gradients"].keys() == theirs["gradients"].keys()
    errors: dict[str, float] = {}
    if theirs["gradients"]:
        whole = torch.stack([g.norm() for g in theirs["gradients"].values()]).norm()
        assert whole > 0
        for name, gradient in theirs["gradients"].items():
            beyond = (ours["gradients"][name] - gradient).abs() - theirs["resolution"][name]
            apart = beyond.clamp_min(0.0).norm()
            errors[name] = float(apart / (gradient.norm() + FLOOR * whole))
    worst = max(errors, key=lambda name: errors[name], default="")
    return Difference(
        loss=_furthest(ours["losses"], theirs["losses"]),
        grad_norm=_furthest(ours["norms"], theirs["norms"]),
        gradient=errors.get(worst),
        parameter=worst,
    )


def _furthest(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def within(found: Difference, case: Case) -> bool:
    """Whether all three stay inside the case's gates; a number that is not finite does not."""
    gates = case.gates
    gradient_holds = found.gradient is None or found.gradient <= gates.gradient
    return found.loss <= gates.loss and found.grad_norm <= gates.grad_norm and gradient_holds


def build_row(case: Case, found: Difference) -> dict[str, Any]:
    """One row of the table and of reports/parity.json."""
    return {
        "strategy": case.strategy,
        "model": case.model,
        "world_size": case.world_size,
        "variant": case.variant,
        **asdict(found),
        "gates": asdict(case.gates),
        "passed": within(found, case),
    }
