"""The report of a run in a real browser: it shows its charts, light and dark, and loads nothing but itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from PIL import Image

from stratlab.analysis.pages.html import build_html
from stratlab.analysis.reporting.run_facts import read_facts
from tests.stratlab.analysis.example_report import build_example, build_example_ranks
from tests.stratlab.analysis.pages.test_html import SECTIONS
from tests.stratlab.browser import ABSENT, CHROMIUM, serve, visit

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

LIGHT = {"compute": (0x00, 0x72, 0xB2), "communication": (0xE6, 0x9F, 0x00), "other idle": (0x6E, 0x6E, 0x6E)}
DARK = {"compute": (0x4A, 0xA8, 0xE0), "communication": (0xF0, 0xB4, 0x29), "other idle": (0xB5, 0xB5, 0xB5)}
PAPER = {"light": (0xFF, 0xFF, 0xFF), "dark": (0x14, 0x18, 0x1D)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("pages") / "run"
    tables = run / "analysis" / "tables" / "hta"
    tables.mkdir(parents=True)
    (tables / "temporal_breakdown.csv").write_text("rank,idle_time(us)\n0,1.5\n")
    (run / "config.json").write_text('{"run": "run"}')
    report = build_example(ranks=3, slow={1: 1.2})
    html = build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")
    (run / "analysis" / "report.html").write_text(html)
    return run / "analysis"


@pytest.mark.parametrize(("look", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_the_report_is_shown_and_loads_nothing_else(
    look: str, colours: dict[str, tuple[int, int, int]], folder: Path, tmp_path: Path
) -> None:
    with serve(folder) as address:
        seen = visit(f"{address}/report.html", tmp_path, size=(1200, 4000), dark=look == "dark")
    assert set(seen.requests) <= {f"{address}/report.html", f"{address}/favicon.ico"}
    assert f"{address}/report.html" in seen.requests
    assert re.findall(r"<h2>(.*?)</h2>", seen.dom) == SECTIONS
    assert seen.dom.count("<svg ") == 11 and "<details><summary>temporal_breakdown</summary>" in seen.dom
    assert seen.dom.count("<script>") == 1 and '<th scope="col"><button>' in seen.dom  # it ran
    image = Image.open(seen.screenshot).convert("RGB")
    painted = {colour: count for count, colour in image.getcolors(maxcolors=1 << 24) or []}
    assert max(painted, key=lambda colour: painted[colour]) == PAPER[look]
    for name, colour in colours.items():
        assert painted.get(colour, 0) > 1000, name
