"""Decide which runs are the same: their facts by the rules, repeats, and differences on purpose.

read_fact        a fact of one run, from its files
build_variants   runs that are repeats of each other: equal in all that matters but facts that are set aside
name_variants    a name for each of them: its run, or what its repeats have in common
join_seeds       comparable runs of several seeds, joined through the variants that ran with both
excuse           settings that runs are meant to differ in: what follows from each, which differences they excuse
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from stratlab import UserError
from stratlab.compare.placement import KINDS, ComparedRun
from stratlab.compare.rules import MOMENTS, RULES, SIZES, Difference, Rule
from stratlab.run_directory.record import RunRecord
from stratlab.wording import ask_nearest, format_fact
from stratlab_spec.settings.old_names import take_new_names
from stratlab_spec.strategies import KNOBS

UNKNOWN = "unknown"
ADDING = ("tp", "cp")
"""Axes on which activations are summed, in the type of the products."""
REDUCED = {"bf16": "bfloat16"}
"""The knob reduce_dtype -> the type of the gradients; with any other value it is float32."""
SEED_FACTS = {"seed", "repeat", "initial_weights_sha256", "data_order_sha256"}
"""Facts that another seed changes; a repeat may or may not have one."""
STRATEGY = ("strategy", "offload", "zeropp", *KNOBS)
"""Settings that define a strategy; the audit leaves them out, because they are compared."""
LAYOUT = ("layout", "dimensions", "sequence_parallel")
"""How a layout was requested: the resolved one decides, unless the number of processes may differ."""
AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
FOLLOWING = ("grad_accum_steps",)
"""The audit leaves it to others, but one variant has one of it."""


def read_fact(run: ComparedRun, rule: Rule) -> Any:
    """Return the fact of one run, or "unknown" if the run has no record of it."""
    if rule.task not in ("", read_task(run)):
        return f"not of {read_task(run)}"
    value = _read(run, rule)
    if value == [] and rule.none:
        return rule.none
    if _empty(value) and rule.instead:
        other = next(each for each in RULES if each.field == rule.instead)
        value = None if _empty(_read(run, other)) else f"{other.field} {_read(run, other)}"
    if rule.path[:-1] == ("resolved", "knobs") and not isinstance(run.resolved.get("knobs"), dict):
        return "not recorded"
    chosen = rule.path[:1] == ("config",)  # an empty text is a fact where the user chose it
    if value is None or (_empty(value) and not chosen):
        return UNKNOWN if rule.absent == "" else rule.absent
    return value


def read_task(run: RunRecord) -> str:
    """Return the kind of the run, as the rules name it."""
    return "text" if run.is_text else "image"


def _read(run: ComparedRun, rule: Rule) -> Any:
    if rule.source == "attempts":
        return run.starts or None
    if rule.source == "tuning":
        return run.tuning
    if rule.source != "ranks":
        sources = {"config": run.config, "summary": run.summary, "place": vars(run.place)}
        return read_path(sources[rule.source], rule.path)
    values = [read_path(rank, rule.path) for rank in run.ranks]
    if len(values) != run.resolved.get("world_size") or None in values:
        return None
    if all(isinstance(value, list) for value in values):
        every = sorted({item for value in values for item in value})  # a rank may lack a kind
        return _divide_types(run, every, rule.added) if rule.added else every
    distinct = sorted(set(map(str, values)))
    return distinct[0] if len(distinct) == 1 else distinct


def _divide_types(run: RunRecord, types: Sequence[str], added: str) -> list[str]:
    """Return only the types of the gradients, or of the activations: ranks record them together.

    If no rank adds up gradients, their type is the one in which they would be added.
    """
    if all((run.axes.get(axis) or 1) == 1 for axis in ADDING):
        return list(types) if added == "gradients" else []
    of_gradients = REDUCED.get(str(read_path(run.resolved, ("knobs", "reduce_dtype"))), "float32")
    products = {name for rank in run.ranks for name in read_path(rank, ("dtypes", "products")) or []}
    of_activations = [name for name in types if name in products - {of_gradients}]
    if added == "activations":
        return of_activations
    return [name for name in types if name not in of_activations] or [of_gradients]


def read_path(value: Any, path: Sequence[str]) -> Any:
    """Return the value below these keys; None without one."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def build_variants(
    runs: Sequence[ComparedRun], aside: Collection[str] = (), with_axes: bool = True
) -> list[list[ComparedRun]]:
    """Return groups of runs that are equal in everything that matters, except their seed, in order of appearance.

    Unfinished runs and degenerate layouts are left out.

    Args:
        aside: fields of the rules that may differ as well.
        with_axes: runs with other sizes of the axes are another variant; else those with another kind of layout.
    """
    variants: dict[str, list[ComparedRun]] = {}
    for run in runs:
        if run.is_compared:
            variants.setdefault(_read_identity(run, {*SEED_FACTS, *aside}, with_axes), []).append(run)
    return list(variants.values())


