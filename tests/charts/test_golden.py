from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.charts.golden_file import (
    GOLDEN,
    VARIANTS,
    check_golden,
    check_no_stale_goldens,
    render_variant,
    write_goldens,
)
from tests.charts.rendering import CHARTS, HELMS, Document, discover_charts, find_program


@pytest.fixture(scope="module")
def golden() -> Path:
    """The folder of the goldens; written anew with the first helm where UPDATE_GOLDEN is set (`make golden`)."""
    if os.environ.get("UPDATE_GOLDEN"):
        write_goldens(find_program(HELMS[0]), CHARTS, GOLDEN, VARIANTS)
    return GOLDEN


def test_the_walk_finds_the_charts_and_no_stale_golden(golden: Path) -> None:
    charts = discover_charts(CHARTS)
    assert len(charts) >= 4
    check_no_stale_goldens(golden, [*charts, *VARIANTS])


def test_chart_renders_its_golden(documents: list[Document], chart: str, golden: Path) -> None:
    check_golden(documents, golden, chart)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_renders_its_golden(helm: Path, name: str, golden: Path) -> None:
    check_golden(render_variant(helm, CHARTS, name), golden, name)
