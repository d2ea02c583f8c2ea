"""Charts with their values, or a model with a number of GPUs, become questions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratlab.predict.operations_file import OperationsFile
from stratlab.predict.prediction import Question
from stratlab.rendering.helm import find_helm, read_chart_name, render_chart
from stratlab.user_error import UserError

PREFIX = "TRAINER_"
DEFAULT_BATCH = {"micro_batch_size": 32, "global_batch_size": 64}
"""As the trainer has them."""
REPLICAS = {"PyTorchJob": "pytorchReplicaSpecs"}
BATCH = ("micro_batch_size", "global_batch_size", "model_layers")


def ask_of_charts(charts: Sequence[Path], settings: Sequence[str], values: Sequence[Path]) -> list[Question]:
    """One question per chart, with the settings and the number of ranks that its pods would have.

    Raises:
        UserError: as helm refuses them.
    """
    helm = find_helm()
    found = []
    for chart in charts:
        name = read_chart_name(helm, chart)
        jobs = [
            one
            for one in render_chart(helm, chart, name, settings=settings, values=values)
            if one["kind"] in REPLICAS
        ]
        if len(jobs) != 1:
            raise UserError(
                f"{chart}: renders no PyTorchJob; leave run.workload.api alone, memory does not depend on it"
            )
        found.append(_ask_of_job(name, jobs[0]))
    return found


def _ask_of_job(name: str, job: Mapping[str, Any]) -> Question:
    spec = job["spec"]
    replicas = spec[REPLICAS[job["kind"]]].values()
    nodes = sum(int(replica.get("replicas", 1)) for replica in replicas)
    per_node = int(spec["nprocPerNode"])
    container = next(iter(replicas))["template"]["spec"]["containers"][0]
    named = {one["name"]: str(one.get("value", "")) for one in container["env"]}
    settings = {
        key.removeprefix(PREFIX).lower(): value for key, value in named.items() if key.startswith(PREFIX)
    }
    return build_question(name, settings, nodes * per_node, per_node, whole=True)


def ask_of_model(
    model: str, gpus: int, files: Sequence[OperationsFile], settings: Sequence[str]
) -> list[Question]:
    """One question per strategy of which there is a file of this model; what is not given is as in the files.

    Raises:
        UserError: no file of this model, or a setting that none of them has.
    """
    mine = [file for file in files if file.model == model]
    if not mine:
        known = ", ".join(sorted({file.model for file in files})) or "none"
        raise UserError(
            f"--model {model}: there is no operations file of it; there are files of {known}. "
            "`python -m trainer.count --operations FILE` counts one, --operations FOLDER reads it"
        )
    given = _read_settings(settings, {name for file in mine for name in file.settings} | set(BATCH))
    strategies = (
        [given["strategy"]] if "strategy" in given else list(dict.fromkeys(file.strategy for file in mine))
    )
    rows = {"micro_batch_size": "1", **given}
    return [
        build_question(name, {**rows, "model": model, "strategy": strategy, **more}, gpus, gpus, whole=False)
        for strategy in strategies
        if gpus > 1 or len(strategies) == 1 or strategy == "single"
        if gpus == 1 or strategy != "single"
        for name, more in _list_layouts(strategy, mine, given)
    ]


def _list_layouts(
    strategy: str, files: Sequence[OperationsFile], given: Mapping[str, str]
) -> list[tuple[str, dict[str, str]]]:
    """(name, settings): one of each number of dimensions that was counted, where there are several."""
    counted = {file.settings.get("dimensions", 1) for file in files if file.strategy == strategy}
    if len(counted) < 2 or "dimensions" in given:
        return [(strategy, {})]
    return [(f"{strategy} {number}d", {"dimensions": str(number)}) for number in sorted(counted)]


def _read_settings(settings: Sequence[str], known: set[str]) -> dict[str, str]:
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected name=value")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"--set {text}: {hint}memory depends on {', '.join(sorted(known))}")
        found[name] = value
    return found


def build_question(
    name: str, settings: Mapping[str, str], ranks: int, per_node: int, whole: bool
) -> Question:
    """Of a run's settings, as its pods have them.

    Args:
        whole: what `settings` leaves out has its default; else nothing is known of it.

    Raises:
        UserError: a size that is no number.
    """
    rows = _read_number(settings, "micro_batch_size", DEFAULT_BATCH["micro_batch_size"])
    total = _read_number(settings, "global_batch_size", DEFAULT_BATCH["global_batch_size"] if whole else 0)
    shared = (
        _read_number(settings, "tp", 1) * _read_number(settings, "cp", 1) * _read_number(settings, "pp", 1)
    )
    dp = max(1, ranks // max(1, shared))
    return Question(
        name=name,
        settings=settings,
        ranks=ranks,
        per_node=per_node,
        rows=rows,
        micro_batches=total // (rows * dp),
        layers=_read_number(settings, "model_layers", 0),
        whole=whole,
    )


def _read_number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal() or (name == "micro_batch_size" and text == "0"):
        raise UserError(f"{name}={text}: expected a whole number from 1")
    return int(text)
