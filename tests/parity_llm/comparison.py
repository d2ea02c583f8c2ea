"""What the ranks of a case, or of a checkpoint that goes on elsewhere, have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.parity.suite import DID_NOT_END, Difference, within
from tests.parity_llm.resharding import Resharding


def read_difference(path: Path) -> Difference:
    """Of a case; one that wrote nothing has failed."""
    if not path.exists():
        return DID_NOT_END
    found = json.loads(path.read_text())
    gradients = found["gradients"]
    worst = max(gradients, key=lambda name: gradients[name], default="")
    complaints = [f"no gradient: {name}" for name in found["without_gradient"]]
    complaints += [f"wrongly loaded: {name}" for name in found["wrongly_loaded"]]
    numbers = found["loss"], found["grad_norm"], gradients.get(worst)
    return Difference(*numbers, worst, found["moved_pct"], tuple(complaints))


def read_resharding(path: Path, pair: Resharding) -> dict[str, Any]:
    """One line of the report on what the second mesh found; nothing written = failed."""
    numbers = dict.fromkeys(("loss", "grad_norm"), float("inf"))
    found = json.loads(path.read_text()) if path.exists() else numbers
    gates = pair.continued.gates
    return {
        "model": pair.saved.model,
        "saved": pair.saved.mesh,
        "continued": pair.continued.mesh,
        "variant": pair.saved.variant,
        **found,
        "gates": {"loss": gates.loss, "grad_norm": gates.grad_norm},
        "passed": within(Difference(**found, gradient=None), gates),
    }
