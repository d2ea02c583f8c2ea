"""From what a case found to one row of the table and of reports/parity-llm.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.parity_llm.cases import Case
from tests.parity_llm.resharding import Resharding


@dataclass(frozen=True)
class Difference:
    """Largest differences between a run and its reference over all ranks, and the parameter furthest off."""

    loss: float
    grad_norm: float
    gradient: float | None
    """None where it cannot be read: adapters under DeepSpeed."""
    parameter: str
    moved_pct: float | None = None
    """Tokens that would have gone to other experts than in the reference, where they are kept from it. With a pipeline
    also what its stages try themselves out with before the first step."""
    complaints: tuple[str, ...] = ()
    """What makes the case fail whatever the numbers are: it ended early, a parameter was lost or wrongly loaded."""


def read_difference(path: Path) -> Difference:
    """What the ranks wrote; a case that wrote nothing has failed."""
    if not path.exists():
        return Difference(float("inf"), float("inf"), None, "", complaints=("did not end",))
    found = json.loads(path.read_text())
    gradients = found["gradients"]
    worst = max(gradients, key=lambda name: gradients[name], default="")
    complaints = [f"no gradient: {name}" for name in found["without_gradient"]]
    complaints += [f"wrongly loaded: {name}" for name in found["wrongly_loaded"]]
    numbers = found["loss"], found["grad_norm"], gradients.get(worst)
    return Difference(*numbers, worst, found["moved_pct"], tuple(complaints))


def within(found: Difference, case: Case) -> bool:
    """Whether all three stay inside the case's gates; a number that is not finite does not."""
    gates = case.gates
    gradient_holds = None in (found.gradient, gates.gradient) or found.gradient <= gates.gradient
    return (
        found.loss <= gates.loss
        and found.grad_norm <= gates.grad_norm
        and gradient_holds
        and not found.complaints
    )


def build_row(case: Case, found: Difference) -> dict[str, Any]:
    """One row of the table and of the report."""
    return {
        "strategy": case.strategy,
        "mesh": case.mesh,
        "sequence_parallel": case.sequence_parallel,
        "model": case.model,
        "world_size": case.world_size,
        "variant": case.variant,
        **asdict(found),
        "gates": asdict(case.gates),
        "passed": within(found, case),
    }


def read_resharding(path: Path, pair: Resharding) -> dict[str, Any]:
    """One line of the report on what the second mesh found; nothing written = failed."""
    found = (
        json.loads(path.read_text()) if path.exists() else dict.fromkeys(("loss", "grad_norm"), float("inf"))
    )
    gates = pair.continued.gates
    return {
        "model": pair.saved.model,
        "saved": pair.saved.mesh,
        "continued": pair.continued.mesh,
        "variant": pair.saved.variant,
        **found,
        "gates": {"loss": gates.loss, "grad_norm": gates.grad_norm},
        "passed": found["loss"] <= gates.loss and found["grad_norm"] <= gates.grad_norm,
    }
