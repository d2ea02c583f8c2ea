import os

import pytest

from tests.charts.golden_file import FULL, GOLDEN, other_cases, read_goldens, render_all, write_goldens
from tests.charts.rendering import CHARTS

NAMES = [*FULL, *other_cases(CHARTS)]


@pytest.fixture(scope="module")
def goldens():
    """Written anew where UPDATE_GOLDEN is set (`make golden`)."""
    if os.environ.get("UPDATE_GOLDEN"):
        write_goldens(CHARTS, GOLDEN)
    return read_goldens(GOLDEN)


def test_there_is_one_for_every_chart_and_no_stale_one(goldens):
    assert goldens.keys() == {*NAMES}, "run `make golden` and review the diff"


@pytest.mark.parametrize("name", NAMES)
def test_it_renders_its_golden(name, goldens):
    assert render_all(CHARTS, [name])[name] == goldens[name], "run `make golden` and review the diff"
