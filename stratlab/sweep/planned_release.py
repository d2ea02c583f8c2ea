"""Turn a sweep's matrix into releases, each with name and values, rendered before the first one starts.

`expand` builds the combinations, `build_sweep_plan` renders them, and `check_settings` asks the trainer. Each reports
all mistakes at once: missing charts and files, and values that a chart or the trainer refuses.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stratlab import UserError
from stratlab.cluster.workloads import ANALYSIS, APIS, Api, RunAnnotations, Workload, pick_jobs
from stratlab.helm import read_chart_name, render_chart, write_values
from stratlab.machine import build_machine_env
from stratlab.pod_commands import expand as expand_variables
from stratlab.pod_commands import place_value
from stratlab.predict.answering import foretell
from stratlab.sweep.definition import STRATEGY, Scalar, Sweep, cannot_start, same
from stratlab.trainer_program import ask_trainer, list_notes, list_refusals
from stratlab.wording import ask_nearest

LONGEST_NAME = 52
HASH_LENGTH = 8


@dataclass(frozen=True)
class Release:
    """Describe one helm release = one run.

    `point` is its place in the matrix; `values` come from `set` and `matrix`. `without` lists settings of run.config
    that are removed from the values files.
    """

    name: str
    strategy: str
    point: Mapping[str, Scalar]
    repeat: int
    values: Mapping[str, Any]
    without: Sequence[str] = ()


def expand(sweep: Sweep) -> list[Release]:
    """Return the releases of a sweep: combinations in the order of the file, repeats last.

    Raises:
        UserError: `exclude` removes all combinations.
    """
    keys = list(sweep.matrix)
    combinations = [dict(zip(keys, each, strict=True)) for each in itertools.product(*sweep.matrix.values())]
    kept = [
        point
        for point in combinations
        if not any(all(same(point[path], each) for path, each in entry.items()) for entry in sweep.exclude)
    ]
    if not kept:
        raise UserError(
            f"exclude: removes all {len(combinations)} combinations; keep at least one [SL-exclude-leaves-none]"
        )
    plain = [_plain_name(sweep.comparison, point) for point in kept]
    releases = []
    for repeat in range(1, sweep.repeats + 1):
        for point, name in zip(kept, plain, strict=True):
            unclear = plain.count(name) > 1 or re.search(r"-r\d+$", name) is not None
            name, strategy = _fit(name, point, repeat, unclear), str(point[STRATEGY])
            releases.append(Release(name, strategy, point, repeat, _nest(sweep, point)))
    assert len({release.name for release in releases}) == len(releases)
    return releases


def _plain_name(comparison: str, point: Mapping[str, Scalar]) -> str:
    """Build a name from the values in the order of the matrix; numbers and switches include their setting's name."""
    parts = [comparison, *(_word(path, value) for path, value in point.items())]
    slugs = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts]
    name = "-".join(filter(None, slugs))
    return name if name[:1].isalpha() else f"s-{name}"


