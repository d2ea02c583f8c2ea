"""Numbers and names as they are written for a reader."""

import pytest

from stratlab.run_settings import SETTINGS, find_problem
from stratlab.wording import format_number


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (None, 2, "-"),
        (True, None, "yes"),
        (1234567, None, "1,234,567"),
        (12.3456, None, "12.35"),
        (-0.00123456, None, "-0.001235"),
        (3.2e-7, None, "3.2e-07"),
        (1234.5678, 1, "1,234.6"),
        (float("nan"), None, "nan"),
        ("gloo", None, "gloo"),
    ],
)
def test_a_number_is_written_for_a_reader(value, digits, expected):
    assert format_number(value, digits) == expected


FREE = {"default", "description", "type", "minLength", "maxLength"}


def test_every_default_is_taken():
    texts = {name: str(entry["default"]) for name, entry in SETTINGS.items() if "default" in entry}
    assert [name for name, text in texts.items() if find_problem(name, text)] == []
    taken = {name for name in SETTINGS if not find_problem(name, "\n non,=sense")}
    assert all(set(SETTINGS[name]) <= FREE for name in taken)
