"""The comparison's page in a real browser: it shows its content, and it loads nothing but itself."""

import os
import re

import pytest
from PIL import Image

from stratlab.compare.comparison import compare
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import load_runs
from tests.stratlab.browser import ABSENT, CHROMIUM, LOADED, serve
from tests.stratlab.compare.building import build

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

ORANGE = (0xE6, 0x9F, 0x00)  # of the second part, in light
PAPER_DARK = (0x14, 0x18, 0x1D)

# what MLflow's artifact viewer does with a page: a blob in a sandboxed frame
VIEWER = """<!doctype html><body style="margin:0"><iframe sandbox="allow-scripts" width=1200 height=1900></iframe>
<script>fetch("report.html").then(r => r.blob()).then(b => {
  document.querySelector("iframe").onload = () => { document.body.dataset.state = "shown" };
  document.querySelector("iframe").src = URL.createObjectURL(new Blob([b], {type: "text/html"}));
});</script>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A server of report.html, on GPUs, with a part that goes the other way, a limit, and a front; and of VIEWER."""
    root = tmp_path_factory.mktemp("pages")
    hostile = {"<script>document.title='broken in'</script>": {"strategy": "ddp", "status": "failed"}}
    build(root / "demo", {"ddp": {}, "fsdp": {}, "zero2": {}} | hostile)
    runs = load_runs(root / "demo")
    folder = write_report(compare(runs, memory_limit_gib=1.5), runs, root / "site").parent
    (folder / "viewer.html").write_text(VIEWER)
    with serve(folder) as address:
        yield address


def show(browser, url, dark=False):
    browser.appear(1200, dark=dark)
    browser.open(url)
    browser.wait("document.readyState === 'complete' && document.querySelector('h1, [data-state]') !== null")


def count_colours(browser, folder):
    browser.take(folder / "page.png")
    image = Image.open(folder / "page.png").convert("RGB")
    return {colour: count for count, colour in image.getcolors(maxcolors=1 << 24) or []}


def test_the_comparison_is_shown_and_loads_nothing_else(pages, browser):
    show(browser, f"{pages}/report.html")
    assert browser.run(LOADED) == []
    dom = browser.run("document.documentElement.outerHTML")
    assert dom.count("<script>") == 1 and '<th scope="col"><button>' in dom  # it ran
    assert browser.run("document.title") != "broken in"
    assert len(re.findall(r"<path [^>]*class=\"l s\d", dom)) >= 9  # three runs, three charts
    why = re.findall(r"<h2>Why</h2>.*?</section>", dom, re.DOTALL)[0]
    assert len(re.findall('<div class="narrow">', why)) == 2, "one drawing for each pair"


def test_it_is_readable_in_a_sandboxed_frame_and_on_a_dark_screen(pages, browser, tmp_path):
    show(browser, f"{pages}/viewer.html")
    assert count_colours(browser, tmp_path).get(ORANGE, 0) > 500
    show(browser, f"{pages}/report.html", dark=True)
    dark = count_colours(browser, tmp_path)
    assert max(dark, key=lambda colour: dark[colour]) == PAPER_DARK


def test_a_page_that_loads_something_is_caught(browser, tmp_path):
    """The check itself sees a foreign picture and a foreign host."""
    (tmp_path / "bad.html").write_text('<h1></h1><img src="x.png"><img src="http://example.invalid/y.png">')
    with serve(tmp_path) as address:
        show(browser, f"{address}/bad.html")
        assert {*browser.run(LOADED)} == {f"{address}/x.png", "http://example.invalid/y.png"}
