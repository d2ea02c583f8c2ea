"""Draws slips from all modules of trainer/ and stratlab/, so that nobody chooses what is planted.

    python -m tests.mutants.drawing                  # the rows of slips/drawn.toml, from today's sources
    python -m tests.mutants.drawing --first 61 --last 61     # one more, for a row whose place is gone

A row depends on the seed, its number and the sources: a module by its length, one of the operators that it has places
for (OPERATORS), one of these places. So the rows that were committed stay what they are while the sources move on:
where a row's text has moved, its text is mended; where its place is gone, the next number takes its stead. None is
exchanged because it survives.
Each operator finds its places in the syntax tree.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stratlab_spec.settings.fields import Settings
from tests.mutants.slip import Slip

ROOT = Path(__file__).resolve().parents[2]
SEED = 17
ROWS = 160
PACKAGES = ("stratlab_spec", "trainer", "stratlab")
TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "==", "in": "not in", "not in": "in",
          "is": "is not", "is not": "is"}  # fmt: skip
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ALWAYS_ENDS = {"isinstance", "issubclass", "getattr", "hasattr", "setattr"}
"""Whose swapped arguments end every program at once."""
COMPARISONS = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
               ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """`old`, between two offsets into the module's bytes, becomes `new`."""

    operator: str
    start: int
    end: int
    old: str
    new: str


class Source:
    """A module's bytes, and where the nodes of its tree stand in them."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.lines = [0]
        for line in self.data.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def start(self, node: ast.expr) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr) -> int:
        return self.lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.expr) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def between(self, left: ast.expr, right: ast.expr) -> str:
        return self.data[self.end(left) : self.start(right)].decode()

    def place(self, operator: str, start: int, end: int, new: str) -> Place:
        return Place(operator, start, end, self.data[start:end].decode(), new)

    def node(self, operator: str, node: ast.expr, new: str) -> Place:
        return self.place(operator, self.start(node), self.end(node), new)

    def sign(self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Place]:
        """The sign between two operands, brackets around them left alone."""
        between = self.between(left, right)
        sign = re.search(rf"(?<![<>=!]){re.escape(old)}(?![<>=])", between)
        if sign and "#" not in between:
            at = self.end(left) + len(between[: sign.start()].encode())
            yield self.place(operator, at, at + len(old), new)


def find_places(text: str) -> list[Place]:
    """Every fault that the operators know in a module, in the order of its text."""
    source = Source(text)
    places = {place for node in _walk(ast.parse(text)) for place in _find(source, node)}
    return sorted(places, key=lambda place: (place.start, place.end, place.operator, place.new))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: no annotations, nothing for type checkers alone. Python 3.11 misplaces those of f-strings."""
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in ("annotation", "returns") or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.If) and re.match(r"TYPE_CHECKING$|__name__ ==", ast.unparse(child.test)):
                continue
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _find(source: Source, node: ast.AST) -> Iterator[Place]:
    match node:
        case ast.Compare(left, kinds, others):
            for one, kind, other in zip([left, *others], kinds, others, strict=False):
                sign = COMPARISONS[type(kind)]
                for operator, table in (("comparison turned", TURNED), ("bound moved", MOVED)):
                    if sign in table:
                        yield from source.sign(operator, one, other, sign, table[sign])
        case ast.BoolOp(word, values):
            old, new = ("and", "or") if isinstance(word, ast.And) else ("or", "and")
            for left, right in pairwise(values):
                yield from source.sign("and for or", left, right, old, new)
        case ast.Constant(int(number)) if type(number) is int:
            for new in (number + 1, number - 1):
                yield source.node("constant off by one", node, str(new))
        case ast.BinOp(left, ast.Mult() | ast.Div() | ast.FloorDiv(), ast.Constant(value) as right):
            end = re.search(r"\s*(\*|//?)\s*$", between := source.between(left, right))
            if type(value) in (int, float) and end:
                start = source.end(left)
                yield source.place("scale forgotten", start, source.end(right), between[: end.start()])
        case ast.Call(function, arguments):
            if isinstance(function, ast.Name) and function.id in ("max", "min"):
                yield source.node("max for min", function, {"max": "min", "min": "max"}[function.id])
            for left, right in pairwise(arguments if ast.unparse(function) not in ALWAYS_ENDS else []):
                first, second = source.text(left), source.text(right)
                if not {type(left), type(right)} & {ast.Starred, ast.JoinedStr} and first != second:
                    new = second + source.between(left, right) + first
                    yield source.place("arguments swapped", source.start(left), source.end(right), new)
        case ast.If(test) | ast.IfExp(test):
            yield source.node("condition negated", test, f"not ({source.text(test)})")
            if isinstance(node, ast.If):
                yield source.node("branch dropped", test, "False")
        case ast.Attribute(owner, name, ast.Load()):
            field = Settings.model_fields.get(name)
            if field and not field.is_required() and re.search(r"\b_?config$", ast.unparse(owner)):
                yield source.node("default for setting", node, repr(field.default))
        case ast.Subscript(_, place, ast.Load()):
            if new := {"0": "-1", "-1": "0"}.get(source.text(place)):
                yield source.node("first for last", place, new)


