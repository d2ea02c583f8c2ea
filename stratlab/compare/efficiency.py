"""Scaling: how much faster more devices are, and what remains of the throughput of each.

Sharding effectiveness: what a rank holds of the state, against an even share and the strategy's promise.

The state is what one process that shards nothing holds: parameters, gradients, the optimizer's moments, and fp32 copies
of trained parameters where these are kept in fewer bits. All of it is counted bytes, exact on any hardware.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.compare.variants import SEED_FACTS, build_variants, is_same_but_strategy
from stratlab.compare.winners import Band
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord
from stratlab.wording import fit_unit
from stratlab_spec.registry import OPTIMIZERS
from stratlab_spec.strategies import STRATEGIES, Held

# facts that follow from the number of processes
PLACE = {"world_size", "nodes", "processes_per_node", "reduction dtypes", "ranks on each node"}
LENGTH = {"resolved.steps", "steps done", "resolved.profile_first_step"}
Rows = Sequence[Mapping[str, Any]]
SHARED_CORES = "the processes share the cores of one machine: this says nothing about GPUs"


@dataclass(frozen=True)
class Kind:
    """A way to grow. `free`: facts that follow from the world size in it, besides PLACE."""

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


def build_scaling(runs: Sequence[RunRecord], rows: Rows, band: Band | None = None) -> list[dict[str, Any]]:
    """Series of runs that differ only in the world size and what follows from it.

    speedup = samples_per_s / that of the fewest devices of the series; scaling_efficiency_pct = 100 x speedup / (world
    size / the fewest). The same against `single` runs that differ in nothing else but the strategy, where there are
    any: then one world size above 1 is a series already, and what it would say of itself is None.

    Args:
        band: of the median step times; None = no repeats.

    Returns:
        [{strategy, dimensions (of its layout, or None), kind strong|weak, what, note, baseline (world size of the
        fewest devices), single: {runs, samples_per_s} or None, backend, hardware, measured_steps (of the run with
        fewest), repeats (of the point with fewest), points: [{world_size, nodes, runs, samples_per_s (median of
        repeats), samples_per_s_per_device, speedup, speedup_noise (half width, None without repeats),
        scaling_efficiency_pct, speedup_vs_single, efficiency_vs_single_pct}]}].
    """
    by_name = {row["run"]: row for row in rows}
    alone = [run for run in runs if run.is_compared and run.strategy == "single"]
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        aside = PLACE | kind.free
        for group in build_variants(runs, aside, with_axes=False):
            members = [by_name[run.name] for run in group]
            timed = [row for row in members if row["samples_per_s"] and row["world_size"]]
            single = [
                by_name[run.name]
                for run in alone
                if run not in group and is_same_but_strategy(run, group[0], aside)
            ]
            single = [row for row in single if row["samples_per_s"]]
            points = _build_points(timed, single, band)
            if any(series["points"] == points for series in found):
                continue
            grown = kind.name == "strong" or _grows_along([*members, *single])
            sizes = {point["world_size"] for point in points} | ({1} if single else set())
            if points and len(sizes) > 1 and grown:
                found.append(_describe(kind, timed, single, points))
    return found


def _describe(kind: Kind, rows: Rows, single: Rows, points: list[dict[str, Any]]) -> dict[str, Any]:
    on_cpu = any(row["device_type"] == "cpu" for row in rows)
    steps = [row["measured_steps"] for row in [*rows, *single] if row["measured_steps"]]
    return {
        "strategy": rows[0]["strategy"],
        "dimensions": rows[0]["dimensions"],
        "kind": kind.name,
        "what": kind.what,
        "note": SHARED_CORES if on_cpu else "",
        "baseline": points[0]["world_size"],
        "single": {
            "runs": [row["run"] for row in single],
            "samples_per_s": statistics.median(row["samples_per_s"] for row in single),
        }
        if single
        else None,
        "backend": rows[0]["backend"],
        "hardware": rows[0]["device_name"],
        "measured_steps": min(steps, default=None),
        "repeats": min(len(point["runs"]) for point in points),
        "points": points,
    }


def _build_points(rows: Rows, single: Rows, band: Band | None) -> list[dict[str, Any]]:
    by_size = {
        size: [row for row in rows if row["world_size"] == size]
        for size in sorted({row["world_size"] for row in rows})
    }
    speeds = {size: statistics.median(row["samples_per_s"] for row in here) for size, here in by_size.items()}
    alone = statistics.median(row["samples_per_s"] for row in single) if single else None
    points: list[dict[str, Any]] = []
    for size, here in by_size.items():
        fewest = min(by_size)
        speedup = speeds[size] / speeds[fewest] if len(by_size) > 1 else None
        against = speeds[size] / alone if alone else None
        points.append(
            {
                "world_size": size,
                "nodes": max((row["nodes"] or 1 for row in here), default=1),
                "runs": [row["run"] for row in here],
                "samples_per_s": speeds[size],
                "samples_per_s_per_device": speeds[size] / size,
                "speedup": speedup,
                "speedup_noise": _find_noise(band, speedup, len(here), len(by_size[fewest]))
                if size != fewest
                else None,
                "scaling_efficiency_pct": None if speedup is None else 100 * speedup * fewest / size,
                "speedup_vs_single": against,
                "efficiency_vs_single_pct": None if against is None else 100 * against / size,
            }
        )
    return points


def _find_noise(band: Band | None, speedup: float | None, repeats: int, of_baseline: int) -> float | None:
    """Half width around the quotient of two medians."""
    if band is None or speedup is None:
        return None
    return speedup * band.of_difference(1.0, 1.0, repeats, of_baseline)


def _grows_along(rows: Rows) -> bool:
    """The global batch is proportional to the world size."""
    shares = {
        row["global_batch_size"] / row["world_size"]
        for row in rows
        if row["global_batch_size"] and row["world_size"]
    }
    return len(shares) == 1


def name_series(series: Mapping[str, Any]) -> str:
    """`ddp`, `nd 2D`."""
    return (
        f"{series['strategy']} {series['dimensions']}D" if series["dimensions"] else str(series["strategy"])
    )


def say_scaling(scaling: Sequence[Mapping[str, Any]]) -> list[str]:
    """`ddp, strong scaling, 1 -> 4: 3.1 +- 0.1 times as fast (efficiency 78 %)`, and against `single`."""
    said = []
    for series in scaling:
        last, kind = series["points"][-1], f"{name_series(series)}, {series['kind']} scaling"
        cpu = f"; {series['note']}" if series["note"] else ""
        if last["speedup"] is not None:
            noise = f" \N{PLUS-MINUS SIGN} {last['speedup_noise']:.2g}" if last["speedup_noise"] else ""
            said.append(
                f"{kind}, {series['baseline']} -> {last['world_size']}: {last['speedup']:.3g}{noise} times as fast, "
                f"efficiency {last['scaling_efficiency_pct']:.0f} %{cpu}"
            )
        if last["speedup_vs_single"] is not None:
            said.append(
                f"{kind}, single -> {last['world_size']}: {last['speedup_vs_single']:.3g} times as fast, "
                f"efficiency {last['efficiency_vs_single_pct']:.0f} %{cpu}"
            )
    return said


GIB = 2**30
STATE_KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FP32 = 4
TOLERANCE_PCT = 5.0
"""Shards are padded, and a tensor that crosses the border of two shards is held whole by one of them."""
AS_PROMISED = "as promised"
NOT_YET_COUNTED = (
    "recorded before the copy in each node was counted: it held the promised bytes, and told fewer"
)
"""Of ZeRO++, to November 2026."""


def build_sharding(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One entry for each run that is compared, and of which more is known than traces.

    Returns:
        [{run, strategy, world_size, divided_by (ranks that share what is divided), state_gib (of one process that
        shards nothing), even_share_gib (state_gib / world_size), promised_gib, held_gib (the rank with most),
        sharding_effectiveness_pct (100 x even share / held), promised_effectiveness_pct (100 x even share / promised),
        kept (True: within TOLERANCE_PCT of the promise; None: not known), kinds: [{kind, state_gib, promised_gib,
        held_gib}], why}]; numbers are None where the run does not tell, and `why` says what is missing.
    """
    return [_judge(run) for run in runs if run.is_compared and not run.is_foreign]


