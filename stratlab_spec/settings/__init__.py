"""Allowed values of one setting (bounds, folders for results, faults, text columns), and old names of settings.

Bounds of a number hold for numbers and for text, in the trainer and in the charts' schema. A pod's variables are
text, and helm turns numbers that `--set` cannot read (0.00001, 1e-5) into text. 1e400 is infinite, and "2" is not a
share. Bounds are powers of ten, which a regular expression can check without arithmetic.

The results volume must not hide a folder of the system, of the images or of the pods.

Faults are written as `kind@step[:rank][!]`, several with commas between them.

`text_columns` is the part of each column of a text data set: `query=instruction,response=output` maps parts to columns;
`qa.q` is a field of the column `qa`. Names without parts are allowed if they are clear: one column, or the question and
the answer.

`RENAMED` has names of settings from the previous version: this version still reads them, and logs one note.
"""

from __future__ import annotations

import functools
import logging
import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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


ITSELF = (
    *("", "bin", "boot", "dev", "dev/shm", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc"),
    *("root", "run", "sbin", "sys", "tmp", "usr", "usr/local", "var"),
)
"""May not be the volume, but hold it."""
WITH_ALL_BELOW = (
    *("bin", "boot", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr/bin", "usr/lib"),
    *("usr/lib32", "usr/lib64", "usr/sbin", "usr/share", "usr/local/bin", "usr/local/lib", "opt/venv"),
    *("opt/package", "opt/kube", "home/mpiuser", "run/secrets", "var/run", "var/lib/kubelet"),
)

PATTERN = f"^/(({'|'.join(filter(None, ITSELF))})?/?|({'|'.join(WITH_ALL_BELOW)})(/.*)?)$"
"""Pattern of an absolute path without empty parts, for the charts' schema."""


def is_reserved(path: str) -> bool:
    """Return whether an absolute path, however it is written, is one of them. A relative one never is."""
    return path.startswith("/") and bool(re.match(PATTERN, "/" + posixpath.normpath(path).lstrip("/")))


KINDS = {
    "kill": "the rank ends without a word (SIGKILL)",
    "hang": "the rank hangs without ending",
    "slow": "from here on each step of the rank takes twice as long",
    "nan": "the loss of the rank's samples is not a number, in this step",
    "oom": "the rank runs out of memory of its accelerator; on a CPU torch's error is raised",
    "disk-full": "from here on the rank cannot write more than 4 KiB into any file",
    "corrupt": "one bit of the newest committed checkpoint changes",
}
"""Kind -> what happens at the beginning of the step (trainer/fault_injection.py)."""
FAULT = rf"({'|'.join(KINDS)})@([1-9][0-9]{{0,8}})(:[0-9]{{1,6}})?!?"
FAULTS = rf"^({FAULT}(,{FAULT})*)?$"


@dataclass(frozen=True)
class Fault:
    """One fault of one rank.

    Attributes:
        every_attempt: it happens whenever the step is reached; else once in the run.
    """

    kind: str
    step: int
    rank: int
    every_attempt: bool

    @property
    def name(self) -> str:
        """As a file name."""
        return f"{self.kind}@{self.step}_{self.rank}"


def read_faults(text: str) -> list[Fault]:
    """Return the faults of the setting; rank 0's by default."""
    found = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(FAULT, part)
        assert match, part
        rank = int((match[3] or ":0")[1:])
        found.append(Fault(match[1], int(match[2]), rank, part.endswith("!")))
    return found


def fault_problems(text: str, allowed: bool) -> Iterator[str]:
    """Yield the reasons that forbid the setting."""
    if text and not allowed:
        yield (
            f"TRAINER_FAULT={text!r}: plants a fault in the run, which is allowed only with run.allowFaults=true "
            "(TRAINER_ALLOW_FAULTS=true without a chart) [SL-fault-not-allowed]"
        )


def rank_problems(text: str, world_size: int) -> Iterator[str]:
    """Yield faults of ranks that the run does not have."""
    for fault in read_faults(text):
        if fault.rank >= world_size:
            yield (
                f"TRAINER_FAULT={text!r}: there is no rank {fault.rank}, only 0 to {world_size - 1} "
                "[SL-fault-rank]"
            )


def step_problems(text: str, steps: int) -> Iterator[str]:
    """Yield faults of steps beyond the run's end: the run would end with 0, and show nothing."""
    for fault in read_faults(text):
        if fault.step > steps:
            yield f"TRAINER_FAULT={text!r}: there is no step {fault.step}, only 1 to {steps} [SL-fault-step]"


COLUMNS_PATTERN = r"^([^=,]+(=[^=,]+)?(,[^=,]+(=[^=,]+)?)*)?$"
CHAT, TEXT = "messages", "text"
QUESTION, ANSWER, CONTEXT, SYSTEM = "query", "response", "context", "system"
START, END = "prompt", "completion"
FORMS = (
    ({QUESTION, ANSWER}, {CONTEXT, SYSTEM}),
    ({START, END}, set[str]()),
    ({CHAT}, {SYSTEM}),
    ({TEXT}, set[str]()),
)
"""Parts that belong together: those that are needed, and those that may be added."""
EXAMPLE = (
    "query=COLUMN,response=COLUMN with or without context=COLUMN and system=COLUMN, prompt=COLUMN,completion=COLUMN, "
    "messages=COLUMN or text=COLUMN"
)


def parse_text_columns(given: str) -> dict[str, str]:
    """Return part -> column; the part of a single name is "".

    Raises:
        ValueError: parts do not belong together; the message names those that do.
    """
    pairs = [each.strip().rpartition("=") for each in given.split(",") if each.strip()]
    names = [column.strip() for _, _, column in pairs]
    parts = [part.strip() for part, _, _ in pairs]
    if not any(parts) and len(names) <= 2:
        return dict(zip((QUESTION, ANSWER) if len(names) == 2 else ("",), names, strict=False))
    found = dict(zip(parts, names, strict=True))
    if len(found) == len(parts) and any(needed <= {*parts} <= needed | more for needed, more in FORMS):
        return found
    raise ValueError(f"expected {EXAMPLE} [SL-text-columns-form]")


RENAMED = {
    "distil_temperature": "distill_temperature",
    "distil_weight": "distill_alpha",
    "cp_kind": "cp_method",
    "oom_ladder": "oom_fallback",
}
"""Old name -> name."""

Value = TypeVar("Value")
log = logging.getLogger("trainer")


def take_new_names(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings by today's names, of variables, files or a run directory; of both names of one, the new one
    wins.
    """
    old = {name: value for name, value in settings.items() if name in RENAMED}
    if old:
        _say(tuple(sorted(old)))
    return {RENAMED[name]: value for name, value in old.items()} | {
        name: value for name, value in settings.items() if name not in old
    }


@functools.cache
def _say(names: tuple[str, ...]) -> None:
    pairs = ", ".join(f"{name} -> {RENAMED[name]}" for name in names)
    log.warning("old names of settings: %s; the next version does not read them [SL-setting-renamed]", pairs)
