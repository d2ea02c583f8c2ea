"""Writes what files repeat from tables in code: `make schema`.

python -m docs.building.tables    # stratlab_spec/networks.json, lines of README.md, the rules in docs/analysis.md
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


def write_readme(text: str) -> str:
    """A README with a line for each network and each strategy."""
    from stratlab_spec.registry import FINETUNED, NETWORKS
    from stratlab_spec.strategies import STRATEGIES

    networks = [f"| `{name}` | {row.what} |" for name, row in NETWORKS.items()]
    text = _put(text, networks, lambda line: line.startswith("| `vit_"), lambda line: f"{FINETUNED}`" in line)
    rows = {name: row.readme for name, row in STRATEGIES.items() if any(row.readme)}
    strategies = [f"| `{name}` | {' | '.join(cells)} |" for name, cells in rows.items()]
    head = "| chart | sharded |"
    return _put(text, ["|---|---|---|---|", *strategies], lambda line: line.startswith(head), _is_lora)


def _is_lora(line: str) -> bool:
    return line.startswith("| `lora` |")


def write_rules(text: str) -> str:
    """docs/analysis.md with a line for each way in which a rule of advice fires."""
    from stratlab.analysis.advice_rules import RULES

    rows = ["| --- | --- | --- |"]
    for rule in sorted(RULES, key=lambda rule: int(rule.id[1:])):
        fires = " and ".join(map(_describe_condition, rule.when))
        rows.append(f"| {rule.id} | {fires} | {'yes' if rule.gpu_only else ''} |")
    return _put(text, rows, lambda line: line.startswith("| rule | fires when"), lambda line: not line)


def _describe_condition(condition: tuple[str, str, Any]) -> str:
    name, sign, other = condition
    return f"`{name}` {sign} {f'{other:g}' if isinstance(other, int | float) else other}"


def _put(text: str, rows: Sequence[str], after: Callable[[str], bool], before: Callable[[str], bool]) -> str:
    """The text with `rows` between the first line of the one kind and the next one of the other."""
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if after(line)) + 1
    last = next(number for number in range(first, len(lines)) if before(lines[number]))
    return "\n".join([*lines[:first], *rows, *lines[last:]])


def main() -> None:
    """Writes all of them."""
    NETWORKS_FILE.write_text(collect_networks())
    for path, write in ((ROOT / "README.md", write_readme), (ROOT / "docs" / "analysis.md", write_rules)):
        path.write_text(write(path.read_text()))


if __name__ == "__main__":
    main()
