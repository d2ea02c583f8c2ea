"""Which runs are the same thing, done again: equal in all that matters but some facts that are set aside."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stratlab.compare.judging.facts import UNKNOWN, read_fact
from stratlab.compare.judging.rules import KNOBS, RULES
from stratlab.run_directory.record import RunRecord

# what another seed changes; a repeat may or may not have one
SEED = {"seed", "repeat", "initial_weights_sha256", "data_order_sha256"}
# settings that say what a strategy is; the audit leaves them out, because they are what is compared
STRATEGY = ("strategy", "offload", "zeropp", *KNOBS)
# how a layout was asked for: what it became decides, but where the number of processes may differ
LAYOUT = ("layout", "dimensions", "sequence_parallel")
AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
KINDS = {"pp": "pp_schedule", "cp": "cp_kind"}  # settings of an axis that nobody has at size 1
FOLLOWING = ("grad_accum_steps",)  # the audit leaves it to others, but one variant has one of it


def build_variants(
    runs: Sequence[RunRecord], aside: Collection[str] = (), with_axes: bool = True
) -> list[list[RunRecord]]:
    """Groups of runs that are equal in everything that matters, besides their seed, in order of appearance.

    Left out is what is not finished, and what is not what its name says (degenerate layouts).

    Args:
        aside: fields of the rules that may differ as well.
        with_axes: runs with other sizes of the axes are another variant; else those with another kind of layout.
    """
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.is_compared:
            found.setdefault(_read_identity(run, {*SEED, *aside}, with_axes), []).append(run)
    return list(found.values())


def is_same_but_strategy(a: RunRecord, b: RunRecord, aside: Collection[str] = ()) -> bool:
    """Whether two runs differ in nothing that matters but their strategy with its settings and axes, their seed, and
    what is set aside."""
    return _read_identity(a, {*SEED, *aside}, None) == _read_identity(b, {*SEED, *aside}, None)


def _read_identity(run: RunRecord, aside: Collection[str], with_axes: bool | None) -> str:
    """`with_axes`: None = without the strategy as well."""
    settings = run.config.get("config") or {}
    listed = {rule.path[1] for rule in RULES if rule.path[:1] == ("config",)}
    own = {"run", "comparison", "results", "image", "accelerator", "wait_s"}
    own |= {*AXES, *LAYOUT, *KINDS.values(), *STRATEGY}
    facts: dict[str, Any] = {
        **{
            rule.field: read_fact(run, rule)
            for rule in RULES
            if (rule.matters or rule.field in FOLLOWING) and rule.field not in aside
        },
        **({} if with_axes is None else {name: settings.get(name) for name in STRATEGY}),
        **{name: settings[name] for name in settings.keys() - listed - own if name not in aside},
        "strategy": None if with_axes is None else run.strategy,
    }
    if UNKNOWN in facts.values():  # what is not known cannot be equal
        facts["alone"] = run.name
    if with_axes is None:
        return json.dumps(facts, sort_keys=True, default=str)
    axes, layout = (run.config.get("resolved", {}).get(name) or {} for name in ("axes", "layout"))
    facts |= {kind: settings.get(kind) for axis, kind in KINDS.items() if axes.get(axis, 1) > 1}
    if with_axes:
        facts |= {"axes": axes, "splits_sequence": layout.get("sequence_parallel")}
    else:
        facts |= {name: settings.get(name) for name in LAYOUT}
    return json.dumps(facts, sort_keys=True, default=str)


def find_typical(names: Sequence[str], values: Mapping[str, float]) -> str:
    """The run whose value is the (lower) median of the repeats; of equal ones the first."""
    middle = statistics.median_low([values[name] for name in names])
    return next(name for name in names if values[name] == middle)
