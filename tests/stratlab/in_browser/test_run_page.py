"""A run's page in a browser: what it shows as it opens, its timeline zoomed, and a fold that a link opens."""

import os

import pytest

from tests.stratlab.browser import ABSENT, CHROMIUM

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)


def open_page(browser, address):
    browser.appear(1400)
    browser.open(f"{address}/run.html")
    browser.wait("document.readyState === 'complete' && document.querySelector('.timeline') !== null")


def test_the_page_as_it_opens_is_short(address, browser):
    open_page(browser, address)
    assert browser.run("document.documentElement.scrollHeight") <= 3 * 900
    assert browser.run("document.body.innerText.split(/\\s+/).length") <= 1000
    assert browser.run("[...document.querySelectorAll('table')].filter(t => t.checkVisibility()).length") == 0


def test_the_timeline_is_zoomed_and_scrolls(address, browser):
    """Twice as wide with each click, finer ticks, the same moment in the middle; and back."""
    open_page(browser, address)
    browser.run(
        "window.view = document.querySelector('.timeline .view'); window.axis = view.querySelector('.axis')"
    )
    browser.run(
        "window.last = () => [...axis.children].at(-1).textContent; window.count = () => axis.children.length"
    )
    whole, ticks, last = (browser.run(text) for text in ("axis.clientWidth", "count()", "last()"))
    browser.run("document.querySelector('[data-zoom=\"2\"]').click()")
    browser.run("document.querySelector('[data-zoom=\"2\"]').click()")
    assert browser.run("axis.clientWidth") > 3.5 * whole and browser.run("count()") > 2 * ticks
    assert float(browser.run("last()")) >= float(last)
    middle = "(view.scrollLeft + view.clientWidth / 2 - axis.offsetLeft) / axis.clientWidth"
    assert browser.run(middle) == pytest.approx(0.45, abs=0.05)
    browser.run("document.querySelector('[data-zoom=\"0\"]').click()")
    assert browser.run("axis.clientWidth") == whole and browser.run("last()") == last


def test_a_link_of_the_contents_opens_its_fold(address, browser):
    open_page(browser, address)
    browser.run("[...document.querySelectorAll('nav a')].find(a => a.textContent === 'Phases').click()")
    browser.wait("document.querySelector('details.section').open")
    assert browser.run("document.querySelectorAll('details.section[open]').length") == 1
