"""Write what starts an option: values for helm, the line of `stratlab run`, and a sweep of short runs.

    Option, Wanted ─▶ build_request ─▶ build_run_line ─▶ values.yaml   a reason per field
                          └▶ stratlab run ...          └▶ sweep.yaml   strategies and settings that differ

All three come from the line of `stratlab run`, and so have the same settings.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from stratlab.predict.asking import find_model
from stratlab.recommend import ROWS, Option
from stratlab.recommend.choice import Recommendation
from stratlab.recommend.wanted import BATCH, OF_DATA, Wanted
from stratlab.run_line import CONFIG, ON_VOLUME, RunLine, RunRequest, build_run_line
from stratlab.run_settings import SETTINGS
from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory.simulated import Simulated
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.settings.wording import as_text

NAMED = {"model", "model_path", "strategy", *OF_DATA, ROWS, BATCH, "dimensions"}
"""Settings that the line names by arguments and options of its own, or that are the chart's."""
STEPS = 40
"""Of a run that settles an order: at least 20 of them are timed (docs/best_practices.md)."""
ASSUMED = "assumed"
MEANINGS = {
    "init": "the weights to start from",
    "task": "a language model",
    "comparison": "folder of the run",
    "model": "as asked",
}
SWEEP_HEAD = "# Short runs that settle the order: stratlab sweep FILE"


def name_chart(one: Option) -> str:
    """Return the chart that starts an option."""
    file = one.prediction.file
    if one.strategy != "nd":
        return one.strategy
    assert isinstance(file, Simulated)
    return f"llm-{resolve_layout(file.config, one.gpus, read_shape(file.config)).dimensions}d"


def build_request(one: Option, wanted: Wanted) -> RunRequest:
    """Return the options of `stratlab run` for an option."""
    question = one.prediction.question
    settings = {
        name: text
        for name, text in question.settings.items()
        if name not in NAMED and (name in wanted.typed or text != as_text(SETTINGS[name]["default"]))
    }
    found = find_model(wanted.model)
    model = found.settings.get("model", wanted.model)
    if "/" in wanted.model and "model" in found.settings:  # a name on the hub, whose weights are meant
        settings.setdefault("init", "pretrained")
        if found.origin:  # not the preset's own
            model = wanted.model
            settings |= {"task": "text"} if found.shape else {}
    return RunRequest(
        model=model,
        strategies=name_chart(one),
        gpus=one.gpus,
        nodes=one.gpus // (question.per_node or one.gpus),
        data=wanted.data,
        batch=wanted.batch,
        micro_batch=question.rows,
        epochs=wanted.epochs or None,
        settings=[f"{name}={text}" for name, text in {**settings, **wanted.further}.items()],
    )


def write_run_line(request: RunRequest) -> str:
    """Return the line of `stratlab run`."""
    options = {
        "--gpus": request.gpus,
        "--nodes": request.nodes if request.nodes != 1 else None,
        "--data": request.data,
        "--batch": request.batch,
        "--micro-batch": request.micro_batch,
        "--epochs": request.epochs,
    }
    words = ["stratlab", "run", request.model, request.strategies]
    words += [str(word) for pair in options.items() if pair[1] for word in pair]
    return shlex.join([*words, *(word for text in request.settings for word in ("--set", text))])


def build_values(one: Option, wanted: Wanted) -> dict[str, Any]:
    """Return the values of the option's chart, below `run`.

    Raises:
        UserError: as `stratlab run` refuses the settings.
    """
    line = build_line(one, wanted)
    searched = {name: text for name, text in one.chosen.items() if name not in line.config}
    config = {
        name: yaml.safe_load(text) if text else text for name, text in {**line.config, **searched}.items()
    }
    return {"nodes": line.nodes, "processesPerNode": line.processes, "config": config}


def build_line(one: Option, wanted: Wanted) -> RunLine:
    """Return the settings of `stratlab run` for an option."""
    return build_run_line(build_request(one, wanted), wanted.charts, local_gpus=None)


