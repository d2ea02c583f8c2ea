"""Sharded state and collectives of each strategy, with a picture: the docstring of its file."""

from __future__ import annotations

import ast
from pathlib import Path

from stratlab_spec.strategies import STRATEGIES


def write_strategies(repository: Path) -> str:
    """Markdown: one section per file of trainer/strategies, in the order of the table of strategies."""
    parts = [
        "# The strategies in pictures\n",
        "Sharded state, collectives per step and layout of each strategy: the docstring of its file in "
        "`trainer/strategies/`. [Choose a strategy](../strategies.md).\n",
    ]
    told: set[str] = set()
    for row in STRATEGIES.values():
        if row.file in told:
            continue
        told.add(row.file)
        names = [name for name, other in STRATEGIES.items() if other.file == row.file]
        source = (repository / "trainer" / "strategies" / f"{row.file}.py").read_text()
        words = ast.get_docstring(ast.parse(source)) or ""
        parts.append(f"## {', '.join(names)}\n\n```text\n{words}\n```\n")
    return "\n".join(parts)
