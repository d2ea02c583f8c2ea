"""Report pages on a telephone's screen and on paper: nothing is cut off, and the letters of charts can be read."""

import os

import pytest

from tests.stratlab.browser import ABSENT, CHROMIUM
from tests.stratlab.in_browser.conftest import PAGES, show

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

NARROW, WIDE, PAPER = 400, 1200, 1031  # CSS pixels; paper: A4, landscape, between margins of 12 mm
LEAST_LETTER_PX = 10
SIZES = "[document.documentElement.scrollWidth, innerWidth]"
LETTERS = """[...document.querySelectorAll('svg text')]
  .map(text => parseFloat(getComputedStyle(text).fontSize) * (text.getScreenCTM()?.a ?? 0)).filter(px => px > 0)"""
# what sticks out of the page, and boxes that hold more than they show
BEYOND = """[...document.querySelectorAll('table, svg, .tile, p, h2')].filter(
  part => part.getBoundingClientRect().right > innerWidth + 1
  && !part.closest('.scroll, .chart')).map(part => part.outerHTML.slice(0, 200))"""
CUT = """[...document.querySelectorAll('.scroll, .chart')].filter(box => box.scrollWidth > innerWidth + 1)
  .map(box => box.closest('details.section, main > section').querySelector('h2').textContent)"""
REACHED = """[...document.querySelectorAll('.scroll, .chart')].filter(box => box.clientWidth > 0)
  .every(box => (box.scrollWidth > box.clientWidth) === (box.tabIndex === 0))"""


@pytest.mark.parametrize("page", PAGES)
def test_nothing_scrolls_sideways_or_is_cut_off(page, address, browser, tmp_path):
    for width in (NARROW, WIDE):
        browser.appear(width)
        show(browser, f"{address}/{page}.html")
        assert browser.run(SIZES) == [width, width] and browser.run(BEYOND) == []
        assert min(browser.run(LETTERS), default=99) >= LEAST_LETTER_PX
        browser.wait(REACHED)  # by the keyboard, also what was folded
    browser.appear(PAPER, printed=True)
    show(browser, f"{address}/{page}.html")
    browser.run("document.querySelectorAll('details').forEach(part => { part.open = false })")
    assert browser.run(SIZES) == [PAPER, PAPER] and browser.run(CUT) == []
    assert browser.run("[...document.querySelectorAll('details')].every(part => part.offsetHeight > 40)")
    browser.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


# what a reader sees of a page as it opens: [words, those in charts too; screens of 1400 x 900; tables; caveats]
OPENED = """(() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const words = {true: 0, false: 0};
  while (walk.nextNode()) {
    const part = walk.currentNode.parentElement;
    if (part.closest('script, style, title, .narrow')) continue;
    words[part.checkVisibility()] += walk.currentNode.textContent.split(/\\s+/).filter(Boolean).length;
  }
  const tables = [...document.querySelectorAll('table')].filter(table => table.checkVisibility()).length;
  return {words: words[true], folded: words[false], screens: document.documentElement.scrollHeight / 900, tables,
    caveats: document.querySelectorAll('.banner p').length};
})()"""


@pytest.mark.parametrize(("page", "most_kb"), [("three", 400), ("sixteen", 1000)])
def test_the_answer_is_read_in_thirty_seconds(page, most_kb, site, address, browser):
    browser.appear(1400)
    browser.open(f"{address}/{page}.html")
    browser.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    seen = browser.run(OPENED)
    assert seen["words"] <= 1000 and seen["screens"] <= 3 and seen["tables"] <= 4 and seen["caveats"] <= 2
    assert seen["folded"] <= 3000 and len((site / f"{page}.html").read_text()) < 1000 * most_kb


ANSWERS = """[...document.querySelectorAll('.twice')].map(chart => {
  const box = [...chart.children].filter(part => part.offsetHeight > 0);
  const marks = [...box[0].querySelectorAll('circle, rect, text')].map(mark => mark.getBoundingClientRect());
  return [box[0].className, box.length, Math.min(...marks.map(mark => mark.left)) >= 0,
    Math.max(...marks.map(mark => mark.right)) <= innerWidth];
})"""


def test_the_pictures_of_the_answer_are_seen_whole(address, browser):
    """Speed against memory, why, and all bars: every mark and letter lies on the screen, without scrolling sideways."""
    for width, drawing in ((NARROW, "narrow"), (WIDE, "wide")):
        browser.appear(width)
        for page, count in (("three", 7), ("run", 6), ("prediction", 1)):
            show(browser, f"{address}/{page}.html")
            assert browser.run(ANSWERS) == [[drawing, 1, True, True]] * count


def test_lines_of_the_table_of_shards_are_as_tall_as_their_words(address, browser):
    """Also on a telephone, where a sentence beyond the edge would leave them empty; zero2 has one."""
    browser.appear(NARROW)
    show(browser, f"{address}/three.html")
    parts = "[...document.querySelectorAll('details.section')]"
    find = f"{parts}.find(part => part.querySelector('h2').textContent === 'Sharding')"
    heights = browser.run(f"[...{find}.querySelectorAll('tbody tr')].map(line => line.offsetHeight)")
    assert len(heights) == 3 and max(heights) < 40
