"""Format numbers, counts and settings for a reader, and name the allowed words next to an unknown one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

MISSING = "-"


def format_number(value: object, digits: int | None = None) -> str:
    """Format a number with 4 significant digits, or with `digits` decimals; `-` for None, yes/no for a truth value.

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


def format_count(value: object, noun: str, plural: str = "s") -> str:
    """Format a number with its noun, in the plural unless it is one; `plural` sets another ending.

    >>> [format_count(value, "node") for value in (1, 2, "2 / 4")], format_count(1, "process", "es")
    (['1 node', '2 nodes', '2 / 4 nodes'], '1 process')
    """
    return f"{format_number(value)} {noun}{'' if value == 1 else plural}"


def count_processes(processes: object, nodes: object, machines: object = None) -> str:
    """Format the number of a run's processes with their nodes.

    Args:
        nodes: the run's setting, one pod each.
        machines: nodes of those pods; None = unknown.

    >>> count_processes(8, 2), count_processes(8, 2, 2), count_processes(8, 2, 1)
    ('8 processes on 2 nodes', '8 processes on 2 nodes', '8 processes in 2 pods on 1 node')
    """
    said = format_count(processes, "process", "es")
    if machines in (None, nodes):
        return f"{said} on {format_count(nodes, 'node')}"
    return f"{said} in {format_count(nodes, 'pod')} on {format_count(machines, 'node')}"


def fit_unit(gib: Iterable[object]) -> tuple[float, str]:
    """Return (factor, unit) for the largest of some sizes in GiB: 0.0007 GiB are 0.72 MiB.

    >>> [fit_unit(sizes) for sizes in ([17.5, 0.01, None], [0.0007, 0.0014], [2e-6], [0.0], [])]
    [(1.0, 'GiB'), (1024.0, 'MiB'), (1048576.0, 'KiB'), (1.0, 'GiB'), (1.0, 'GiB')]
    """
    sizes = [abs(size) for size in gib if isinstance(size, (int, float)) and math.isfinite(size)]
    largest = max(sizes, default=0.0)
    if largest == 0 or largest >= 0.1:
        return 1.0, "GiB"
    return (1024.0, "MiB") if largest * 1024 >= 0.1 else (1024.0**2, "KiB")


def fit_digits(values: Iterable[float]) -> int:
    """Return the decimals for the largest number of a table: 326.1 with 0.4, 2.501 with 0.008.

    >>> [fit_digits(values) for values in ([326.1, 0.4], [-28.2], [2.5, 0.008], [0.02], [])]
    [1, 2, 3, 4, 3]
    """
    largest = max((abs(value) for value in values), default=1.0)
    return 1 if largest >= 100 else 2 if largest >= 10 else 3 if largest >= 1 else 4


def format_range(values: Iterable[object], unit: str = "", digits: int | None = None) -> str:
    """Format the least and the largest number with their unit; "" without a number.

    >>> format_range([3.5, None, 1.25], "ms"), format_range([2, 2], "%"), format_range([None])
    ('1.25 to 3.5 ms', '2 %', '')
    """
    known = [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    if not known:
        return ""
    ends = dict.fromkeys(format_number(value, digits) for value in (min(known), max(known)))
    return f"{' to '.join(ends)} {unit}".rstrip()


def name_few(names: Sequence[str], most: int = 4) -> str:
    """Name the first of many.

    >>> name_few(["a", "b", "c"]), name_few([*"abcdef"])
    ('a, b, c', 'a, b, c, d, 2 more')
    """
    more = len(names) - most
    return ", ".join([*names[:most], *([f"{more} more"] if more > 0 else [])])


def quote(name: object) -> str:
    """Set a name that a user chose apart from the words around it.

    >>> quote("failed")
    '“failed”'
    """
    return f"“{name}”"


def format_fact(value: object) -> str:
    """Format a setting or a fact as YAML: true and false.

    >>> [format_fact(v) for v in (True, False, 25, "auto")]
    ['true', 'false', '25', 'auto']
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


FEW = 12
"""Up to this number, all names are listed."""
NEAREST = 4


def ask_nearest(word: str, known: Iterable[str]) -> str:
    """Return a question with a similar known word; "" without one.

    >>> ask_nearest("fdsp", ["ddp", "fsdp"]), ask_nearest("banana", ["ddp", "fsdp"])
    ('did you mean fsdp?', '')
    """
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def name_allowed(word: str, known: Sequence[str], lead: str, place: str) -> str:
    """Return the nearest name, then after `lead` all names if they are few, else their number and `place`.

    >>> name_allowed("fdsp", ["ddp", "fsdp"], "expected one of", "in a file")
    'did you mean fsdp? expected one of ddp, fsdp'
    >>> name_allowed("modle", ["mode", "model", *"abcdefghijk"], "expected one of", "in a file")
    'did you mean mode or model? expected one of the 13 in a file'
    """
    if len(known) <= FEW:
        told = (ask_nearest(word, known), f"{lead} {', '.join(known)}")
    else:
        told = (_ask_several(word, known), f"{lead} the {len(known)} {place}")
    return " ".join(filter(None, told))


def _ask_several(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, sorted(known), n=NEAREST)
    return f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?" if near else ""


def capitalize(sentence: str) -> str:
    """Return the sentence with a capital first letter; the other letters stay, as in names."""
    return f"{sentence[:1].upper()}{sentence[1:]}"
