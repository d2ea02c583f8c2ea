"""The effect of more devices: their speed-up, and each device's share of the state.

build_scaling    series of runs that differ only in the number of processes: speed-up and efficiency.
build_sharding   a rank's part of the state, against an even share and the strategy's promise.

The state is the memory of one process without sharding: parameters, gradients, the optimizer's moments, and fp32
copies of trained parameters if these are kept in fewer bits. All of it is counted bytes, exact on any hardware.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.placement import STATE, ComparedRun
from stratlab.compare.run_rows import Rows
from stratlab.compare.variants import SEED_FACTS, build_variants, is_same_but_strategy
from stratlab.compare.winners import Band
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord
from stratlab.wording import fit_unit
from stratlab_spec.registry import OPTIMIZERS
from stratlab_spec.strategies import STRATEGIES, Held

GIB = 2**30
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FP32 = 4
TOLERANCE_PCT = 5.0
"""Shards are padded, and a tensor that crosses the border of two shards is held whole by one of them."""
NUMBERS = (
    *("divided_by", "state_gib", "even_share_gib", "promised_gib", "held_gib", "kept"),
    *("sharding_effectiveness_pct", "promised_effectiveness_pct"),
)
"""Numbers of an entry of `build_sharding`; None if unknown."""
AS_PROMISED = "as promised"
NOT_YET_COUNTED = (
    "recorded before the copy in each node was counted: it held the promised bytes, and told fewer"
)
"""Of ZeRO++, to November 2026."""
PLACE = {"world_size", "nodes", "processes_per_node", "reduction dtypes", "ranks on each node"}
"""Facts that follow from the number of processes."""
LENGTH = {"resolved.steps", "steps done", "resolved.profile_first_step"}
SHARED_CORES = "the processes share the cores of one machine: this says nothing about GPUs"


@dataclass(frozen=True)
class Kind:
    """A kind of scaling. `free`: facts that follow from the world size in it, in addition to PLACE."""

    name: str
    what: str
    free: frozenset[str]


KINDS = (
    Kind("strong", "the same global batch, fewer accumulations", frozenset({"grad_accum_steps"})),
    Kind("strong", "the same global batch, smaller micro-batches", frozenset({"micro_batch_size"})),
    Kind(
        "weak",
        "the same micro-batch per device, a larger global batch",
        frozenset({"global_batch_size", *LENGTH}),
    ),
)
FREE = frozenset(PLACE | SEED_FACTS).union(*(kind.free for kind in KINDS))
"""Facts in which the runs of a series may differ, repeats with another seed among them."""


def build_scaling(runs: Sequence[ComparedRun], rows: Rows, band: Band | None = None) -> list[dict[str, Any]]:
    """Return series of runs that differ only in the world size and its consequences.

    speedup = samples_per_s / samples_per_s with the fewest devices of the series; scaling_efficiency_pct = 100 x
    speedup / (world size / the fewest). The same is computed against `single` runs that differ only in the strategy,
    if there are any. Then one world size above 1 is a series already, without a speed-up of its own.

    Args:
        band: of the median step times; None = no repeats.

    Returns:
        [{strategy, dimensions (of its layout, or None), kind strong|weak, `what`, note, baseline (world size of the
        fewest devices), single, backend, hardware, measured_steps, repeats, points}]. single is {runs, samples_per_s}
        or None. measured_steps is the smallest number of a run, repeats the smallest of a point. A point is
        {world_size, nodes, runs, samples_per_s (median of repeats), samples_per_s_per_device, speedup, speedup_noise,
        scaling_efficiency_pct, speedup_vs_single, efficiency_vs_single_pct}. speedup_noise is a half width, None
        without repeats.
    """
    by_name = {row.run: row for row in rows}
    alone = [run for run in runs if run.is_compared and run.strategy == "single"]
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        aside = PLACE | kind.free
        for group in build_variants(runs, aside, with_axes=False):
            members = [by_name[run.name] for run in group]
            timed = [row for row in members if row.samples_per_s and row.world_size]
            same = [run for run in alone if run not in group and is_same_but_strategy(run, group[0], aside)]
            single = [row for run in same if (row := by_name[run.name]).samples_per_s]
            points = _build_points(timed, single, band)
            if any(series["points"] == points for series in found):
                continue
            every = [row for row in (*members, *single) if row.global_batch_size and row.world_size]
            shares = {(row.global_batch_size or 0) / (row.world_size or 1) for row in every}
            grown = kind.name == "strong" or len(shares) == 1  # the global batch along with the world size
            sizes = {point["world_size"] for point in points} | ({1} if single else set())
            if points and len(sizes) > 1 and grown:
                found.append(_describe(kind, timed, single, points))
    return found


def _describe(kind: Kind, rows: Rows, single: Rows, points: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    steps = [row.measured_steps for row in (*rows, *single) if row.measured_steps]
    return {
        "strategy": first.strategy,
        "dimensions": first.dimensions,
        "kind": kind.name,
        "what": kind.what,
        "note": SHARED_CORES if any(row.device_type == "cpu" for row in rows) else "",
        "baseline": points[0]["world_size"],
        "single": {"runs": [row.run for row in single], "samples_per_s": _median(single)} if single else None,
        "backend": first.backend,
        "hardware": first.device_name,
        "measured_steps": min(steps, default=None),
        "repeats": min(len(point["runs"]) for point in points),
        "points": points,
    }


def _build_points(rows: Rows, single: Rows, band: Band | None) -> list[dict[str, Any]]:
    sizes = sorted({row.world_size or 1 for row in rows})
    by_size = {size: [row for row in rows if row.world_size == size] for size in sizes}
    speeds = {size: _median(here) for size, here in by_size.items()}
    alone = _median(single) if single else None
    points: list[dict[str, Any]] = []
    for size, here in by_size.items():
        fewest = min(by_size)
        speedup = speeds[size] / speeds[fewest] if len(by_size) > 1 else None
        against = speeds[size] / alone if alone else None
        noise = None
        if band and speedup is not None and size != fewest:  # half width around the quotient of two medians
            noise = speedup * band.of_difference(1.0, 1.0, len(here), len(by_size[fewest]))
        points.append(
            {
                "world_size": size,
                "nodes": max(row.nodes or 1 for row in here),
                "runs": [row.run for row in here],
                "samples_per_s": speeds[size],
                "samples_per_s_per_device": speeds[size] / size,
                "speedup": speedup,
                "speedup_noise": noise,
                "scaling_efficiency_pct": None if speedup is None else 100 * speedup * fewest / size,
                "speedup_vs_single": against,
                "efficiency_vs_single_pct": None if against is None else 100 * against / size,
            }
        )
    return points


def _median(rows: Rows) -> float:
    return statistics.median(row.samples_per_s or 0.0 for row in rows)


def name_series(series: Mapping[str, Any]) -> str:
    """Return `ddp`, `nd 2D`."""
    dimensions = f" {series['dimensions']}D" if series["dimensions"] else ""
    return f"{series['strategy']}{dimensions}"


def say_scaling(scaling: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return `ddp, strong scaling, 1 -> 4: 3.1 +- 0.1 times as fast (efficiency 78 %)`, and against `single`."""
    sentences = []
    for series in scaling:
        last, kind = series["points"][-1], f"{name_series(series)}, {series['kind']} scaling"
        noise = f" \N{PLUS-MINUS SIGN} {last['speedup_noise']:.2g}" if last["speedup_noise"] else ""
        cpu = f"; {series['note']}" if series["note"] else ""
        for start, speedup, efficiency in (
            (series["baseline"], last["speedup"], last["scaling_efficiency_pct"]),
            ("single", last["speedup_vs_single"], last["efficiency_vs_single_pct"]),
        ):
            if speedup is not None:
                times = f"{speedup:.3g}{noise if start != 'single' else ''} times as fast"
                span = f"{start} -> {last['world_size']}"
                sentences.append(f"{kind}, {span}: {times}, efficiency {efficiency:.0f} %{cpu}")
    return sentences


