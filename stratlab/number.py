"""How a number is written for a reader."""

from __future__ import annotations

import math

MISSING = "-"


def format_number(value: object, digits: int | None = None) -> str:
    """A number with 4 significant digits, or with `digits` decimals; `-` for None, yes/no for a truth value.

    >>> [format_number(v) for v in (None, True, 1234567, 0.123456, 17.0, 3.2e-7)]
    ['-', 'yes', '1,234,567', '0.1235', '17.0', '3.2e-07']
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and digits is None:
        return f"{value:,}"
    if not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if digits is not None:
        return f"{value:,.{digits}f}"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -5 <= exponent < 9:
        return f"{value:.4g}"
    decimals = max(0, 3 - exponent)
    text = f"{value:,.{decimals}f}"
    if decimals > 1:  # 0.5000 -> 0.5
        text = text.rstrip("0")
        text += "0" if text.endswith(".") else ""
    return text


def format_fact(value: object) -> str:
    """A setting or a fact as it stands in YAML: true and false.

    >>> [format_fact(v) for v in (True, False, 25, "auto")]
    ['true', 'false', '25', 'auto']
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
