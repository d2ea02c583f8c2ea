"""Choose among options by an aim: the best one, ties, runners-up and their limits, and a reason per setting.

    options below the gate, with a known time ─▶ best ─▶ tie (TIE_PCT) ─▶ the simplest of the tie is taken
                                                                        ├▶ the best of every other run, and its limit
                                                                        └▶ two or three runs that settle the order

Speeds are taken in the middle of their bands. Stage 3 and compiled shards have a band that reaches far up only, so that
their middle is slower than their prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from stratlab import UserError
from stratlab.predict.advising import ORDER
from stratlab.predict.timing import TIE_PCT, Speed
from stratlab.recommend import COMPILED, RECOMPUTED, ROWS, Option

TIE_MEMORY_PCT = 1
"""Error of predicted memory on one GPU (docs/predict.md)."""
LOWEST_PCT = 1
"""Prices as near to the lowest one are equal to it."""
SHARE_PCT = 10
"""Of a step: from here on the host or the network limits a run."""
SETTLING = 3
"""Most runs that settle an order."""
SIMPLE = {RECOMPUTED: "none", COMPILED: "false", "lora_rank": "0", "offload": "none"}
"""Searched setting -> its value without a cost of its own; others count against an option of a tie."""


ONLY = "no other value is possible with the other fields"
FOLLOWING = ("init",)
"""Settings that another one brings."""
WIDE = " in the middle of a wide band"


class Aim(StrEnum):
    """What a user wants most."""

    fastest = "fastest"
    leanest = "leanest"
    cheapest = "cheapest"


def find_aim(name: str) -> Aim:
    """Return the aim of this name.

    Raises:
        UserError: there is none.
    """
    if name in list(Aim):
        return Aim(name)
    raise UserError(f"--goal {name}: expected one of {', '.join(Aim)} [SL-recommend-goal]")


class Limit(StrEnum):
    """What keeps a run from being faster."""

    memory = "memory"
    host = "host"
    network = "network"
    kernels = "GPU's own work"


@dataclass(frozen=True)
class Runner:
    """The best option of another run. `limit`: None = its time is not known."""

    option: Option
    limit: Limit | None
    why: str


@dataclass(frozen=True)
class Recommendation:
    """The answer to an aim.

    Attributes:
        tied: options as good as the taken one, which it includes, the best first.
        runners: of every other run, the best first.
        settling: short runs that settle the order, the taken one first.
    """

    aim: Aim
    taken: Option
    tied: Sequence[Option]
    runners: Sequence[Runner]
    settling: Sequence[Option]


def choose(options: Sequence[Option], aim: Aim) -> Recommendation | None:
    """Return the recommendation; None if no option fits, or none that fits has a known time (leanest needs no time)."""
    fitting = [one for one in options if one.fits and (one.per_s or aim is Aim.leanest)]
    if not fitting:
        return None
    cost = partial(find_cost, aim)
    fitting.sort(key=cost)
    tie = TIE_MEMORY_PCT if aim is Aim.leanest else TIE_PCT
    tied = [one for one in fitting if cost(one) <= cost(fitting[0]) / (1 - tie / 100)]
    taken = _take(tied, aim)
    runners = [*_list_runners(options, taken, cost)]
    return Recommendation(aim, taken, tied, runners, _find_settling(options, taken, tied, runners, aim))


def find_cost(aim: Aim, one: Option) -> float:
    """Return what is to be small: seconds, GPU hours, or GiB. Without a known time the first two are infinite."""
    if aim is Aim.leanest:
        return one.prediction.needs_gib
    if not one.per_s:
        return float("inf")
    return 1 / one.per_s if aim is Aim.fastest else one.gpu_hours_per_million


def _take(tied: Sequence[Option], aim: Aim) -> Option:
    """Return the simplest option of a tie; of prices the lowest, and of equal memory the simplest of the fastest."""
    if aim is Aim.cheapest:
        least = find_cost(aim, tied[0])
        tied = [one for one in tied if find_cost(aim, one) <= least * (1 + LOWEST_PCT / 100)]
    elif aim is Aim.leanest:
        most = max(one.per_s for one in tied)
        tied = [one for one in tied if one.per_s >= most * (1 - TIE_PCT / 100)]
    return min(tied, key=_rank_simplicity)


def _rank_simplicity(one: Option) -> tuple[Any, ...]:
    """Return the fewest settings with a cost, then the strategy that sends least, then the least memory."""
    costs = sum(value != SIMPLE.get(name, value) for name, value in one.chosen.items())
    degrees = sum(name not in (*SIMPLE, ROWS, "init") and value != "0" for name, value in one.chosen.items())
    return costs + degrees, ORDER.get(one.strategy, len(ORDER)), one.prediction.needs_gib


def _list_runners(
    options: Sequence[Option], taken: Option, cost: Callable[[Option], float]
) -> Iterator[Runner]:
    groups: dict[tuple[str, int], list[Option]] = {}
    for one in options:
        groups.setdefault((one.run, one.gpus), []).append(one)
    groups.pop((taken.run, taken.gpus))
    best = {key: _find_best(group, cost) for key, group in groups.items()}
    order = sorted(groups, key=lambda key: (not best[key].fits, cost(best[key])))
    yield from (Runner(best[key], *find_limit(best[key], groups[key])) for key in order)


def _find_best(group: Sequence[Option], cost: Callable[[Option], float]) -> Option:
    """Return the best option that fits; without one, that with the least memory."""
    fitting = [one for one in group if one.fits]
    if not fitting:
        return min(group, key=lambda one: one.prediction.needs_gib)
    return min(fitting, key=lambda one: (cost(one), one.prediction.needs_gib))


def find_limit(best: Option, group: Sequence[Option]) -> tuple[Limit | None, str]:
    """Return what limits a run, and the sentence about it.

    Args:
        group: all options of the run, `best` among them.
    """
    if not best.fits:
        return Limit.memory, f"needs {best.say_needs()} at least"
    if not isinstance(best.speed, Speed):
        return None, best.speed
    least = best.per_s * (1 + TIE_PCT / 100)
    faster = [one for one in group if not one.fits and one.per_s > least]
    if faster:
        first = min(faster, key=lambda one: one.prediction.needs_gib)
        gain = 100 * (first.per_s / best.per_s - 1)
        return (
            Limit.memory,
            f"{first.settings} would be {gain:.0f} % faster and needs {first.say_needs()}",
        )
    idle, exposed = best.speed.idle_pct, best.speed.exposed_pct
    if max(idle, exposed) < SHARE_PCT:
        return Limit.kernels, f"host {idle:.0f} %, network {exposed:.0f} % of a step"
    if idle >= exposed:
        return Limit.host, f"{idle:.0f} % of a step"
    return Limit.network, f"{exposed:.0f} % of a step"


def _find_settling(
    options: Sequence[Option], taken: Option, tied: Sequence[Option], runners: Sequence[Runner], aim: Aim
) -> list[Option]:
    """Return the taken option, the best of another strategy in its tie (without a tie, the next runner-up), and the
    best one whose prediction, but not the middle of its band, beats the taken one.
    """
    found = [taken]
    others = [one for one in tied if one.strategy != taken.strategy] or [
        one for one in tied if one is not taken
    ]
    found += (others or [each.option for each in runners if each.option.fits and each.option.per_s])[:1]
    if aim is not Aim.leanest:
        least = find_cost(aim, taken)

        def hope(one: Option) -> float:
            assert isinstance(one.speed, Speed)
            return find_cost(aim, one) * one.speed.step_ms / one.speed.middle_ms

        wide = [one for one in options if one.fits and _is_wide(one) and find_cost(aim, one) > least]
        found += [one for one in sorted(wide, key=hope)[:1] if hope(one) < least * (1 - TIE_PCT / 100)]
    further = [one for one in others[1:] if one.strategy not in {each.strategy for each in found}]
    return list({id(one): one for one in [*found, *further]}.values())[:SETTLING]


def explain_choice(
    taken: Option, options: Sequence[Option], aim: Aim, typed: frozenset[str]
) -> dict[str, str]:
    """Return searched setting -> why it has its value: what its other values would cost."""
    alike = [one for one in options if (one.strategy, one.gpus) == (taken.strategy, taken.gpus)]
    found = {}
    for name, value in taken.chosen.items():
        if name in typed:
            found[name] = "as given"
        elif name not in FOLLOWING:
            groups: dict[str, list[Option]] = {}
            for one in alike:
                if (other := _read(one, name)) != value:
                    groups.setdefault(other, []).append(one)
            compared = [
                _compare_best(taken, name, groups[other], aim) for other in _pick_near(groups, name, value)
            ]
            found[name] = "; ".join(filter(None, compared)) or ONLY
    return found


def _read(one: Option, name: str) -> str:
    return one.chosen.get(name, SIMPLE.get(name, ""))


def _pick_near(values: Iterable[str], name: str, value: str) -> list[str]:
    """Return the next smaller and the next larger micro-batch; of other settings all values."""
    if name != ROWS:
        return list(values)
    smaller, larger = (
        [int(each) for each in values if (int(each) < int(value)) is below] for below in (True, False)
    )
    return [str(each) for each in (*sorted(smaller)[-1:], *sorted(larger)[:1])]


def _compare_best(taken: Option, name: str, group: Sequence[Option], aim: Aim) -> str:
    """Return the cost of another value: with the other settings as they are, or else with the best ones that fit."""
    value = _read(group[0], name)
    names = {*taken.chosen, *(other for one in group for other in one.chosen)} - {name, *FOLLOWING}
    exact = [one for one in group if all(_read(one, other) == _read(taken, other) for other in names)]
    if exact:
        return f"{value} {_compare(exact[0], taken, aim)}"
    if name == ROWS:
        return ""
    best = _find_best(group, partial(find_cost, aim))
    differs = [
        f"{other}={_read(best, other)}"
        for other in sorted(names)
        if _read(best, other) != _read(taken, other)
    ]
    return f"{value} (at best with {', '.join(differs)}) {_compare(best, taken, aim)}"


def _compare(one: Option, taken: Option, aim: Aim) -> str:
    if not one.fits:
        return f"is above the limit ({one.say_needs()})"
    if aim is Aim.leanest:
        more = one.prediction.needs_gib - taken.prediction.needs_gib
        return (
            f"takes {abs(more):.2f} GiB {'more' if more > 0 else 'less'}"
            if round(more, 2)
            else "takes as much"
        )
    if not one.per_s or not taken.per_s:
        return "has no known time"
    gain = 100 * (one.per_s / taken.per_s - 1)
    if abs(gain) < TIE_PCT:
        return f"is a tie ({gain:+.0f} %, {one.say_needs()})"
    said = f"is {abs(gain):.0f} % {'faster' if gain > 0 else 'slower'}"
    if not _is_wide(one) or _is_wide(taken):
        return said
    assert isinstance(one.speed, Speed)
    hope = 100 * (one.speed.per_s / taken.per_s - 1)
    undecided = gain < 0 < hope
    return (
        f"may be {hope:.0f} % faster or {-gain:.0f} % slower: its band is wide" if undecided else said + WIDE
    )


def _is_wide(one: Option) -> bool:
    """Return whether the middle of the band is not the prediction."""
    return isinstance(one.speed, Speed) and sum(one.speed.band_pct) != 0