def read_sources(root: Path = ROOT) -> dict[str, str]:
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def draw_slips(sources: Mapping[str, str], seed: int, rows: int) -> Iterator[Slip]:
    places = {name: find_places(text) for name, text in sources.items()}
    names = [name for name in sources if places[name]]
    lengths = [sources[name].count("\n") for name in names]
    drawn: set[tuple[str, int, int, str]] = set()
    for number in range(1, rows + 1):
        chance = random.Random(f"{seed}-{number}")
        while True:
            name = chance.choices(names, lengths)[0]
            operator = chance.choice(sorted({place.operator for place in places[name]}))
            place = chance.choice([place for place in places[name] if place.operator == operator])
            made = (name, place.start, place.end, place.new)  # two operators may make the same
            if made not in drawn:
                break
        drawn.add(made)
        yield build_slip(number, name, sources[name], place)


def build_slip(number: int, file: str, text: str, place: Place) -> Slip:
    """The row of a place: whole lines, and as many around them as it takes to be the only such text of the file."""
    data = text.encode()
    first, last = data.rfind(b"\n", 0, place.start) + 1, data.find(b"\n", place.end)
    before = True
    while data.count(data[first:last]) > 1:
        if (before and first) or last >= len(data) - 1:
            first = data.rfind(b"\n", 0, first - 1) + 1
        else:
            last = data.find(b"\n", last + 1)
        before = not before
    replacement = data[first : place.start] + place.new.encode() + data[place.end : last]
    return Slip(
        name=f"drawn-{number:02}",
        says=f"{place.operator}: {_shorten(place.old)} is {_shorten(place.new)}", file=file,
        search=data[first:last].decode(), replacement=replacement.decode(), operator=place.operator,
    )  # fmt: skip


def is_drawable(slip: Slip, text: str) -> bool:
    """Whether the row's operator makes what the row makes of a module."""
    data, made = text.encode(), text.replace(slip.search, slip.replacement).encode()
    return any(
        place.operator == slip.operator
        and data[: place.start] + place.new.encode() + data[place.end :] == made
        for place in find_places(text)
    )


def format_slip(slip: Slip) -> str:
    values = "".join(
        f"{name} = {format_text(getattr(slip, name))}\n"
        for name in ("name", "says", "operator", "file", "search", "replacement")
    )
    return f"[[slip]]\n{values}"


def format_text(text: str) -> str:
    """A text in TOML, written as it is where that can be."""
    if "'''" in text or text.endswith("'"):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if "\n" in text:
        return f"'''\n{text}'''"
    if '"' in text or "\\" in text:
        return f"'''{text}'''" if "'" in text else f"'{text}'"
    return f'"{text}"'


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 50 else f"{words[:47]}..."


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.drawing", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=ROWS)
    asked = parser.parse_args()
    for number, slip in enumerate(draw_slips(read_sources(), SEED, asked.last), 1):
        if number >= asked.first:
            sys.stdout.write(format_slip(slip) + "\n")


if __name__ == "__main__":
    main()