def _judge(run: RunRecord) -> dict[str, Any]:
    resolved = run.config.get("resolved") or {}
    row = STRATEGIES.get(str(run.strategy))
    world_size, promise = resolved.get("world_size"), row.holds if row else None
    entry: dict[str, Any] = {"run": run.name, "strategy": run.strategy, "world_size": world_size}
    held, state = _read_held(run), _reckon_state(run)
    unknown = dict.fromkeys(
        (
            *("divided_by", "state_gib", "even_share_gib", "promised_gib", "held_gib", "kept"),
            *("sharding_effectiveness_pct", "promised_effectiveness_pct"),
        )
    )
    if isinstance(state, str) or held is None or not world_size or promise is None:
        missing = state if isinstance(state, str) else "what its ranks hold, or how many they are"
        known = f"not known: {missing}" if promise else f"no promise of {run.strategy} is known"
        return {**entry, **unknown, "kinds": [], "why": known}
    axes = resolved.get("axes") or {}
    shares = 1
    for axis in promise.over if promise.divided else ():
        shares *= axes.get(axis) or 1
    promised = {kind: state[kind] / (shares if kind in promise.divided else 1) for kind in STATE_KINDS}
    if promise.copies:
        weights, masters = _reckon_weights(run)
        promised["parameters"] = (
            weights / (shares if "parameters" in promise.divided else 1) + masters / shares
        )
    again = 0.0
    if promise.again_in_node and promise.again_in_node in str(
        (run.config.get("config") or {}).get("zeropp")
    ).split(","):
        again = _reckon_weights(run)[0] / (resolved.get("processes_per_node") or world_size)
        promised["parameters"] += again
    whole, even = sum(state.values()), sum(state.values()) / world_size
    total, told = sum(held.values()), sum(promised.values())
    differing = {
        kind: "more" if held[kind] > promised[kind] else "less"
        for kind in STATE_KINDS
        if _differs(held[kind], promised[kind], told)
        and (held[kind] > promised[kind] or kind not in promise.at_most)
    }
    told_before = again and differing == {"parameters": "less"}
    if told_before and not _differs(held["parameters"], promised["parameters"] - again, told):
        why = NOT_YET_COUNTED
    else:
        why = "; ".join(_say(promise, kind, word) for kind, word in differing.items()) or AS_PROMISED
    return {
        **entry,
        "divided_by": shares,
        "state_gib": whole,
        "even_share_gib": even,
        "promised_gib": told,
        "held_gib": total,
        "sharding_effectiveness_pct": 100 * even / total if total else None,
        "promised_effectiveness_pct": 100 * even / told if told else None,
        "kept": not differing,
        "kinds": [
            {"kind": kind, "state_gib": state[kind], "promised_gib": promised[kind], "held_gib": held[kind]}
            for kind in STATE_KINDS
        ],
        "why": why,
    }


