"""A combination of knobs as a release: short, without a profile, in a comparison of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratlab.sweep.matrix import HASH_LENGTH, LONGEST_NAME, Release
from stratlab.sweep.tuning.search import Knobs, name_knobs
from stratlab.sweep.tuning_definition import Tune

AS_IT_COMES = "defaults"
NOT_OF_A_SHORT_RUN = ("epochs", "profile_first_step", "target_accuracy_pct", "target_perplexity")
"""Settings of the comparison that mean nothing in a run of some steps, or contradict them."""


def name_tuning(comparison: str) -> str:
    """The comparison that the runs of the candidates form."""
    return f"{comparison}-tuning"


def build_candidate(base: Release, tune: Tune, comparison: str, knobs: Knobs) -> list[Release]:
    """The releases of one candidate, one for each repeat.

    Args:
        base: of the comparison: the combination that is tuned.
        comparison: that of `base`.
    """
    short = {
        "steps": tune.steps,
        "warmup_steps": 0,
        "profile_steps": 0,
        "comparison": name_tuning(comparison),
    }
    values = set_config(base.values, {**short, **knobs})
    name = name_candidate(base.name, knobs)
    return [
        replace(
            base,
            name=name + (f"-r{repeat}" if repeat > 1 else ""),
            repeat=repeat,
            values=values,
            without=NOT_OF_A_SHORT_RUN,
        )
        for repeat in range(1, tune.repeats + 1)
    ]


def apply_choice(
    releases: Sequence[Release], chosen: Mapping[str, Knobs], names: Mapping[str, str]
) -> list[Release]:
    """The releases of the comparison with the knobs that won, under the same names.

    Args:
        chosen: name of a combination's first release -> knobs.
        names: name of a release -> that of the first of its combination.
    """
    return [
        replace(release, values=set_config(release.values, chosen.get(names[release.name], {})))
        for release in releases
    ]


def set_config(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a chart with these settings of `run.config`."""
    run = values.get("run", {})
    return {**values, "run": {**run, "config": {**run.get("config", {}), **config}}}


def name_candidate(base: str, knobs: Knobs) -> str:
    """`<combination>-defaults`, or with its knobs as words; with a hash of them where that is too long."""
    words = re.sub(r"[^a-z0-9]+", "-", name_knobs(knobs).lower()).strip("-") or AS_IT_COMES
    room = LONGEST_NAME - len("-r100")
    name = f"{base}-{words}"
    if len(name) <= room and not re.search(r"-r\d+$", name):
        return name
    mark = hashlib.sha256(f"{base} {name_knobs(knobs)}".encode()).hexdigest()[:HASH_LENGTH]
    return f"{base[: room - HASH_LENGTH - 1].rstrip('-')}-{mark}"
