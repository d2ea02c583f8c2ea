"""What the tools must know of a strategy, out of the trainer's table (`make schema`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STRATEGIES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("strategies.json").read_text())
GATHERING = tuple(name for name, facts in STRATEGIES.items() if facts["gathers"])
"""Those that gather parameters layer by layer."""
COMPILING = tuple(name for name, facts in STRATEGIES.items() if facts["compiles"])
"""Those whose blocks can be compiled whatever the model and the layout."""


def find_other(strategy: object, column: str) -> str:
    """The strategy in `holds_less` or `sends_less` of this one's row; "" where there is none."""
    return str(STRATEGIES.get(str(strategy), {}).get(column, ""))
