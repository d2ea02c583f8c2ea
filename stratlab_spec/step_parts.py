"""The parts of a recorded step: how a rank spent it, how the parts sum, and their names for readers.

    step = compute + exposed communication + exposed copies + idle
    exposed communication = transfer, per collective + straggler (waiting for the last rank) + bubble
    idle = data wait + host wait + launch wait + kernel wait + other

The analysis has one number per part and step (`<part>_ms`) and their shares in its means (`<part>_pct`). report.json
divides the mean step into the parts with a `key`; a comparison subtracts two of these, in coarser `causes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

COMM_EXPOSED_PCT = "comm_exposed_pct"  # also a rank's own count (trace_events.py)
PROFILED_MS = "profiled_ms"  # the time of the steps that it is a share of

COMPUTE = "compute"
COMMUNICATION = "communication"
LAST_RANK = "waiting for the last rank"
COPIES = "copies"
BUBBLE = "pipeline bubble"
DATA = "waiting for data"
HOST = "waiting for the host"
LAUNCH = "launching"
IDLE = "other idle"
COLOURS = {  # in the order of bars; places in the palette, the same in all charts; 13 is 5, lighter
    COMPUTE: 0,
    COMMUNICATION: 1,
    LAST_RANK: 3,
    COPIES: 2,
    BUBBLE: 6,
    DATA: 4,
    HOST: 5,
    LAUNCH: 13,
    IDLE: 7,
}


def _part(meaning: str, within: str = "", *, key: str = "", words: str = "", cause: str = "") -> Any:
    named = {"meaning": meaning, "within": within, "key": key, "words": words, "cause": cause or key}
    return field(metadata=named)


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """The parts of a step or of one of its phases, ms; None = not known. In tables the columns are in this order."""

    compute_ms: float = _part(
        "union of the compute kernels (gpu) or of the operators (cpu)", key="compute", words=COMPUTE
    )
    comm_ms: float = _part("union of the communication, hidden or not")
    comm_overlap_ms: float = _part("communication while something computed", "comm")
    comm_exposed_ms: float = _part(
        "communication while nothing computed; with straggler and bubble",
        "comm",
        key="comm",
        words=COMMUNICATION,
    )
    straggler_ms: float = _part(
        "exposed communication before the last rank came", "comm_exposed", key="straggler", words=LAST_RANK
    )
    bubble_ms: float = _part(
        "exposed point-to-point communication of a pipeline", "comm_exposed", key="bubble", words=BUBBLE
    )
    copy_ms: float = _part("union of the copies, hidden or not")
    copy_exposed_ms: float = _part(
        "copies while nothing computed or communicated", "copy", key="copy", words=COPIES, cause="copies"
    )
    idle_ms: float = _part("nothing ran")
    data_wait_ms: float | None = _part(
        "idle under the host's label of data loading; empty without such a label",
        "idle",
        key="data",
        words=DATA,
    )
    host_wait_ms: float = _part(
        "idle until the host launched the next event; on the cpu all other idle time",
        "idle",
        key="host",
        words=HOST,
    )
    launch_wait_ms: float = _part(
        "idle between a launch and the start of its event, or inside the launch itself",
        "idle",
        key="launch",
        words=LAUNCH,
        cause="host",
    )
    kernel_wait_ms: float = _part(
        "idle in gaps below 30 us between queued events", "idle", key="kernel_wait", words=IDLE, cause="idle"
    )
    other_idle_ms: float = _part(
        "the rest of the idle time", "idle", key="other_idle", words=IDLE, cause="idle"
    )


@dataclass(frozen=True)
class Part:
    """One field of `PartTimes`.

    Attributes:
        name: of the field, without its unit.
        meaning: for the schema of the tables.
        within: the part that it is a share of.
        key: under `parts` of report.json; empty for a sum of other parts. Such a part counts there without the parts
            within it, as exposed communication does without straggler and bubble.
        words: on pages and in sentences.
        cause: in a comparison, which has fewer of them.
    """

    name: str
    meaning: str
    within: str
    key: str
    words: str
    cause: str


PARTS = tuple(Part(each.name.removesuffix("_ms"), **each.metadata) for each in fields(PartTimes))
IDLE_PARTS = tuple(part.name for part in PARTS if part.within == "idle")
WORDS = {part.key: part.words for part in PARTS if part.key}
CAUSES = {part.key: part.cause for part in PARTS if part.key}
SHARES = tuple(p.name for p in PARTS if p.name not in ("comm_overlap", "copy"))  # in means, % of the step


def split_step(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return words -> ms of a row of steps or phases, in the order of bars; they sum to its length. None = not
    known.
    """
    sums: dict[str, float | None] = dict.fromkeys(COLOURS, 0.0)
    for part in PARTS:
        if part.key:
            inner = [row.get(f"{each.name}_ms") for each in PARTS if each.within == part.name]
            known = [sums[part.words], row.get(f"{part.name}_ms"), *inner]
            sums[part.words] = None if None in known else known[0] + known[1] - sum(inner)  # type: ignore
    return sums
