"""Settings that runs are meant to differ in: which may be, what follows from each, which differences they excuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratlab.compare.judging.facts import UNKNOWN
from stratlab.compare.judging.rules import SIZES, Rule
from stratlab.nearest import ask_nearest
from stratlab.number import format_fact
from stratlab.run_directory.record import RunRecord
from stratlab.user_error import UserError

PREFIX = "run.config."
SEED = "seed"
"""Runs that differ in it alone are repeats, whatever else is varied."""
REFUSED = {
    **dict.fromkeys(
        ("dataset", "dataset_path", "image_column", "label_column", "task", "validation_fraction"),
        "results on other data answer another question",
    ),
    **dict.fromkeys(("run", "comparison", "results", "mode"), "it is no setting of the training"),
    "strategy": "strategies are compared without being named here",
    SEED: "runs with another seed are repeats without being named here",
}

CARRIED_OUT = (
    "micro_batch_size",
    "activation_checkpointing",
    "compile",
    "loss_chunk_tokens",
    "data_residence",
)
"""How one training is carried out: with other memory and another speed, and the same losses. Runs that are meant to
differ in these alone are compared as strategies are."""
CHANGES = ("batch_norm_samples",)
"""Facts that follow from one of them and change what is learnt."""
LENGTH = ("resolved.steps", "steps done", "resolved.profile_first_step", "data_order_sha256")
SHAPE = (
    *("parameters", "trainable_parameters", "flops_per_sample", "flops_per_token", "initial_weights_sha256"),
    *("resolved.image_size", "preprocessing", "batch_norm_samples"),
)
TYPES = ("parameter dtypes", "gradient dtypes", "optimizer dtypes", "reduction dtypes", "product dtypes")
FOLLOWING: Mapping[str, tuple[str, ...]] = {
    SEED: ("initial_weights_sha256", "data_order_sha256"),
    "optimizer": ("momentum", "nesterov", "beta1", "beta2", "eps", "optimizer dtypes"),
    "momentum": ("optimizer dtypes",),  # none of it, no state
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
    """`lr,run.config.optimizer` -> (lr, optimizer)."""
    return tuple(dict.fromkeys(name.strip().removeprefix(PREFIX) for name in text.split(",") if name.strip()))


def check_varied(varied: Sequence[str], runs: Sequence[RunRecord]) -> None:
    """That each is a setting that these runs have, and may be varied.

    Raises:
        UserError: with every wrong name.
    """
    known = {name for run in runs for name in run.config.get("config") or {}}
    wrong = []
    for name in varied:
        if name in REFUSED:
            wrong.append(f"{name} cannot be varied: {REFUSED[name]} [SL-varied-refused]")
        elif name not in known:
            told = (f"{name} is no setting of these runs", ask_nearest(name, known))
            said = f"{', '.join(filter(None, told))}; {_say_differing(runs, known)}"
            wrong.append(f"{said} [SL-varied-no-setting]")
    if wrong:
        raise UserError("\n  ".join(["varied:", *wrong]))


def _say_differing(runs: Sequence[RunRecord], known: set[str]) -> str:
    """In which settings the runs differ that may be varied: the names that are of use."""
    of_runs = [run.config.get("config") or {} for run in runs]
    found = [
        name
        for name in sorted(known - REFUSED.keys())
        if len({str(settings.get(name)) for settings in of_runs}) > 1
    ]
    return f"these runs differ in {', '.join(found) or 'no setting that may be varied'}"


def find_ways(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """The varied settings that runs differ in and that leave the training what it is.

    Batch norm makes another training of another micro-batch.

    Args:
        differences: of the audit, `varied` as `excuse` says.
    """
    excused = {name for entry in differences for name in _split(entry["varied"])}
    other = {name for entry in differences if entry["field"] in CHANGES for name in _split(entry["varied"])}
    return [name for name in CARRIED_OUT if name in excused - other]


def is_way(entry: Mapping[str, Any], ways: Sequence[str]) -> bool:
    """Whether a difference is one of `ways`, or follows from one, and from nothing else."""
    return bool(entry["varied"]) and {*_split(entry["varied"])} <= {*ways}


def name_way(run: str, differences: Sequence[Mapping[str, Any]], ways: Sequence[str]) -> str:
    """`micro_batch_size=16 compile=true`: how a run was carried out, where that is varied."""
    told = [entry for entry in differences if is_way(entry, ways) and run in entry["values"]]
    return " ".join(f"{entry['field']}={format_fact(entry['values'][run])}" for entry in told)


def list_ways(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that alone keep runs from being compared and that may be varied besides; none where others do.

    Args:
        differences: of the audit.
    """
    apart = [entry for entry in differences if entry["matters"] and not entry["varied"]]
    differing = {entry["field"] for entry in differences}
    ways = [
        name
        for name in CARRIED_OUT
        if name in differing and any(entry["field"] in (name, *FOLLOWING.get(name, ())) for entry in apart)
    ]
    explained = {field for name in ways for field in (name, *FOLLOWING.get(name, ()))} - {*CHANGES}
    known = all(UNKNOWN not in entry["values"].values() for entry in apart)
    return ways if known and all(entry["field"] in explained for entry in apart) else []


def _split(names: str) -> list[str]:
    return names.split(", ") if names else []


def excuse(
    rule: Rule, values: Mapping[str, Any], varied: Sequence[str], runs: Sequence[RunRecord]
) -> tuple[str, str]:
    """(the settings that excuse a difference, "" where none does; why a fact that could follow does not, or "").

    What follows from a setting must be the same in all runs with the same value of it: momentum that differs between
    two runs of one optimizer is another difference.

    Args:
        values: run -> its value of the rule's fact.
        varied: settings that the runs are meant to differ in.
    """
    if not varied or UNKNOWN in values.values() or rule.expected is not None:
        return "", ""
    asked = [name for name in (*varied, SEED) if rule.path == ("config", name)]
    if asked:
        return asked[0], ""
    sources = [name for name in (*varied, SEED) if rule.field in FOLLOWING.get(name, ())]
    if not sources:
        return "", ""
    found: dict[str, Any] = {}
    settings = {run.name: run.config.get("config") or {} for run in runs}
    for run, value in values.items():
        point = str([settings[run].get(name) for name in sources])
        if found.setdefault(point, value) != value:
            return "", f"not the same in all runs of the same {', '.join(sources)}"
    return ", ".join(sources), ""
