"""Bounds of a number hold for numbers and for text, in the trainer and in the charts' schema.

A pod's variables are text, and helm turns numbers that `--set` cannot read (0.00001, 1e-5) into text. 1e400 is
infinite, and "2" is not a share. Bounds are powers of ten, which a regular expression can check without arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

MOST = 10**9
"""Bound of a whole number without its own: floats, in which helm holds it, still distinguish it from the next one."""
DIGITS = 38
"""Before the point, of any other number: from 10**38 on, fp32 has little but infinity."""

ZEROS, MORE = "0{0,9}", "[0-9]{0,30}"


def with_bounds(entry: Schema) -> dict[str, Any]:
    """Return the JSON schema of one setting, with the upper bound that it lacks if it is a number."""
    if entry.get("type") == "integer" and "maximum" not in entry:
        return {**entry, "maximum": MOST}
    if entry.get("type") == "number" and not {"maximum", "exclusiveMaximum"} & entry.keys():
        return {**entry, "exclusiveMaximum": 10.0**DIGITS}
    return dict(entry)


def text_pattern(entry: Schema) -> str:
    """Return a regular expression for numbers within the bounds, in the syntax that RE2, ECMA-262 and Python share.

    Numbers are written plainly (0.0015), or with one digit before the point and an exponent (1.5e-3).
    """
    if entry["type"] == "integer":
        return "^-?[0-9]{1,18}$"  # the number's bounds apply
    least, positive = entry.get("exclusiveMinimum", entry.get("minimum")), "exclusiveMinimum" in entry
    largest = entry.get("exclusiveMaximum", entry.get("maximum"))
    digits = round(math.log10(largest))
    assert largest == 10.0**digits
    if least:
        return _from_a_fraction(least, digits, itself="" if "exclusiveMaximum" in entry else _exactly(digits))
    assert least == 0
    below_one = rf"0{{1,9}}\.0{{0,30}}[1-9]{MORE}" if positive else rf"0{{1,9}}(\.{MORE})?"
    first = f"[1-9][0-9]{{0,{digits - 1}}}" if positive else f"[0-9]{{1,{digits}}}"
    plain = rf"{ZEROS}{first}(\.{MORE})?|{below_one}" if digits else below_one
    mantissa = rf"([1-9](\.{MORE})?|0\.0{{0,30}}[1-9]{MORE})" if positive else rf"[0-9](\.{MORE})?"
    exponent = rf"(-{ZEROS}[0-9]{{1,2}}|\+?{ZEROS}{_up_to(digits - 1)})" if digits else f"-{ZEROS}[1-9][0-9]?"
    itself = "" if "exclusiveMaximum" in entry else _exactly(digits)
    return f"^({plain}|{mantissa}[eE]{exponent}{itself})$"


def _from_a_fraction(least: float, digits: int, itself: str) -> str:
    """Return the expression for numbers from 10**-1 to 10**-9 (inclusive) up to a number with `digits` digits."""
    places = round(-math.log10(least))
    assert least == 10.0**-places and 1 <= places <= 9 and digits
    plain = rf"{ZEROS}[1-9][0-9]{{0,{digits - 1}}}(\.{MORE})?|0{{1,9}}\.0{{0,{places - 1}}}[1-9]{MORE}"
    exponent = rf"(-{ZEROS}[0-{places}]|\+?{ZEROS}{_up_to(digits - 1)})"
    return rf"^({plain}|[1-9](\.{MORE})?[eE]{exponent}{itself})$"


def number_problem(entry: Schema, value: Any) -> str | None:
    """Return the expected value if this text or number is wrong; otherwise None."""
    entry = with_bounds(entry)
    if entry.get("type") not in ("integer", "number") or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and re.fullmatch(text_pattern(entry), value):
        value = float(value) if entry["type"] == "number" else int(value)
    if (
        not isinstance(value, str)
        and math.isfinite(value)
        and entry.get("minimum", -math.inf) <= value <= entry.get("maximum", math.inf)
        and entry.get("exclusiveMinimum", -math.inf) < value < entry.get("exclusiveMaximum", math.inf)
    ):
        return None
    if entry["type"] == "integer":
        return f"expected a whole number from {entry['minimum']} to {entry['maximum']}"
    lowest = "above 0" if "exclusiveMinimum" in entry else f"from {entry['minimum']:g}"
    below = entry.get("exclusiveMaximum")
    most = f"to {entry['maximum']:g}" if below is None else f"and below {below:g}"
    return f"expected a number {lowest} {most}, written as 0.0015 or 1.5e-3"


def _exactly(digits: int) -> str:
    """Return 10**digits, as one more way to match."""
    return rf"|{ZEROS}10{{{digits}}}(\.0{{0,30}})?|1(\.0{{0,30}})?[eE]\+?{ZEROS}{digits}"


def _up_to(largest: int) -> str:
    """Return the expression for whole numbers from 0 to `largest`, below 100."""
    tens, ones = divmod(largest, 10)
    below = f"[1-{tens - 1}][0-9]|" if tens > 1 else ""
    last = f"|{tens}[0-{ones}]" if tens else ""
    return f"({below}[0-{9 if tens else ones}]{last})"