def is_same_but_strategy(a: ComparedRun, b: ComparedRun, aside: Collection[str] = ()) -> bool:
    """Return whether two runs differ only in their strategy with its settings and axes, their seed, and `aside`."""
    return _read_identity(a, {*SEED_FACTS, *aside}, None) == _read_identity(b, {*SEED_FACTS, *aside}, None)


def _read_identity(run: ComparedRun, aside: Collection[str], with_axes: bool | None) -> str:
    """Return the facts that identify a run. `with_axes`: None = without the strategy as well."""
    settings = run.settings
    judged = [rule for rule in RULES if rule.matters or rule.field in FOLLOWING]
    listed = {rule.path[1] for rule in RULES if rule.path[:1] == ("config",)}
    own = {"run", "comparison", "results", "image", "accelerator", "wait_s"}
    own |= {*AXES, *LAYOUT, *KINDS.values(), *STRATEGY}
    facts: dict[str, Any] = {rule.field: read_fact(run, rule) for rule in judged if rule.field not in aside}
    facts |= {name: settings[name] for name in settings.keys() - listed - own if name not in aside}
    if with_axes is not None:
        facts |= {name: settings.get(name) for name in STRATEGY} | {"strategy": run.strategy}
    if UNKNOWN in facts.values():  # unknown values cannot be equal
        facts["alone"] = run.name
    if with_axes is not None:
        axes, layout = run.axes, run.resolved.get("layout") or {}
        facts |= {kind: settings.get(kind) for axis, kind in KINDS.items() if axes.get(axis, 1) > 1}
        if with_axes:
            facts |= {"axes": axes, "splits_sequence": layout.get("sequence_parallel")}
        else:
            facts |= {name: settings.get(name) for name in LAYOUT}
    return json.dumps(facts, sort_keys=True, default=str)


SEED_ENDING = re.compile(r"([-_.](with|seed|s|run|r|repeat))+$")
"""The end of a name, before the number of a repeat."""


def name_variants(variants: Sequence[Sequence[RunRecord]]) -> dict[str, str]:
    """Return run -> the unique name of its variant.

    A single run keeps its own name; repeats have their strategy's name, or else the common beginning of their names.
    """
    repeated = [variant for variant in variants if len(variant) > 1]
    strategies = Counter(str(variant[0].strategy) for variant in variants)
    taken = {variant[0].name for variant in variants if len(variant) == 1}
    names = {run.name: run.name for variant in variants for run in variant}
    for variant in repeated:
        runs = [run.name for run in variant]
        words = zip(*(re.findall(r"[-_.]*[^-_.]+", run) for run in runs), strict=False)
        begin = "".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, words))
        begun = [str(variant[0].strategy)] if strategies[str(variant[0].strategy)] == 1 else []
        wishes = [*begun, SEED_ENDING.sub("", begin), begin]
        others = [name for name in names if name not in runs] or [""]
        usable = (wish for wish in wishes if wish and wish not in taken)
        name = next((wish for wish in usable if not all(each.startswith(wish) for each in others)), runs[0])
        taken.add(name)
        names |= dict.fromkeys(runs, name)
    return names


