from __future__ import annotations

import pytest

from stratlab.number import format_number


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (None, None, "-"),
        (None, 2, "-"),
        (True, None, "yes"),
        (False, None, "no"),
        (0, None, "0"),
        (0.0, None, "0"),
        (1234567, None, "1,234,567"),
        (3, 2, "3.00"),
        (0.5, None, "0.5"),
        (17.0, None, "17.0"),
        (12.3456, None, "12.35"),
        (1234.56, None, "1,235"),
        (-0.00123456, None, "-0.001235"),
        (3.2e-7, None, "3.2e-07"),
        (2.5e12, None, "2.5e+12"),
        (1234.5678, 1, "1,234.6"),
        (float("nan"), None, "nan"),
        (float("inf"), 2, "inf"),
        ("gloo", None, "gloo"),
        ([1, 2], None, "[1, 2]"),
    ],
)
def test_a_number_is_written_for_a_reader(value: object, digits: int | None, expected: str) -> None:
    assert format_number(value, digits) == expected
