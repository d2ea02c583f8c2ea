"""What every chart renders, kept as plain YAML: a change of any chart shows up as a diff to review.

Compared as parsed YAML, because Helm versions differ in blank lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from tests.charts.rendering import Document, discover_charts, read_documents, render

GOLDEN = Path(__file__).parent / "golden"
VARIANTS = {
    "ddp-shares": ("ddp", "run.nodes=2,run.analysis.shares=2"),
    "ddp-check": ("ddp", "run.nodes=2,run.config.mode=check"),
}
"""Beside the charts' own: a name, its chart, and the settings that it shows."""
ADVICE = "run `make golden` and review the diff"


def check_golden(documents: Sequence[Document], folder: Path, chart: str) -> None:
    file = folder / f"{chart}.yaml"
    assert file.is_file(), f"{file.name} is missing: {ADVICE}"
    assert list(documents) == read_documents(file.read_text()), f"{chart} renders differently: {ADVICE}"


def check_no_stale_goldens(folder: Path, charts: Sequence[str]) -> None:
    stale = sorted({file.stem for file in folder.glob("*.yaml")} - set(charts))
    assert not stale, f"goldens without a chart: {', '.join(stale)}: {ADVICE}"


def render_variant(helm: Path, charts: Path, name: str) -> list[Document]:
    """What a chart renders with the settings of a variant."""
    chart, settings = VARIANTS[name]
    return render(helm, charts / chart, ["--set", settings])


def write_goldens(helm: Path, charts: Path, folder: Path, variants: Iterable[str] = ()) -> None:
    """One file per chart in `charts`. All are rendered first: a chart that does not render leaves every file alone."""
    rendered = {chart: render(helm, charts / chart) for chart in discover_charts(charts)}
    rendered |= {name: render_variant(helm, charts, name) for name in variants}
    folder.mkdir(exist_ok=True)
    for chart, documents in rendered.items():
        unfinished = folder / f".{chart}.yaml"
        unfinished.write_text(yaml.safe_dump_all(documents, sort_keys=False, width=1000))
        unfinished.replace(folder / f"{chart}.yaml")
    for file in folder.glob("*.yaml"):
        if file.stem not in rendered:
            file.unlink()
