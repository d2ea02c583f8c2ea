"""How a run uses its processes: axes, what its name promises, bytes over each axis, what each stage holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord

STATE = ("parameters", "gradients", "optimizer")
PEAKS = ("peak_memory_gib", "peak_host_memory_gib")
KINDS = {"pp": "pp_schedule", "cp": "cp_kind"}  # axis -> the setting that says how it works


def build_layout(run: RunRecord) -> dict[str, Any]:
    """The layout of one run; None or empty where the strategy has none.

    Returns:
        layout (pp2.dp2.tp2+sp), dimensions, degenerate, missing_dimensions, sequence_parallel, layout_reason,
        pp_schedule and cp_kind (of an axis above 1), wire_bytes_per_axis {axis: bytes that the busiest rank sends in a
        step}, collectives_per_axis {axis: {collective: calls of the rank with most in a step}}, and stages: see
        `build_stages`.
    """
    settings, resolved = run.config.get("config", {}), run.config.get("resolved", {})
    layout, axes = (_mapping(resolved.get(name)) for name in ("layout", "axes"))

    def read(name: str, key: str) -> Any:
        return layout[key] if layout.get(key) is not None else run.summary.get(name)

    sent = _mapping(run.summary.get("wire_bytes_per_axis"))
    return {
        "layout": read("layout", "name"),
        "dimensions": read("dimensions", "dimensions"),
        "degenerate": run.degenerate,
        "missing_dimensions": run.missing_dimensions,
        "sequence_parallel": read("sequence_parallel", "sequence_parallel"),
        "layout_reason": layout.get("reason"),
        **{kind: settings.get(kind) if (axes.get(axis) or 1) > 1 else None for axis, kind in KINDS.items()},
        "wire_bytes_per_axis": {axis: size for axis, size in sent.items() if is_number(size)},
        "collectives_per_axis": _count_collectives(run.ranks),
        "stages": build_stages(run.ranks) if layout else [],
    }


def build_stages(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the ranks of each stage of the pipeline hold: the rank with most of each.

    Returns:
        [{stage, ranks, parameters, gradients, optimizer, state (GiB), peak_memory_gib, peak_host_memory_gib}]; None
        where a rank does not tell.
    """
    by_stage: dict[int, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        stage = _mapping(rank.get("coordinates")).get("pp")
        if isinstance(stage, int):
            by_stage.setdefault(stage, []).append(rank)
    return [
        {
            "stage": stage,
            "ranks": len(members),
            **{kind: _largest(_held(rank, kind) for rank in members) for kind in STATE},
            "state": _largest(_sum([_held(rank, kind) for kind in STATE]) for rank in members),
            **{name: _largest(rank.get(name) for rank in members) for name in PEAKS},
        }
        for stage, members in sorted(by_stage.items())
    ]


def find_repeated_layouts(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Layout -> runs that asked for other numbers of dimensions and got the same one."""
    found: dict[str, dict[Any, str]] = {}
    for row in rows:
        if row["layout"]:
            found.setdefault(row["layout"], {}).setdefault(row["dimensions"], row["run"])
    return {layout: list(asked.values()) for layout, asked in found.items() if len(asked) > 1}


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


def _held(rank: Mapping[str, Any], kind: str) -> float | None:
    value = _mapping(rank.get("state_memory_gib")).get(kind)
    return float(value) if is_number(value) else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _largest(values: Iterable[Any]) -> float | None:
    """None where one of them is not known: it could be the largest."""
    found = list(values)
    return max(found) if found and all(is_number(value) for value in found) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
