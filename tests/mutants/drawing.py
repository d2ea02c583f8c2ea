"""Draws slips from all modules of trainer/ and stratlab/, so that nobody chooses what is planted.

    python -m tests.mutants.drawing                  # the rows of slips/drawn.toml, from today's sources
    python -m tests.mutants.drawing --first 61 --last 61     # one more, for a row whose place is gone

A row depends on the seed, its number and the sources: a module by its length, one of the operators that it has places
for (operators.py), one of these places. So the rows that were committed stay what they are while the sources move on:
where a row's text has moved, its text is mended; where its place is gone, the next number takes its stead. None is
exchanged because it survives.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.mutants.operators import Place, find_places
from tests.mutants.slip import Slip

ROOT = Path(__file__).resolve().parents[2]
SEED = 17
ROWS = 160
PACKAGES = ("stratlab_spec", "trainer", "stratlab")


def read_sources(root: Path = ROOT) -> dict[str, str]:
    """Every module's text by its path."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def draw_slips(sources: Mapping[str, str], seed: int, rows: int) -> Iterator[Slip]:
    """That many slips, all different."""
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
        says=f"{place.operator}: {_shorten(place.old)} is {_shorten(place.new)}",
        file=file,
        search=data[first:last].decode(),
        replacement=replacement.decode(),
        operator=place.operator,
    )


def is_drawable(slip: Slip, text: str) -> bool:
    """Whether the row's operator makes what the row makes of a module."""
    data, made = text.encode(), text.replace(slip.search, slip.replacement).encode()
    return any(
        place.operator == slip.operator
        and data[: place.start] + place.new.encode() + data[place.end :] == made
        for place in find_places(text)
    )


def format_slip(slip: Slip) -> str:
    """The row as it stands in a table."""
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
    """Prints the rows."""
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
