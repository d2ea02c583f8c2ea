"""Sharding effectiveness: what a rank holds of the state, against an even share and the strategy's promise.

The state is what one process that shards nothing holds: parameters, gradients, the optimizer's moments, and fp32 copies
of trained parameters where these are kept in fewer bits. All of it is counted bytes, exact on any hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.number import fit_unit
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import RunRecord
from stratlab.tables.optimizers import count_moments
from stratlab.tables.strategies import STRATEGIES

GIB = 2**30
KINDS = ("parameters", "gradients", "optimizer")
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FP32 = 4
TOLERANCE_PCT = 5.0
"""Shards are padded, and a tensor that crosses the border of two shards is held whole by one of them."""
AS_PROMISED = "as promised"
NOT_YET_COUNTED = (
    "recorded before the copy in each node was counted: it held the promised bytes, and told fewer"
)
"""Of ZeRO++, to November 2026."""


@dataclass(frozen=True)
class Promise:
    """What a strategy says it divides.

    Attributes:
        divided, over, copies, at_most, again_in_node, but: `Held` in the trainer's table of strategies says what they
            mean.
    """

    divided: Sequence[str]
    over: Sequence[str]
    copies: bool
    at_most: Sequence[str]
    again_in_node: str
    but: Mapping[str, str]


PROMISES = {name: Promise(**facts["holds"]) for name, facts in STRATEGIES.items()}


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
    world_size, promise = resolved.get("world_size"), PROMISES.get(str(run.strategy))
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
    promised = {kind: state[kind] / (shares if kind in promise.divided else 1) for kind in KINDS}
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
        for kind in KINDS
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
            for kind in KINDS
        ],
        "why": why,
    }


def _read_held(run: RunRecord) -> dict[str, float] | None:
    """GiB of the rank that holds most; None where a rank does not tell."""
    found = [rank.get("state_memory_gib") for rank in run.ranks]
    if len(found) != (run.config.get("resolved") or {}).get("world_size") or not found:
        return None
    if not all(isinstance(each, dict) and all(is_number(each.get(kind)) for kind in KINDS) for each in found):
        return None
    held = [{kind: float(each[kind]) for kind in KINDS} for each in found if each]
    return max(held, key=lambda each: sum(each.values()))


def _reckon_state(run: RunRecord) -> dict[str, float] | str:
    """GiB by kind that one process holds, or what is not known."""
    resolved, settings = run.config.get("resolved") or {}, run.config.get("config") or {}
    every, trained = resolved.get("parameters"), resolved.get("trainable_parameters")
    width, gradients = (_find_width(run, kind) for kind in ("parameters", "gradients"))
    moments = count_moments(settings)
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


def _say(promise: Promise, kind: str, word: str) -> str:
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
