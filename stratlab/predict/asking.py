"""Charts with their values, a pod's environment, or a model with a number of GPUs, become questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stratlab import UserError
from stratlab.helm import find_helm, read_chart_name, render_chart
from stratlab.predict.counting import COUNTED, name_count_of_model
from stratlab.predict.remedies import DEGREES
from stratlab.run_settings import SETTINGS, find_problem
from stratlab.wording import name_allowed
from stratlab_spec.memory.profiles import OperationsFile, Question
from stratlab_spec.settings.config import PREFIX
from stratlab_spec.settings.wording import as_text
from stratlab_spec.strategies import STRATEGIES

BATCH = ("micro_batch_size", "global_batch_size", "model_layers")
OF_DATA = ("data_residence", "dataset_path", "train_samples")
"""Settings for the amount of data on a device, which a count does not know."""
OF_ANY_MODEL = tuple(name for name in STRATEGIES if name != "nd")
"""Layouts of several dimensions are for models that can be divided by them: only by name."""


def ask_of_charts(charts: Sequence[Path], settings: Sequence[str], values: Sequence[Path]) -> list[Question]:
    """Return one question per chart, with the settings and the number of ranks that its pods would have.

    Raises:
        UserError: as helm refuses them.
    """
    helm = find_helm()
    questions = []
    for chart in charts:
        name = read_chart_name(helm, chart)
        objects = render_chart(helm, chart, name, settings=settings, values=values)
        jobs = [one for one in objects if one["kind"] == "PyTorchJob"]
        if len(jobs) != 1:
            raise UserError(
                f"{chart}: does not render a PyTorchJob; leave run.workload.api unset, memory does not depend on it "
                "[SL-predict-no-job]"
            )
        spec = jobs[0]["spec"]
        replicas = spec["pytorchReplicaSpecs"].values()
        nodes = sum(int(replica.get("replicas", 1)) for replica in replicas)
        container = next(iter(replicas))["template"]["spec"]["containers"][0]
        env = {one["name"]: str(one.get("value", "")) for one in container["env"]}
        questions.append(ask_of_pods(name, env, nodes, int(spec["nprocPerNode"])))
    return questions


def ask_of_pods(name: str, env: Mapping[str, str], nodes: int, per_node: int) -> Question:
    """Return the question of a run whose pods have this environment.

    Raises:
        UserError: a size that is not a number.
    """
    settings = {
        key.removeprefix(PREFIX).lower(): value for key, value in env.items() if key.startswith(PREFIX)
    }
    return _build_question(name, settings, nodes * per_node, per_node, whole=True)


def ask_of_model(
    model: str,
    gpus: int,
    files: Sequence[OperationsFile],
    settings: Sequence[str],
    per_node: int = 0,
    *,
    counting: bool = False,
) -> list[Question]:
    """Return one question per strategy, and per number of dimensions that was counted.

    Settings that are not given are as in most of the files of this model, the same for all.

    Args:
        per_node: GPUs of a node; 0 = as each file was counted.
        counting: runs without a file will be counted, so that the model may have no file.

    Raises:
        UserError: a model without a file, a setting without a file, nodes that would not be full, or several GPUs for
            `single`.
    """
    if per_node and gpus % per_node:
        raise UserError(
            f"--gpus-per-node {per_node}: expected a divisor of --gpus {gpus}, for nodes are full "
            "[SL-gpus-per-node]"
        )
    if gpus > 1 and "strategy=single" in settings:
        raise UserError(
            f"--set strategy=single: is a run of one process, expected --gpus 1, got {gpus} "
            "[SL-predict-single]"
        )
    mine = [file for file in files if file.model == model]
    if mine:
        counted = {name for file in mine for name in file.settings}
        known = counted | {*BATCH, "init", *(COUNTED if counting else ())}
        place = f"that `stratlab predict --model {model} --json` lists, batch and depth among them"
        given = _read_settings(settings, known, place)
    elif counting and not find_problem("model", model):
        given = _read_settings(settings)
    else:
        raise UserError(f"--model {model}: {_explain_no_file(model, gpus, per_node, files, settings)}")
    common = {"micro_batch_size": "1", **(find_shared(mine, given) if mine else {}), **given}
    every = dict.fromkeys((*(file.strategy for file in mine), *OF_ANY_MODEL))
    strategies = [given["strategy"]] if "strategy" in given else list(every)
    if gpus > 1:  # `single` with one GPU, the others with several; a single named strategy also with one
        strategies = [name for name in strategies if name != "single"]
    elif len(strategies) > 1:
        strategies = [name for name in strategies if name == "single"]
    return [
        _build_question(
            name,
            {**common, **_name_layout(strategy, given), "model": model, "strategy": strategy, **more},
            gpus,
            per_node,
            whole=False,
            typed=given,
        )
        for strategy in strategies
        for name, more in _list_layouts(strategy, mine, given)
    ]


def _explain_no_file(
    model: str, gpus: int, per_node: int, files: Sequence[OperationsFile], settings: Sequence[str]
) -> str:
    names = sorted({file.model for file in files})
    known = f"there are operations files of {', '.join(names) or 'none'}"
    if problem := find_problem("model", model):
        return f"{problem}; {known} [SL-predict-model]"
    counted = name_count_of_model(model, gpus, per_node, _read_settings(settings))
    of_images = " (a model of images takes --set dataset=timm/imagenet-1k in place of dataset and seq_len)"
    of_images = of_images if "/" in model else ""
    return (
        f"{known}, but not of this model; with --count an installed trainer counts every strategy here; "
        f"`{counted}` counts one{of_images}, --operations FOLDER reads it [SL-predict-not-counted]"
    )


def find_shared(files: Sequence[OperationsFile], given: Mapping[str, str]) -> dict[str, str]:
    """Return setting -> text as in most of the files that agree with `given`; on a tie the last one, a shipped file.

    For one strategy the value of most files of all strategies is used if one of its own files also has it. Settings
    that differ between strategies, or that some files lack, are left out.
    """
    own = {"model", "strategy", "dimensions", *BATCH, *given}
    names = sorted(set.intersection(*(set(file.settings) for file in files)) - own)

    def read_texts(file: OperationsFile) -> tuple[str, ...]:
        return tuple(as_text(file.settings[name]) for name in names)

    wanted = {name: text for name, text in given.items() if name != "strategy"}
    alike = [one for one in reversed(files) if all(one.has(name, text) for name, text in wanted.items())]
    alike = alike or [*reversed(files)]
    nearest = [one for one in alike if one.strategy == given.get("strategy", one.strategy)] or alike
    counts = Counter(map(read_texts, alike))
    most = max(nearest, key=lambda one: counts[read_texts(one)])
    return dict(zip(names, read_texts(most), strict=True))


def _list_layouts(
    strategy: str, files: Sequence[OperationsFile], given: Mapping[str, str]
) -> list[tuple[str, dict[str, str]]]:
    """Return (name, settings): one of each number of dimensions that was counted, if there are several."""
    counted = {file.settings.get("dimensions", 1) for file in files if file.strategy == strategy}
    if len(counted) < 2 or given.keys() & {*DEGREES, "dimensions", "layout"}:
        return [(strategy, {})]
    return [(f"{strategy} {number}d", {"dimensions": str(number)}) for number in sorted(counted)]


def _name_layout(strategy: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that the trainer requires together with degrees of nd."""
    typed = strategy == "nd" and given.keys() & {*DEGREES} and "layout" not in given
    return {"layout": "given"} if typed else {}


