"""The place of a run: its layout over the processes, its nodes and GPUs, and other runs at the same time.

build_layout    axes, the promise of its name, bytes over each axis, the memory of each pipeline stage.
apply_place     facts that need more than one file or run: they turn a `RunRecord` into a `ComparedRun`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord

STATE = ("parameters", "gradients", "optimizer")
PEAKS = ("peak_memory_gib", "peak_host_memory_gib")
KINDS = {"pp": "pp_schedule", "cp": "cp_method"}
"""Axis -> the setting of its method; absent at size 1."""
FULL_CLOCK_PCT = 95.0
"""A GPU that reached this share of its highest clock at least once was not held below it."""
CLOCK_CLASS_PCT = 5.0
"""Steps by which GPUs with lower clocks are distinguished."""
SLOWED_PCT = 1.0
"""Percent of the seconds of a run: heat or a power brake for longer than this matters."""
Window = tuple[float, float]
"""Seconds since 1970."""


@dataclass(frozen=True)
class RunPlacement:
    """The nodes and times of a run; None if unknown."""

    nodes: list[str] | None = None
    """Names of the machines, sorted."""
    ranks_per_node: list[int] | None = None
    """How many ranks each machine had, sorted: two pods may be on one node or on two."""
    beside: str | None = None
    """Names of the runs, of these, that were alive on one of its nodes while its steps were timed, or "none"."""
    clock: str | None = None
    """How fast its slowest GPU was seen to be: "full", "about 60 % of 1,980 MHz", "no GPU"."""
    slowed: str = "none seen"
    """For how much of the time its hottest GPU held itself back: "none seen", "12 % of the time"."""
    gpudirect: str | None = None
    """Whether the network reads the devices' memory on any channel: "yes", "no". Strategies open other channels."""


@dataclass(frozen=True, repr=False)
class ComparedRun(RunRecord):
    """A run with facts from the other compared runs."""

    place: RunPlacement = RunPlacement()
    tuning: str = ""
    """Of `run_sources.apply_tuning`; "" = no tuning is known."""


def build_layout(run: RunRecord) -> dict[str, Any]:
    """Return the layout of one run, as fields of `RunRow`; None or empty for strategies without one.

    Returns:
        layout (pp2.dp2.tp2+sp), dimensions, degenerate, missing_dimensions, sequence_parallel, layout_reason,
        pp_schedule and cp_method (of an axis above 1), and stages: see `build_stages`. wire_bytes_per_axis is {axis:
        bytes that the busiest rank sends in a step}. collectives_per_axis is {axis: {collective: calls of the rank
        with most in a step}}.
    """
    layout, sent = _mapping(run.resolved.get("layout")), _mapping(run.summary.get("wire_bytes_per_axis"))
    axes = _mapping(run.resolved.get("axes"))
    names = {"layout": "name", "dimensions": "dimensions", "sequence_parallel": "sequence_parallel"}
    return {
        **{
            name: run.summary.get(name) if layout.get(key) is None else layout[key]
            for name, key in names.items()
        },
        "degenerate": run.degenerate,
        "missing_dimensions": run.missing_dimensions,
        "layout_reason": layout.get("reason"),
        **{kind: run.settings.get(kind) for axis, kind in KINDS.items() if (axes.get(axis) or 1) > 1},
        "wire_bytes_per_axis": {axis: size for axis, size in sent.items() if is_number(size)},
        "collectives_per_axis": _count_collectives(run.ranks),
        "stages": build_stages(run.ranks) if layout else [],
    }