def _read_held(run: RunRecord) -> dict[str, float] | None:
    """GiB of the rank that holds most; None where a rank does not tell."""
    found = [rank.get("state_memory_gib") for rank in run.ranks]
    if len(found) != (run.config.get("resolved") or {}).get("world_size") or not found:
        return None
    if not all(
        isinstance(each, dict) and all(is_number(each.get(kind)) for kind in STATE_KINDS) for each in found
    ):
        return None
    held = [{kind: float(each[kind]) for kind in STATE_KINDS} for each in found if each]
    return max(held, key=lambda each: sum(each.values()))


def _reckon_state(run: RunRecord) -> dict[str, float] | str:
    """GiB by kind that one process holds, or what is not known."""
    resolved, settings = run.config.get("resolved") or {}, run.config.get("config") or {}
    every, trained = resolved.get("parameters"), resolved.get("trainable_parameters")
    width, gradients = (_find_width(run, kind) for kind in ("parameters", "gradients"))
    moments = _count_moments(settings)
    if not is_number(every) or not is_number(trained):
        return "how many parameters it has and trains"
    if width is None or gradients is None:
        return "the element types of its parameters and gradients"
    if moments is None:
        return f"what the optimizer {settings.get('optimizer')} keeps"
    weights, masters = _reckon_weights(run)
    return {
        "parameters": weights + (masters if width < FP32 else 0.0),
        "gradients": gradients * trained / GIB,
        "optimizer": FP32 * moments * trained / GIB,
    }


def _reckon_weights(run: RunRecord) -> tuple[float, float]:
    """GiB of all parameters, and of fp32 copies of the trained ones: part of the state where the parameters have fewer
    bits, and something besides it where they do not."""
    resolved = run.config["resolved"]
    width = _find_width(run, "parameters") or FP32
    return width * resolved["parameters"] / GIB, FP32 * resolved["trainable_parameters"] / GIB


def _find_width(run: RunRecord, kind: str) -> int | None:
    """Bytes of an element; of several types the narrowest, for the wider ones are copies."""
    dtypes = [name for rank in run.ranks for name in (rank.get("dtypes") or {}).get(kind) or []]
    return min((BYTES[name] for name in dtypes), default=None) if set(dtypes) <= BYTES.keys() else None


def _differs(held: float, promised: float, total: float) -> bool:
    """Against the kind itself where it is large; of little things a share of the whole."""
    return abs(held - promised) > TOLERANCE_PCT / 100 * max(promised, total / 10)


def _say(promise: Held, kind: str, word: str) -> str:
    usual = promise.but.get(kind) if word == "more" else None
    return f"{word} {kind} than promised" + (f" ({usual})" if usual else "")


def say_sharding(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for runs that hold something else than their strategy promises; repeats share it."""
    told: dict[str, list[str]] = {}
    for entry in entries:
        if entry["kept"] is False:
            factor, unit = fit_unit([entry["held_gib"], entry["promised_gib"]])
            held, promised = entry["held_gib"] * factor, entry["promised_gib"] * factor
            what = (
                f"{held:.4g} {unit} of the state per rank where {entry['strategy']} promises {promised:.4g}"
            )
            told.setdefault(f"{what}: {entry['why']}", []).append(entry["run"])
    return [
        f"{', '.join(names)} {'holds' if len(names) == 1 else 'hold'} {what}" for what, names in told.items()
    ]


def _count_moments(settings: Mapping[str, Any]) -> int | None:
    """Tensors of the parameters' size that the run's optimizer keeps; None for one that is not known."""
    row = OPTIMIZERS.get(str(settings.get("optimizer")))
    if row is None:
        return None
    return row.moments + sum(more for name, more in row.moments_with.items() if settings.get(name))