def _read_settings(
    settings: Sequence[str],
    known: Iterable[str] = SETTINGS,
    place: str = "that `python -m trainer.settings --schema` lists",
) -> dict[str, str]:
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected name=value [SL-set-no-value]")
        if name not in known and name in SETTINGS and name not in (*COUNTED, *OF_DATA):
            raise UserError(
                f"--set {text}: memory does not depend on {name}; leave it out [SL-set-no-memory]"
            )
        if name not in known:
            allowed = name_allowed(name, sorted(known), "memory depends on", place)
            raise UserError(f"--set {text}: {allowed} [SL-set-unknown]")
        if problem := find_problem(name, value):
            raise UserError(f"--set {text}: {problem} [SL-set-value]")
        found[name] = value
    return found


def _build_question(
    name: str,
    settings: Mapping[str, str],
    ranks: int,
    per_node: int,
    whole: bool,
    typed: Iterable[str] = (),
) -> Question:
    says_batch = whole or "global_batch_size" in settings
    return Question(
        name=name,
        settings=settings,
        ranks=ranks,
        per_node=per_node,
        rows=_read_number(settings, "micro_batch_size"),
        global_batch=_read_number(settings, "global_batch_size") if says_batch else 0,
        layers=_read_number(settings, "model_layers"),
        whole=whole,
        typed=frozenset(typed),
    )


def _read_number(settings: Mapping[str, str], name: str) -> int:
    text = settings.get(name, str(SETTINGS[name]["default"]))
    if problem := find_problem(name, text):
        raise UserError(f"{name}={text}: {problem} [SL-batch-value]")
    return int(text)
