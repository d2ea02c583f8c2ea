"""Writes docs/codes.md: every code of a message, where it is raised and what it says.

python -m docs.building.message_codes docs/codes.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("stratlab", "stratlab_spec", "trainer", "benchmarks")
CODE = re.compile(r"\s*\[(SL-[a-z0-9]+(?:-[a-z0-9]+)*)\]")
HEAD = """# Codes of messages

Each error ends with a code in brackets, for example `[SL-run-live]`. A code names one cause.
It stays when words change.
`python -m docs.building.message_codes docs/codes.md` makes this page from the sources.
`...` stands for a filled-in value.

| code | message | where |
|---|---|---|
"""


@dataclass(frozen=True)
class Message:
    """One sentence of the sources.

    Attributes:
        code: at its end, without brackets.
        sentence: with `...` for what is filled in.
        file: where it stands, from the root of the project.
        line: in that file.
    """

    code: str
    sentence: str
    file: str
    line: int


def find_messages(root: Path = ROOT) -> list[Message]:
    """List the messages with a code in Python modules and in charts' templates, by code."""
    found: list[Message] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found += _find_in_module(path.read_text(), path.relative_to(root).as_posix())
    for path in sorted(path for kind in ("*.tpl", "*.yaml") for path in (root / "charts").rglob(kind)):
        if "tests" not in path.parts:
            found += _find_in_template(path.read_text(), path.relative_to(root).as_posix())
    return sorted(found, key=lambda message: (message.code, message.file, message.line))


def _find_in_module(text: str, file: str) -> Iterator[Message]:
    if "[SL-" not in text:
        return
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            sentence = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            sentence = node.value
        else:
            continue
        for code in CODE.findall(sentence):
            yield Message(code, sentence, file, node.lineno)


def _find_in_template(text: str, file: str) -> Iterator[Message]:
    for number, line in enumerate(text.splitlines(), 1):
        for code in CODE.findall(line):
            quoted = re.search(rf'"([^"]*\[{code}\])', line)
            yield Message(code, re.sub(r"%[a-z]", "...", quoted[1] if quoted else line.strip()), file, number)


def write_page(messages: list[Message]) -> str:
    """Return the page."""
    rows = []
    for message in messages:
        words = " ".join(CODE.sub("", message.sentence).split()).replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| `{message.code}` | {words} | `{message.file}` |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(write_page(find_messages()))
