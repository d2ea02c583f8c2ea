"""The bounds of a setting that is a number, as a number and as text: for the trainer and for the charts' schema.

A pod's variables are text, and helm makes text of what `--set` cannot read (0.00001, 1e-5). So text must have its
bounds too: 1e400 is infinite, and "2" no share. Bounds are powers of ten, which an expression without arithmetic can
tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

MOST = 10**9
"""Of a whole number without a bound of its own: floats, in which helm holds it, still tell it from the next one."""
DIGITS = 38
"""Before the point, of any other number: from 10**38 on, fp32 has little but infinity."""

ZEROS, MORE = "0{0,9}", "[0-9]{0,30}"


def with_bounds(entry: Schema) -> dict[str, Any]:
    """The JSON schema of one setting, with the upper bound that it lacks if it is a number."""
    if entry.get("type") == "integer" and "maximum" not in entry:
        return {**entry, "maximum": MOST}
    if entry.get("type") == "number" and not {"maximum", "exclusiveMaximum"} & entry.keys():
        return {**entry, "exclusiveMaximum": 10.0**DIGITS}
    return dict(entry)


def text_pattern(entry: Schema) -> str:
    """What a text must match to be a number within the bounds, in the syntax that RE2, ECMA-262 and Python share.

    Written plainly (0.0015), or with one digit before the point and an exponent (1.5e-3).
    """
    if entry["type"] == "integer":
        return "^-?[0-9]{1,18}$"  # its bounds are those of the number
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
    """From 10**-1 to 10**-9 on, that itself among them, up to a number of so many digits from 1 on."""
    places = round(-math.log10(least))
    assert least == 10.0**-places and 1 <= places <= 9 and digits
    plain = rf"{ZEROS}[1-9][0-9]{{0,{digits - 1}}}(\.{MORE})?|0{{1,9}}\.0{{0,{places - 1}}}[1-9]{MORE}"
    exponent = rf"(-{ZEROS}[0-{places}]|\+?{ZEROS}{_up_to(digits - 1)})"
    return rf"^({plain}|[1-9](\.{MORE})?[eE]{exponent}{itself})$"


def number_problem(entry: Schema, value: Any) -> str | None:
    """What is expected instead of this text or number; None where there is nothing to say."""
    entry = with_bounds(entry)
    if entry.get("type") not in ("integer", "number") or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and re.fullmatch(text_pattern(entry), value):
        value = float(value) if entry["type"] == "number" else int(value)
    if isinstance(value, str) or not _is_within(entry, value):
        return _expectation(entry)
    return None


def _is_within(entry: Schema, value: float) -> bool:
    return (
        math.isfinite(value)
        and value >= entry.get("minimum", -math.inf)
        and value > entry.get("exclusiveMinimum", -math.inf)
        and value <= entry.get("maximum", math.inf)
        and value < entry.get("exclusiveMaximum", math.inf)
    )


def _expectation(entry: Schema) -> str:
    if entry["type"] == "integer":
        return f"expected a whole number from {entry['minimum']} to {entry['maximum']}"
    lowest = "above 0" if "exclusiveMinimum" in entry else f"from {entry['minimum']:g}"
    most = (
        f"and below {entry['exclusiveMaximum']:g}"
        if "exclusiveMaximum" in entry
        else f"to {entry['maximum']:g}"
    )
    return f"expected a number {lowest} {most}, written as 0.0015 or 1.5e-3"


def _exactly(digits: int) -> str:
    """10**digits, as one more way to match."""
    return rf"|{ZEROS}10{{{digits}}}(\.0{{0,30}})?|1(\.0{{0,30}})?[eE]\+?{ZEROS}{digits}"


def _up_to(largest: int) -> str:
    """Whole numbers from 0 to `largest`, below 100."""
    tens, ones = divmod(largest, 10)
    below = f"[1-{tens - 1}][0-9]|" if tens > 1 else ""
    last = f"|{tens}[0-{ones}]" if tens else ""
    return f"({below}[0-{9 if tens else ones}]{last})"
