"""Draws the pages of kept results again, with today's program: python -m experiments.pages [NAME...]

Of a part without runs.tar.xz the runs were not kept; its pages stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.catalogue import Part, list_experiments
from experiments.kept_runs import ARCHIVE
from experiments.result import draw_pages


def list_kept() -> Iterator[tuple[Part, Path, int]]:
    """Each part whose runs are kept: it, its folder of results, and how many parts its experiment has."""
    for experiment in list_experiments():
        for part in experiment.parts:
            folder = experiment.folder / "result" / part.name
            if (folder / ARCHIVE).is_file():
                yield part, folder, len(experiment.parts)


def main(names: Sequence[str]) -> None:
    for part, folder, parts in list_kept():
        if not names or {part.experiment, part.full_name} & set(names):
            draw_pages(folder / ARCHIVE, folder, parts)
            print(part.full_name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