def _word(path: str, value: Scalar) -> str:
    """Return a text unchanged; prefix other values with the setting, by initials if it has several words."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9.]*", value):
        return value
    setting = path.rpartition(".")[2]
    words = re.findall(r"[a-z0-9]+|[A-Z][a-z0-9]*", setting)
    short = "".join(word[0] for word in words) if len(words) > 1 else setting
    return f"{short}{value if isinstance(value, str) else json.dumps(value)}"


def _fit(name: str, point: Mapping[str, Scalar], repeat: int, unclear: bool) -> str:
    """Return `name`, with a hash of the point if the name is too long or not unique."""
    suffix = f"-r{repeat}" if repeat > 1 else ""
    # room for the longest suffix, whatever `repeats` is now: raising it later must not rename a release
    room = LONGEST_NAME - len("-r100")
    if unclear or len(name) > room:
        text = json.dumps(sorted((path, repr(value)) for path, value in point.items()))
        mark = hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
        name = f"{name[: room - HASH_LENGTH - 1].rstrip('-')}-{mark}"
    return name + suffix


def _nest(sweep: Sweep, point: Mapping[str, Scalar]) -> dict[str, Any]:
    flat = {**sweep.set, **{path: value for path, value in point.items() if path != STRATEGY}}
    flat["run.config.comparison"] = sweep.comparison
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, last = re.split(r"(?<!\\)\.", path)
        node = nested
        for folder in folders:
            node = node.setdefault(folder.replace("\\.", "."), {})
        node[last.replace("\\.", ".")] = value
    return nested


@dataclass(frozen=True)
class Planned:
    """Hold one rendered release.

    `values` are all of helm's values; `asked` hashes them with the chart's name. `environment` holds the variables of
    its training pods that are rendered as text.
    """

    release: Release
    chart: Path
    values: Mapping[str, Any]
    asked: str
    workload: Workload
    has_analysis: bool
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def api(self) -> Api:
        return self.workload.api

    @property
    def facts(self) -> RunAnnotations:
        return self.workload.facts


def build_sweep_plan(
    sweep: Sweep,
    folder: Path,
    helm: Path,
    progress: Callable[[str], None],
    releases: Sequence[Release] | None = None,
) -> list[Planned]:
    """Render every release.

    Args:
        folder: folder of the sweep's file, to which its paths are relative.
        releases: replace the releases of the matrix.

    Raises:
        UserError: with one line per mistake: missing charts and files, values that a chart refuses.
    """
    releases = expand(sweep) if releases is None else releases
    charts, problems = _find_charts(sweep, folder)
    base, wrong = _read_values([folder / name for name in sweep.values])
    problems += wrong
    if problems:
        raise cannot_start(problems)
    planned: list[Planned] = []
    refusals: dict[str, list[str]] = {}
    for number, release in enumerate(releases, 1):
        progress(f"rendering {number} of {len(releases)}: {release.name}")
        values = merge_values(base, release.values)
        for name in release.without:
            values["run"]["config"].pop(name, None)
        try:
            planned.append(_render(helm, charts[release.strategy], release, values))
        except UserError as refusal:
            refusals.setdefault(str(refusal).replace(release.name, "<release>"), []).append(release.name)
    if refusals:
        lines = [f"{', '.join(names)}: {text}" for text, names in refusals.items()]
        raise cannot_start(lines)
    return planned


def merge_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as helm does: join maps, replace everything else."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merge_values(old, value)
        merged[key] = value
    return merged


def hash_asked(chart: str, values: Mapping[str, Any]) -> str:
    """Hash values so that they match helm's own output, in which 1.0 has become 1."""
    text = json.dumps([chart, _plain(values)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _find_charts(sweep: Sweep, folder: Path) -> tuple[dict[str, Path], list[str]]:
    charts = folder / sweep.charts
    wanted = [str(name) for name in sweep.matrix[STRATEGY]]
    there = sorted(path.parent.name for path in charts.glob("*/Chart.yaml") if _is_strategy(path))
    problems = []
    for name in wanted:
        if not (charts / name / "Chart.yaml").is_file():
            others = f"{ask_nearest(name, there)} there is {', '.join(there)}".lstrip()
            others = others if there else f"charts={sweep.charts}: no folder of charts, relative to {folder}"
            problems.append(f"matrix: strategy {name}: no chart {charts / name}; {others} [SL-chart-missing]")
    return {name: charts / name for name in wanted}, problems


def _is_strategy(chart_file: Path) -> bool:
    """Return whether the chart's values name a strategy; other charts prepare data or are the library."""
    values = chart_file.with_name("values.yaml")
    content = yaml.safe_load(values.read_text()) if values.is_file() else None
    return bool(((content or {}).get("run") or {}).get("config", {}).get("strategy"))


def _read_values(files: list[Path]) -> tuple[dict[str, Any], list[str]]:
    merged: dict[str, Any] = {}
    problems = []
    for file in files:
        try:
            content = yaml.safe_load(file.read_text())
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as failure:
            why = getattr(failure, "strerror", None) or failure
            problems.append(f"values: {file}: {why} [SL-values-unreadable]")
            continue
        if isinstance(content, dict):
            merged = merge_values(merged, content)
        elif content is not None:
            problems.append(f"values: {file}: is not a map of values [SL-values-no-map]")
    return merged, problems


def _render(helm: Path, chart: Path, release: Release, values: dict[str, Any]) -> Planned:
    with write_values(values) as file:
        objects = render_chart(helm, chart, release.name, values=[file])
    workloads = [
        Workload(api, each)
        for each in objects
        for api in APIS.values()
        if (each["apiVersion"], each["kind"]) == (api.group_version, api.kind)
    ]
    if merge_values({"run": {"workload": {"api": ""}}}, values)["run"]["workload"]["api"] == "auto":
        raise UserError(
            "run.workload.api=auto: a sweep needs one API to follow its runs; set it (`stratlab check` lists them) "
            "[SL-sweep-api-auto]"
        )
    if len(workloads) != 1:
        raise UserError(
            f"{chart}: renders {len(workloads)} workloads; a strategy chart renders one [SL-chart-not-one-workload]"
        )
    has_analysis = bool(pick_jobs([each for each in objects if each["kind"] == "Job"], ANALYSIS))
    asked = hash_asked(read_chart_name(helm, chart), values)
    env = _find_environment(objects) | _count_processes(workloads[0])
    return Planned(release, chart, values, asked, workloads[0], has_analysis, env)


def _find_environment(node: Any) -> dict[str, str]:
    """Return the variables of the first container below `node` that has a TRAINER_RUN."""
    entries = node.get("env") if isinstance(node, Mapping) else None
    if isinstance(entries, list) and any(entry.get("name") == "TRAINER_RUN" for entry in entries):
        return {each["name"]: expand_variables(str(each["value"]), {}) for each in entries if "value" in each}
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    return next((found for child in children if (found := _find_environment(child))), {})


def _count_processes(workload: Workload) -> dict[str, str]:
    """Return the variables of the process count, as an operator would inject them."""
    nodes, processes = workload.nodes, workload.facts.processes or workload.nodes
    return {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(max(1, processes // nodes))}


def check_settings(
    plan: Sequence[Planned],
    environ: Mapping[str, str],
    waiting: Callable[[float], None] = lambda seconds: None,
    here: Path | None = None,
) -> tuple[str, list[str]]:
    """Check the settings of every release with the trainer.

    Returns:
        Why the trainer is unavailable, or "", and its notes, such as how the columns of texts are read.

    Args:
        waiting: receives from time to time the seconds waited.
        here: the runs use this machine, with results below this folder, so that data and models are checked too.

    Raises:
        UserError: with one line per message of the trainer, and its releases.
    """
    runs = {each.release.name: each.environment for each in plan if "TRAINER_RUN" in each.environment}
    options = ["--elsewhere"]
    if here is not None:
        runs = {name: _place_here(env, here) for name, env in runs.items()}
        options, environ = ["--replace"], build_machine_env(environ)
    answers = ask_trainer(runs, environ, options, (sys.executable, "-m", "trainer"), waiting)
    if answers.refused:
        raise cannot_start(list_refusals(answers, len(plan)))
    return answers.reason, list_notes(answers, len(plan))


def _place_here(env: Mapping[str, str], results: Path) -> dict[str, str]:
    mount = env.get("TRAINER_RESULTS", "").rstrip("/")
    placed = {name: place_value(value, mount, results) if mount else value for name, value in env.items()}
    return placed | {"TRAINER_RESULTS": str(results)}


def foretell_all(plan: Sequence[Planned]) -> list[str]:
    """Predict the needs of releases on GPUs, the ones that do not fit first; only with an operations file."""
    told = [foretell(each.release.name, each.environment) for each in plan]
    return sorted(filter(None, told), key=lambda sentence: (": fits" in sentence, sentence))
