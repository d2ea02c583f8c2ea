"""Writes what files repeat from tables in code: `make schema`.

python -m docs.building.tables    # stratlab_spec/networks.json, lines of docs/models.md, strategies.md
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NETWORKS_FILE = ROOT / "stratlab_spec" / "networks.json"


def collect_networks() -> str:
    """NETWORK of every file in trainer/models that has it, as JSON; read without torch."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "trainer" / "models").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NETWORK":
                found[path.stem] = ast.literal_eval(node.value)
    return json.dumps(found, indent=2) + "\n"


def write_networks(text: str) -> str:
    """Return docs/models.md with a line for each network."""
    from stratlab_spec.registry import FINETUNED, NETWORKS

    networks = [f"| `{name}` | {row.what} |" for name, row in NETWORKS.items()]
    return _put(text, networks, lambda line: line.startswith("| `vit_"), lambda line: f"{FINETUNED}`" in line)


def write_strategies(text: str) -> str:
    """Return docs/strategies.md with a line for each strategy."""
    from stratlab_spec.strategies import STRATEGIES

    rows = {name: row.page for name, row in STRATEGIES.items() if any(row.page)}
    strategies = [f"| `{name}` | {' | '.join(cells)} |" for name, cells in rows.items()]
    head = "| chart | sharded |"
    return _put(text, ["|---|---|---|---|", *strategies], lambda line: line.startswith(head), _is_lora)


def _is_lora(line: str) -> bool:
    return line.startswith("| `lora` |")


def _put(text: str, rows: Sequence[str], after: Callable[[str], bool], before: Callable[[str], bool]) -> str:
    """The text with `rows` between the first line of the one kind and the next one of the other."""
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if after(line)) + 1
    last = next(number for number in range(first, len(lines)) if before(lines[number]))
    return "\n".join([*lines[:first], *rows, *lines[last:]])


PAGES = {"models.md": write_networks, "strategies.md": write_strategies}


def main() -> None:
    """Writes all of them."""
    NETWORKS_FILE.write_text(collect_networks())
    for name, write in PAGES.items():
        page = ROOT / "docs" / name
        page.write_text(write(page.read_text()))


if __name__ == "__main__":
    main()
