"""What the tools must know of an optimizer, out of the trainer's table (`make schema`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIMIZERS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("optimizers.json").read_text())


def count_moments(settings: Mapping[str, Any]) -> int | None:
    """Tensors of the parameters' size that the run's optimizer keeps; None for one that is not known."""
    row = OPTIMIZERS.get(str(settings.get("optimizer")))
    if row is None:
        return None
    return int(row["moments"]) + sum(n for name, n in row["moments_with"].items() if settings.get(name))
