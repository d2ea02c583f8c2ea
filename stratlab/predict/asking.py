"""Charts with their values, a pod's environment, or a model with a number of GPUs, become questions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stratlab import UserError
from stratlab.helm import find_helm, read_chart_name, render_chart
from stratlab.predict.counting import COUNTED, OF_IMAGES, OF_TEXT
from stratlab.predict.remedies import DEGREES, DIMENSIONS, WHY, find_per_node
from stratlab.run_settings import SETTINGS, find_problem
from stratlab.wording import name_allowed
from stratlab_spec.memory.profiles import Question
from stratlab_spec.models.decoder_config import SHAPES, TEXT_HUB_IDS
from stratlab_spec.models.model_specs import HUB_IDS, VIT
from stratlab_spec.registry import NETWORKS
from stratlab_spec.settings.config import PREFIX

OF_DATA = ("data_residence", "dataset_path", "train_samples", "init", "model_layers")
"""Settings that a model's question takes besides those of a count."""


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


def find_model(named: str) -> dict[str, str]:
    """Return the settings that name a model: of a preset, its name on the hub, a config.json, or a folder with one.

    Raises:
        UserError: it is none of them.
    """
    path = Path(named)
    if path.name == "config.json" and path.is_file():
        path = path.parent
    if (path / "config.json").is_file():
        return {"model_path": str(path), "task": "text"}
    presets = {hub.lower(): name for name, hub in (TEXT_HUB_IDS | HUB_IDS).items()}
    name = presets.get(named.lower(), named)
    if name in {*SHAPES, *VIT, *NETWORKS}:
        return {"model": name}
    near = difflib.get_close_matches(named.lower(), [*SHAPES, *VIT, *NETWORKS, *presets], n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise UserError(
        f"{named}: expected a preset ({', '.join((*SHAPES, *VIT, *NETWORKS))}), its name on the hub, a config.json "
        f"or a folder with one{hint} [SL-predict-model]"
    )


def ask_of_model(named: str, gpus: int, settings: Sequence[str], per_node: int = 0) -> list[Question]:
    """Return one question per strategy, and one per number of dimensions of nd.

    Settings that are not given have their defaults; text has rows of TOKENS tokens.

    Args:
        per_node: GPUs of a node; 0 = 8, or all of fewer.

    Raises:
        UserError: an unknown model or setting, nodes that would not be full, or several GPUs for `single`.
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
    model, given = find_model(named), _read_settings(settings)
    is_text = "model_path" in model or model["model"] in SHAPES
    data = OF_TEXT if is_text else OF_IMAGES
    common = {**data, "micro_batch_size": "1", **model, **given}
    per_node = per_node or find_per_node(gpus)
    strategies = [given["strategy"]] if "strategy" in given else list(WHY)
    if gpus > 1:
        strategies = [name for name in strategies if name != "single"]
    elif len(strategies) > 1:
        strategies = ["single"]
    return [
        _build_question(
            name,
            {**common, **_name_layout(strategy, given), "strategy": strategy, **more},
            gpus,
            per_node,
            whole=False,
            typed=given,
        )
        for strategy in strategies
        for name, more in (_list_layouts(given) if strategy == "nd" and is_text else [(strategy, {})])
        if strategy != "nd" or is_text
    ]


def _list_layouts(given: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return (name, settings) of each number of dimensions of nd, or of the one that is given."""
    if given.keys() & {*DEGREES, "dimensions", "layout"}:
        return [("nd", {})]
    return [(f"nd {number}d", {"dimensions": number}) for number in DIMENSIONS]


def _name_layout(strategy: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that the trainer requires together with degrees of nd."""
    typed = strategy == "nd" and given.keys() & {*DEGREES} and "layout" not in given
    return {"layout": "given"} if typed else {}


def _read_settings(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected name=value [SL-set-no-value]")
        if name in SETTINGS and name not in (*COUNTED, *OF_DATA):
            raise UserError(
                f"--set {text}: memory does not depend on {name}; leave it out [SL-set-no-memory]"
            )
        if name not in SETTINGS:
            place = "that `python -m trainer.settings --schema` lists"
            allowed = name_allowed(name, sorted(SETTINGS), "memory depends on", place)
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
