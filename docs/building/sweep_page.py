"""Every key of a sweep's file with its default and meaning, from the class that reads it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from stratlab.sweep.definition import Sweep, Tune


def write_sweep(repository: Path) -> str:
    """Return Markdown with one table of a sweep's keys and one of its key `tune`; `repository` is not read."""
    return "\n".join(
        [
            "# Keys of a sweep\n",
            "Every key of the file that `stratlab sweep` reads, generated from `stratlab/sweep/definition.py`. Paths "
            "are relative to the file. [Many runs from one file](../compare.md#many-runs-from-one-file) has an "
            "example.\n",
            *_write_table(Sweep),
            "\n## tune\n",
            *_write_table(Tune),
            "",
        ]
    )


def _write_table(model: type[BaseModel]) -> Iterator[str]:
    meanings = read_meanings(model)
    yield "| key | meaning | default |"
    yield "|---|---|---|"
    for name, field in model.model_fields.items():
        default = "needed" if field.is_required() else field.default or "none"
        yield f"| `{name}` | {meanings[name]} | {default} |"


def read_meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the string below each field of the class."""
    (of_class,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(of_class, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for node in of_class.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
    return found