@dataclass(frozen=True)
class StartFiles:
    """The files of a recommendation.

    Attributes:
        why: searched setting -> its reason.
        charts: their folder.
        heading: comments above the values.
    """

    found: Recommendation
    wanted: Wanted
    why: Mapping[str, str]
    charts: Path
    heading: Sequence[str] = ()

    @cached_property
    def values(self) -> dict[str, Any]:
        return build_values(self.found.taken, self.wanted)

    @cached_property
    def fields(self) -> list[tuple[str, Any, str]]:
        """Return (field, value, reason) of the values."""
        taken = self.found.taken
        per_node = taken.prediction.question.per_node or taken.gpus
        gpus = f"{taken.gpus} GPUs, {per_node} on a node" if taken.gpus > 1 else "one GPU"
        places = [
            ("nodes", self.values["nodes"], gpus),
            ("processesPerNode", self.values["processesPerNode"], gpus),
        ]
        return places + [(name, value, self._explain(name)) for name, value in self.values["config"].items()]

    def _explain(self, name: str) -> str:
        wanted = self.wanted
        if name in self.why:
            return self.why[name]
        if name == BATCH:
            given = "as given" if name in wanted.typed else f"{ASSUMED}, --batch sets it"
            return f"{given}; it decides what is learnt"
        if name in OF_DATA and not wanted.typed.intersection(OF_DATA):
            return f"{ASSUMED}, --data sets yours"
        value = self.values["config"][name]
        if name in ("model_path", "dataset_path") and not str(value).startswith(ON_VOLUME):
            return "as given; pods need it on the results volume (docs/cluster.md)"
        if name in {*wanted.typed, *OF_DATA, "epochs"}:
            return "as given"
        return MEANINGS.get(name, ASSUMED)

    @property
    def run_line(self) -> str:
        return write_run_line(build_request(self.found.taken, self.wanted))

    def write_values(self) -> str:
        """Return the values as YAML, with a reason per field."""
        lines = [*(f"# {text}" for text in self.heading), "run:"]
        for name, value, reason in self.fields:
            if name not in self.values:
                lines += ["  config:"] * ("  config:" not in lines)
            indent = "  " if name in self.values else "    "
            lines.append(f"{indent}{name}: {_write_scalar(value)}{f' # {reason}' if reason else ''}")
        return "\n".join([*lines, ""])

    def write_sweep(self, file: Path) -> str:
        """Return the sweep of the runs that settle the order, for this place."""
        charts = os.path.relpath(self.charts.resolve(), file.absolute().parent)
        content = build_sweep(self.found.settling, self.wanted, charts)
        return f"{SWEEP_HEAD}\n{yaml.safe_dump(content, sort_keys=False)}"

    def list_commands(self, values: Path | None, sweep: Path | None) -> list[str]:
        """Return the lines that start the run, and the runs that settle the order."""
        chart = name_chart(self.found.taken)
        file = shlex.quote(str(values)) if values else "FILE   # --out FILE writes it"
        found = [f"helm install {chart} {self.charts / chart} --values {file}", self.run_line]
        return [*found, *([f"stratlab sweep {shlex.quote(str(sweep))}"] if sweep else [])]


def _write_scalar(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def build_sweep(settling: Sequence[Option], wanted: Wanted, charts: str) -> dict[str, Any]:
    """Return a sweep with one short run of each option.

    Args:
        charts: their folder, relative to the sweep's file.
    """
    points = [_build_point(one, wanted) for one in settling]
    names = list(dict.fromkeys(name for point in points for name in point))
    for point in points:
        for name in names:
            if name not in point:
                point[name] = SETTINGS[name.removeprefix(CONFIG)]["default"]
    values = {name: list(dict.fromkeys(point[name] for point in points)) for name in names}
    matrix = {name: each for name, each in values.items() if name == "strategy" or len(each) > 1}
    content: dict[str, Any] = {
        "comparison": f"{build_line(settling[0], wanted).comparison}-order",
        "charts": charts,
        "set": {name: each[0] for name, each in values.items() if name not in matrix},
        "matrix": matrix,
        "vary": [name for name in matrix if name.startswith(CONFIG)],
    }
    chosen = [tuple(point[name] for name in matrix) for point in points]
    others = [point for point in itertools.product(*matrix.values()) if point not in chosen]
    content["exclude"] = _list_excluded(matrix, chosen, others)
    return {name: value for name, value in content.items() if value}


def _build_point(one: Option, wanted: Wanted) -> dict[str, Any]:
    values = build_values(one, wanted)
    config = {name: value for name, value in values["config"].items() if name not in ("comparison", "epochs")}
    return {
        "strategy": name_chart(one),
        "run.nodes": values["nodes"],
        "run.processesPerNode": values["processesPerNode"],
        **{f"{CONFIG}{name}": value for name, value in config.items() if value is not None},
        f"{CONFIG}steps": STEPS,
    }


def _list_excluded(
    matrix: Mapping[str, Sequence[Any]], chosen: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """Return entries that match all combinations but the chosen ones: pairs where they are enough."""
    names, left, found = list(matrix), list(others), []
    for first, second in itertools.combinations(range(len(names)), 2):
        kept = {(point[first], point[second]) for point in chosen}
        for pair in itertools.product(matrix[names[first]], matrix[names[second]]):
            covered = [point for point in left if (point[first], point[second]) == pair]
            if covered and pair not in kept:
                found.append({names[first]: pair[0], names[second]: pair[1]})
                left = [point for point in left if point not in covered]
    return [*found, *(dict(zip(names, point, strict=True)) for point in left)]