def join_seeds(
    alike: Sequence[Sequence[str]],
    parts: Sequence[Sequence[str]],
    runs: Sequence[ComparedRun],
    doubtful: Collection[str] = (),
) -> tuple[list[list[str]], bool]:
    """Join runs of several seeds.

    Losses show that two strategies compute the same training with one seed. A strategy that ran with two seeds is
    one thing, so runs that agree with it under either seed are comparable.

    Args:
        alike: groups of runs with equal facts, and so of one seed.
        parts: the same, divided by the losses. Of one group the largest part is joined; where none is, no part.
        doubtful: runs that are never joined, because a fact that follows from the seed is not known.

    Returns:
        the groups, the largest first, and whether the seed keeps no two runs apart that nothing else does.
    """
    names = [run.name for run in runs]
    variant_of = {run.name: i for i, each in enumerate(build_variants(runs)) for run in each}
    joined: list[list[str]] = []
    rest: list[list[str]] = []
    seeds = {run.name: str(run.settings.get(SEED_SETTING)) for run in runs}
    for same in alike:
        inside = sorted((part for part in parts if {*part} <= {*same}), key=len, reverse=True)
        is_clear = (len(inside) == 1 or len(inside[0]) > len(inside[1])) and not {*same} & {*doubtful}
        mine = {variant_of[name] for name in inside[0]}
        shares = [part for part in joined if is_clear and mine & {variant_of[name] for name in part}]
        # other facts with one seed are not another seed
        is_clear = is_clear and seeds[inside[0][0]] not in {seeds[name] for part in shares for name in part}
        rest += [[*part] for part in inside[is_clear:]]
        if is_clear:
            joined = [part for part in joined if part not in shares]
            joined.append(sorted(sum(shares, [*inside[0]]), key=names.index))
    identities = {run.name: _read_identity(run, SEED_FACTS, None) for run in runs}
    whole = [part for part in rest if {*part} in map(set, alike)]
    ends = [{identities[name] for name in part} for part in (*joined, *whole)]
    alone = all(not (a & b) for i, a in enumerate(ends) for b in ends[:i])
    return sorted([*joined, *rest], key=len, reverse=True), alone


def find_typical(names: Sequence[str], values: Mapping[str, float]) -> str:
    """Return the run whose value is the (lower) median of the repeats; of equal ones the first."""
    middle = statistics.median_low([values[name] for name in names])
    return next(name for name in names if values[name] == middle)


PREFIX = "run.config."
SEED_SETTING = "seed"
"""Runs that differ only in it are repeats, with any other varied settings."""
REFUSED = {
    **dict.fromkeys(
        ("dataset", "dataset_path", "image_column", "label_column", "task", "validation_fraction"),
        "results on other data answer another question",
    ),
    **dict.fromkeys(("run", "comparison", "results", "mode"), "it is not a setting of the training"),
    "strategy": "strategies are compared without being named here",
    SEED_SETTING: "runs with another seed are repeats without being named here",
}

CARRIED_OUT = (
    "micro_batch_size",
    "activation_checkpointing",
    "compile",
    "loss_chunk_tokens",
    "data_residence",
)
"""How one training is carried out: with other memory and another speed, and the same losses. Runs that differ on
purpose only in these are compared as strategies are."""
CHANGES = ("batch_norm_samples",)
"""Facts that follow from one of them and change the learning."""
LENGTH = ("resolved.steps", "steps done", "resolved.profile_first_step", "data_order_sha256")
SHAPE = (
    *("parameters", "trainable_parameters", "flops_per_sample", "flops_per_token", "initial_weights_sha256"),
    *("resolved.image_size", "preprocessing", "batch_norm_samples"),
)
TYPES = ("parameter dtypes", "gradient dtypes", "optimizer dtypes", "reduction dtypes", "product dtypes")
FACTS_FOLLOWING: Mapping[str, tuple[str, ...]] = {
    SEED_SETTING: ("initial_weights_sha256", "data_order_sha256"),
    "optimizer": (*MOMENTS, "optimizer dtypes"),
    "momentum": ("optimizer dtypes",),  # without it, no state
    "global_batch_size": LENGTH,
    "epochs": LENGTH,
    "steps": LENGTH,
    "train_samples": ("resolved.train_samples", "data_sha256", *LENGTH),
    "micro_batch_size": ("batch_norm_samples",),
    "batch_norm": ("batch_norm_samples",),
    "data_residence": ("resolved.data_residence",),
    "model": SHAPE,
    "model_path": SHAPE,
    **dict.fromkeys(SIZES, SHAPE),
    "teacher": ("teacher_sha256",),
    "init": ("initial_weights_sha256", "preprocessing", "resolved.image_size", "flops_per_sample"),
    "normalization": ("preprocessing",),
    "image_size": SHAPE,
    "seq_len": ("resolved.seq_len", "text", "flops_per_token", *LENGTH),
    "packing": ("text", *LENGTH),
    "lora_rank": ("parameters", "trainable_parameters", "flops_per_sample", "flops_per_token", *TYPES),
    "lora_targets": ("parameters", "trainable_parameters", "flops_per_sample", "flops_per_token"),
    "precision": ("resolved.precision", "tf32", *TYPES),
}
"""Setting -> fields of the audit that may differ with it, and only with it."""


