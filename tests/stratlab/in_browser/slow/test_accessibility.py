"""axe-core finds nothing serious on report pages: with every fold open, light and dark, narrow and wide."""

import json
import os

import pytest

from tests.charts.rendering import find_program
from tests.stratlab.browser import ABSENT, CHROMIUM
from tests.stratlab.in_browser.conftest import PAGES, show

pytestmark = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)

SERIOUS = ("serious", "critical")
LOOKS = [(400, True), (1200, False)]
"""(CSS pixels, dark): each width and each palette once; the sixteen runs take half a minute."""


@pytest.fixture(scope="module")
def axe():
    (path,) = find_program("scan/ready").parent.glob(
        "lib/python*/site-packages/axe_playwright_python/axe.min.js"
    )
    return path.read_text()


def find_issues(browser, axe):
    """(impact, rule, where) of everything that axe finds on the page that is shown."""
    browser.run(f"{axe}; 0")
    found = json.loads(browser.run("axe.run().then(r => JSON.stringify(r.violations))"))
    return [(each["impact"], each["id"], [node["target"] for node in each["nodes"]][:5]) for each in found]


@pytest.mark.parametrize("page", PAGES)
def test_nothing_serious(page, address, browser, axe):
    for width, dark in LOOKS:
        browser.appear(width, dark=dark)
        show(browser, f"{address}/{page}.html")
        issues = find_issues(browser, axe)
        assert [issue for issue in issues if issue[0] in SERIOUS] == [], (width, dark)
