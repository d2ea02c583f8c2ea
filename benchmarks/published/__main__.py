"""Write stratlab/predict/published.csv, and print the scatter: `python -m benchmarks.published`."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.published.image_sources import IMAGE_READERS
from benchmarks.published.scatter import list_scatter
from benchmarks.published.sources import READERS, SOURCES, Measured
from stratlab.predict.published import PublishedRow
from stratlab_spec.run_directory import write_whole

TABLE = Path(__file__).parents[2] / "stratlab" / "predict" / "published.csv"


def build_table(rows: Iterable[Measured]) -> str:
    """Return the table: of rows that differ only in layout, batch and machine the fastest, with the slowest."""
    groups: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
    for row in rows:
        key = row.source, row.model, row.length, row.card, row.gpus, row.strategy, row.method, row.recompute
        groups[key].append(row)
    text = io.StringIO()
    text.write(
        "# Written by python -m benchmarks.published; figures of other authors, in 16 bits. Sources:\n"
    )
    for name, place in SOURCES.items():
        text.write(f"# {name}: {place}\n")
    writer = csv.writer(text, lineterminator="\n")
    names = [each.name for each in fields(PublishedRow)]
    writer.writerow(names)
    for key in sorted(groups, key=str):
        best = max(groups[key], key=lambda row: row.per_s)
        known = asdict(best) | {
            "rows": len(groups[key]),
            "slowest_per_s": min(row.per_s for row in groups[key]),
        }
        writer.writerow(
            [f"{known[name]:.4g}" if isinstance(known[name], float) else known[name] for name in names]
        )
    return text.getvalue()


def read_all() -> list[Measured]:
    """Return all measurements of all sources."""
    return [row for read in (*READERS, *IMAGE_READERS) for row in read()]


def main() -> None:
    rows = read_all()
    write_whole(TABLE, build_table(rows))
    print(f"{TABLE.name}: {len(rows)} measurements")
    for name, values in list_scatter().items():
        print(
            f"{name}: {values[0]:.1f} to {values[-1]:.1f} %, median {values[len(values) // 2]:.1f} % ({len(values)})"
        )


if __name__ == "__main__":
    main()