def parse_varied(text: str) -> tuple[str, ...]:
    """Return `lr,run.config.optimizer` -> (lr, optimizer)."""
    names = (name.strip().removeprefix(PREFIX) for name in text.split(",") if name.strip())
    return tuple(take_new_names(dict.fromkeys(names)))


def check_varied(varied: Sequence[str], runs: Sequence[RunRecord]) -> None:
    """Check that each is a setting that these runs have, and may be varied.

    Raises:
        UserError: with every wrong name.
    """
    known = {name for run in runs for name in run.settings}
    wrong = []
    for name in varied:
        if name in REFUSED:
            wrong.append(f"{name} cannot be varied: {REFUSED[name]} [SL-varied-refused]")
        elif name not in known:
            differing = [
                each
                for each in sorted(known - REFUSED.keys())
                if len({str(run.settings.get(each)) for run in runs}) > 1
            ]
            what = ", ".join(
                filter(None, (f"{name} is not a setting of these runs", ask_nearest(name, known)))
            )
            of_use = ", ".join(differing) or "no setting that may be varied"
            wrong.append(f"{what}; these runs differ in {of_use} [SL-varied-no-setting]")
    if wrong:
        raise UserError("\n  ".join(["varied:", *wrong]))


def find_ways(differences: Sequence[Difference]) -> list[str]:
    """Return the varied settings in which runs differ and that do not change the training.

    With batch norm another micro-batch is another training.
    """
    excused = {name for entry in differences for name in entry.causes}
    other = {name for entry in differences if entry.field in CHANGES for name in entry.causes}
    return [name for name in CARRIED_OUT if name in excused - other]


def is_way(entry: Difference, ways: Sequence[str]) -> bool:
    """Return whether a difference is one of `ways`, or follows only from them."""
    return bool(entry.varied) and {*entry.causes} <= {*ways}


def name_way(run: str, differences: Sequence[Difference], ways: Sequence[str]) -> str:
    """Return `micro_batch_size=16 compile=true`: how a run was carried out, if that is varied."""
    meant = [entry for entry in differences if is_way(entry, ways) and run in entry.values]
    return " ".join(f"{entry.field}={format_fact(entry.values[run])}" for entry in meant)


def list_ways(differences: Sequence[Difference]) -> list[str]:
    """Return the settings that are the only obstacle to comparing the runs and that may be varied; empty with other
    obstacles.
    """
    apart = [entry for entry in differences if entry.keeps_apart]
    differing, keeping = {entry.field for entry in differences}, {entry.field for entry in apart}
    following = {name: {name, *FACTS_FOLLOWING.get(name, ())} for name in CARRIED_OUT if name in differing}
    ways = [name for name, fields in following.items() if fields & keeping]
    explained = {field for name in ways for field in following[name]} - {*CHANGES}
    known = all(UNKNOWN not in entry.values.values() for entry in apart)
    return ways if known and keeping <= explained else []


def excuse(
    rule: Rule, values: Mapping[str, Any], varied: Sequence[str], runs: Sequence[RunRecord]
) -> tuple[str, str]:
    """Return (the settings that excuse a difference, or ""; why a fact that could follow does not, or "").

    Consequences of a setting must be equal in all runs with the same value of it: momentum that differs between two
    runs of one optimizer is another difference.

    Args:
        values: run -> its value of the rule's fact.
        varied: settings in which the runs differ on purpose.
    """
    if not varied or UNKNOWN in values.values() or rule.expected is not None:
        return "", ""
    may_differ = (*varied, SEED_SETTING)
    if rule.path[:1] == ("config",) and rule.path[1] in may_differ:
        return rule.path[1], ""
    sources = [name for name in may_differ if rule.field in FACTS_FOLLOWING.get(name, ())]
    of_point: dict[str, Any] = {}
    settings = {run.name: run.settings for run in runs}
    for run, value in values.items() if sources else ():
        point = str([settings[run].get(name) for name in sources])
        if of_point.setdefault(point, value) != value:
            return "", f"not the same in all runs of the same {', '.join(sources)}"
    return ", ".join(sources), ""