def build_sharding(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return one entry for each compared run that has more than traces.

    Returns:
        [{run, strategy, world_size, divided_by, state_gib, even_share_gib, promised_gib, held_gib,
        sharding_effectiveness_pct, promised_effectiveness_pct, kept, kinds, why}]. divided_by is the number of ranks
        that share divided state. state_gib is of one process without sharding; even_share_gib is state_gib /
        world_size; held_gib is of the rank with most. The effectiveness is 100 x even share / held (or / promised).
        kept is True within TOLERANCE_PCT of the promise, None if unknown. kinds are [{kind, state_gib, promised_gib,
        held_gib}]. None stands for unknown numbers, and `why` names the missing facts.
    """
    return [_measure(run) for run in runs if run.is_compared and not run.is_foreign]


def _measure(run: RunRecord) -> dict[str, Any]:
    world_size, row = run.resolved.get("world_size"), STRATEGIES.get(str(run.strategy))
    promise = row.holds if row else None
    entry: dict[str, Any] = {"run": run.name, "strategy": run.strategy, "world_size": world_size}
    held, state = _read_held(run), _count_state(run)
    if isinstance(state, str) or held is None or not world_size or promise is None:
        missing = state if isinstance(state, str) else "what its ranks hold, or how many they are"
        why = f"not known: {missing}" if promise else f"no promise of {run.strategy} is known"
        return {**entry, **dict.fromkeys(NUMBERS), "kinds": [], "why": why}
    shares = 1
    for axis in promise.over if promise.divided else ():
        shares *= run.axes.get(axis) or 1
    promised, again = _count_promised(run, promise, state, shares)
    even, total, told = sum(state.values()) / world_size, sum(held.values()), sum(promised.values())
    differing = {
        kind: "more" if held[kind] > promised[kind] else "less"
        for kind in STATE
        if _differs(held[kind], promised[kind], told)
        and (held[kind] > promised[kind] or kind not in promise.at_most)
    }
    why = "; ".join(_say(promise, kind, word) for kind, word in differing.items()) or AS_PROMISED
    without_again = promised["parameters"] - again
    if (
        again
        and differing == {"parameters": "less"}
        and not _differs(held["parameters"], without_again, told)
    ):
        why = NOT_YET_COUNTED
    return {
        **entry,
        "divided_by": shares,
        "state_gib": sum(state.values()),
        "even_share_gib": even,
        "promised_gib": told,
        "held_gib": total,
        "sharding_effectiveness_pct": 100 * even / total if total else None,
        "promised_effectiveness_pct": 100 * even / told if told else None,
        "kept": not differing,
        "kinds": [
            {"kind": kind, "state_gib": state[kind], "promised_gib": promised[kind], "held_gib": held[kind]}
            for kind in STATE
        ],
        "why": why,
    }


def _count_promised(
    run: RunRecord, promise: Held, state: Mapping[str, float], shares: int
) -> tuple[dict[str, float], float]:
    """Return GiB by kind, and how much of the parameters is a second copy in each node."""
    promised = {kind: state[kind] / (shares if kind in promise.divided else 1) for kind in STATE}
    weights, masters = _count_weights(run)
    if promise.copies:
        promised["parameters"] = (
            weights / (shares if "parameters" in promise.divided else 1) + masters / shares
        )
    parts = str(run.settings.get("zeropp")).split(",")
    if not promise.again_in_node or promise.again_in_node not in parts:
        return promised, 0.0
    again = weights / (run.resolved.get("processes_per_node") or run.resolved["world_size"])
    return promised | {"parameters": promised["parameters"] + again}, again


def _read_held(run: RunRecord) -> dict[str, float] | None:
    """Return GiB of the rank that holds most; None if a rank has no record."""
    held = [rank.get("state_memory_gib") for rank in run.ranks]
    if not held or len(held) != run.resolved.get("world_size"):
        return None
    if not all(isinstance(each, dict) and all(is_number(each.get(k)) for k in STATE) for each in held):
        return None
    known = [{kind: float(each[kind]) for kind in STATE} for each in held if each]
    return max(known, key=lambda each: sum(each.values()))


def _count_state(run: RunRecord) -> dict[str, float] | str:
    """Return GiB by kind of one process without sharding, or the missing fact."""
    every, trained = run.resolved.get("parameters"), run.resolved.get("trainable_parameters")
    width, gradients = (_find_width(run, kind) for kind in ("parameters", "gradients"))
    name = run.settings.get("optimizer")
    optimizer = OPTIMIZERS.get(str(name))
    if not is_number(every) or not is_number(trained):
        return "how many parameters it has and trains"
    if width is None or gradients is None:
        return "the element types of its parameters and gradients"
    if optimizer is None:
        return f"what the optimizer {name} keeps"
    more = sum(more for name, more in optimizer.moments_with.items() if run.settings.get(name))
    weights, masters = _count_weights(run)
    return {
        "parameters": weights + (masters if width < FP32 else 0.0),
        "gradients": gradients * trained / GIB,
        "optimizer": FP32 * (optimizer.moments + more) * trained / GIB,
    }


def _count_weights(run: RunRecord) -> tuple[float, float]:
    """Return GiB of all parameters, and of fp32 copies of the trained ones.

    The copies are part of the state if the parameters have fewer bits, and an addition to it otherwise.
    """
    width = _find_width(run, "parameters") or FP32
    return width * run.resolved["parameters"] / GIB, FP32 * run.resolved["trainable_parameters"] / GIB


def _find_width(run: RunRecord, kind: str) -> int | None:
    """Return bytes of an element; of several types the narrowest, for the wider ones are copies."""
    dtypes = [name for rank in run.ranks for name in (rank.get("dtypes") or {}).get(kind) or []]
    return min((BYTES[name] for name in dtypes), default=None) if set(dtypes) <= BYTES.keys() else None


def _differs(held: float, promised: float, total: float) -> bool:
    """Return whether it differs: a large kind against itself, a small one against a share of the whole."""
    return abs(held - promised) > TOLERANCE_PCT / 100 * max(promised, total / 10)


def _say(promise: Held, kind: str, word: str) -> str:
    usual = promise.but.get(kind) if word == "more" else None
    return f"{word} {kind} than promised" + (f" ({usual})" if usual else "")


def say_sharding(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for runs that hold something else than their strategy promises; repeats share it."""
    runs: dict[str, list[str]] = {}
    for entry in entries:
        if entry["kept"] is False:
            factor, unit = fit_unit([entry["held_gib"], entry["promised_gib"]])
            held, promised = entry["held_gib"] * factor, entry["promised_gib"] * factor
            promise = f"{entry['strategy']} promises {promised:.4g}: {entry['why']}"
            runs.setdefault(f"{held:.4g} {unit} of the state per rank where {promise}", []).append(
                entry["run"]
            )
    return [
        f"{', '.join(each)} {'holds' if len(each) == 1 else 'hold'} {what}" for what, each in runs.items()
    ]
