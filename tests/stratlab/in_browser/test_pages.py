"""The comparison's page in a real browser: it shows its content, and it loads nothing but itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from PIL import Image

from stratlab.compare.comparison import compare
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import load_runs
from tests.stratlab.browser import ABSENT, CHROMIUM, Visit, serve, visit
from tests.stratlab.compare.building import build

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

ORANGE = (0xE6, 0x9F, 0x00)  # of the second part, in light
PAPER_DARK = (0x14, 0x18, 0x1D)

# what MLflow's artifact viewer does with a page: a blob in a sandboxed frame
VIEWER = """<!doctype html><body style="margin:0"><iframe sandbox="allow-scripts" width=1200 height=1900></iframe>
<script>fetch("report.html").then(r => r.blob()).then(b => {
  document.querySelector("iframe").src = URL.createObjectURL(new Blob([b], {type: "text/html"}));
  document.body.dataset.state = "shown";
});</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On GPUs, with a part that goes the other way, a limit, and a front."""
    root = tmp_path_factory.mktemp("pages")
    hostile = {"<script>document.title='broken in'</script>": {"strategy": "ddp", "status": "failed"}}
    build(root / "demo", {"ddp": {}, "fsdp": {}, "zero2": {}} | hostile)
    runs = load_runs(root / "demo")
    return write_report(compare(runs, memory_limit_gib=1.5), runs, root / "site").parent


def count_colours(seen: Visit) -> dict[tuple[int, ...], int]:
    image = Image.open(seen.screenshot).convert("RGB")
    return {colour: count for count, colour in image.getcolors(maxcolors=1 << 24) or []}


def test_the_comparison_is_shown_and_loads_nothing_else(folder: Path, tmp_path: Path) -> None:
    with serve(folder) as address:
        seen = visit(f"{address}/report.html", tmp_path)
    assert {f"{address}/report.html"} <= set(seen.requests)
    assert set(seen.requests) <= {f"{address}/report.html", f"{address}/favicon.ico"}
    assert seen.dom.count("<script>") == 1 and '<th scope="col"><button>' in seen.dom  # it ran
    assert "broken in" not in seen.dom.partition("</title>")[0]
    assert len(re.findall(r"<path [^>]*class=\"l s\d", seen.dom)) >= 9  # three runs, three charts
    why = re.findall(r"<h2>Why</h2>.*?</section>", seen.dom, re.DOTALL)[0]
    assert len(re.findall('<div class="narrow">', why)) == 2, "one drawing for each pair"
    assert count_colours(seen).get(ORANGE, 0) > 2000  # exposed communication, by far the most


def test_the_comparison_is_readable_in_a_sandboxed_frame_and_on_a_dark_screen(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "viewer.html").write_text(VIEWER)
    with serve(folder) as address:
        framed = visit(f"{address}/viewer.html", tmp_path / "framed")
        dark = count_colours(visit(f"{address}/report.html", tmp_path / "dark", dark=True))
    assert 'data-state="shown"' in framed.dom and count_colours(framed).get(ORANGE, 0) > 1000
    assert max(dark, key=lambda colour: dark[colour]) == PAPER_DARK


def test_a_page_that_loads_something_is_caught(tmp_path: Path) -> None:
    """The check itself: the same helper sees a foreign picture and a foreign host."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "bad.html").write_text('<img src="x.png"><img src="http://example.invalid/y.png">')
    with serve(tmp_path / "site") as address:
        seen = visit(f"{address}/bad.html", tmp_path / "scratch")
    assert {f"{address}/x.png", "http://example.invalid/y.png"} <= set(seen.requests)