def build_stages(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the memory of each stage of the pipeline: of the rank with most.

    Returns:
        [{stage, ranks, parameters, gradients, optimizer, state (GiB), peak_memory_gib, peak_host_memory_gib}]; None
        if a rank has no record.
    """
    by_stage: dict[int, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        stage = _mapping(rank.get("coordinates")).get("pp")
        if isinstance(stage, int):
            by_stage.setdefault(stage, []).append(rank)
    found = []
    for stage, members in sorted(by_stage.items()):
        held = [[_mapping(rank.get("state_memory_gib")).get(kind) for kind in STATE] for rank in members]
        largest = {
            kind: _largest(column) for kind, column in zip(STATE, zip(*held, strict=True), strict=True)
        }
        largest["state"] = _largest(sum(each) if all(map(is_number, each)) else None for each in held)
        peaks = {name: _largest(rank.get(name) for rank in members) for name in PEAKS}
        found.append({"stage": stage, "ranks": len(members), **largest, **peaks})
    return found


def _count_collectives(ranks: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    most: dict[str, dict[str, int]] = {}
    for rank in ranks:
        for axis, kinds in _mapping(rank.get("collectives_per_axis")).items():
            for kind, counted in _mapping(kinds).items():
                count = counted[0] if isinstance(counted, list) and counted else None
                if is_number(count):
                    of_axis = most.setdefault(axis, {})
                    of_axis[kind] = max(of_axis.get(kind, 0), int(count))
    return most


def _largest(values: Iterable[Any]) -> float | None:
    """Return the largest, or None if one of them is unknown, because it could be the largest."""
    known = list(values)
    return max(known) if known and all(map(is_number, known)) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def apply_place(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Return the runs with their `place`."""
    return [
        replace(run, place=_read_place(run, [other for other in runs if other is not run])) for run in runs
    ]


def _read_place(run: RunRecord, others: Sequence[RunRecord]) -> RunPlacement:
    nodes = [rank.get("node") for rank in run.ranks]
    known = bool(nodes) and all(nodes)
    clock, slowed = _read_gpus(run)
    return RunPlacement(
        nodes=sorted(set(map(str, nodes))) if known else None,
        ranks_per_node=sorted(Counter(nodes).values(), reverse=True) if known else None,
        beside=_find_beside(run, others),
        clock=clock,
        slowed=slowed,
        gpudirect={"yes": "yes", "partly": "yes", "no": "no"}.get(str(run.summary.get("gpudirect"))),
    )


def _find_beside(run: RunRecord, others: Sequence[RunRecord]) -> str | None:
    """Return another run on the same nodes at the same time.

    A run that began on other nodes, or after this run's last step, has not taken resources from it.
    """
    nodes, steps = _read_nodes(run), _find_steps(run)
    if nodes is None or not steps:
        return None
    beside = []
    for other in others:
        if not any(_overlap(mine, theirs) for mine in steps for theirs in _find_lives(other)):
            continue
        its_nodes = _read_nodes(other)
        if its_nodes is None:
            return None
        if nodes & its_nodes:
            beside.append(other.name)
    return ", ".join(sorted(beside)) or "none"


def _read_nodes(run: RunRecord) -> set[str] | None:
    """Return the nodes of all attempts; None if one of them has no record."""
    started = [line.get("nodes") for line in run.attempts if line["event"] == "started"]
    if not started or not all(isinstance(nodes, list) and nodes for nodes in started):
        return None
    return {str(node) for nodes in started for node in nodes or []}


def _find_steps(run: RunRecord) -> list[Window]:
    """Return the time from the start of the first written step to the end of the last; without steps, of the
    attempts.
    """
    lines = [line for line in run.metrics if line["kind"] == "train"]
    if not lines:
        return _find_lives(run)
    first = min(lines, key=lambda line: line["t"])
    took_ms = first.get("step_time_ms")
    began = first["t"] - (took_ms / 1e3 if is_number(took_ms) else 0.0)
    return [(began, max(line["t"] for line in lines))]


def _find_lives(run: RunRecord) -> list[Window]:
    """Return start and end of each attempt; an unfinished one ends at its last line."""
    last = max([line["t"] for line in run.metrics], default=0.0)
    ends = [*(line["t"] for line in run.attempts[1:]), None]
    return [
        (line["t"], max(line["t"], last) if end is None else end)
        for line, end in zip(run.attempts, ends, strict=False)
        if line["event"] == "started"
    ]


def _overlap(a: Window, b: Window) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _read_gpus(run: RunRecord) -> tuple[str | None, str]:
    """Return `clock` and `slowed` of the place."""
    gpus = [rank["gpu"] for rank in run.ranks if isinstance(rank.get("gpu"), dict)]
    if len(gpus) != len(run.ranks) or not gpus:
        return "no GPU" if run.resolved.get("device_type") == "cpu" else None, "none seen"
    slowed = max((gpu["slowed_pct"] for gpu in gpus if is_number(gpu.get("slowed_pct"))), default=0.0)
    told = f"{slowed:.0f} % of the time" if slowed > SLOWED_PCT else "none seen"
    pairs = [(gpu.get("highest_clock_mhz"), gpu.get("clock_limit_mhz")) for gpu in gpus]
    shares = [(100 * a / b, b) for a, b in pairs if is_number(a) and is_number(b) and b]
    if len(shares) != len(pairs):
        return None, told
    share, limit = min(shares)
    about = f"about {CLOCK_CLASS_PCT * round(share / CLOCK_CLASS_PCT):.0f} % of {limit:,.0f} MHz"
    return "full" if share >= FULL_CLOCK_PCT else about, told
