"""Charts with their values, a pod's environment, or a model with a number of GPUs, become questions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratlab import UserError
from stratlab.helm import find_helm, read_chart_name, render_chart
from stratlab.predict.counting import COUNTED, OF_IMAGES, OF_TEXT
from stratlab.predict.remedies import DEGREES, DIMENSIONS, WHY, find_per_node
from stratlab.run_settings import SETTINGS, find_problem
from stratlab.wording import name_allowed
from stratlab_spec.memory.profiles import Question
from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.models.decoder_config import SHAPES, TEXT_HUB_IDS, parse_json
from stratlab_spec.models.decoder_json import shape_of_json, text_part
from stratlab_spec.models.model_specs import HUB_IDS, VIT
from stratlab_spec.registry import NETWORKS
from stratlab_spec.settings.config import PREFIX, ConfigError

OF_DATA = ("data_residence", "dataset_path", "train_samples", "init", "model_layers")
"""Settings that a model's question takes besides those of a count."""
OF_ROWS = ("seq_len", "packing")
"""Settings without an effect on images."""
NAMING = ("model", "model_path")
OF_CHARTS = "run.config."
"""Before a setting's name in a chart."""
JSON, QUANTIZATION = "config.json", "quantization_config"
IMAGE_KEYS = {"num_channels", "image_size", "num_classes", "stratlab_model"}
"""In a config.json of an image model of transformers, timm or stratlab."""
PRESETS = (*SHAPES, *VIT, *NETWORKS)
HUB = TEXT_HUB_IDS | HUB_IDS
VARIANTS = {"meta", "base", "pt", "it", "instruct", "chat", "thinking", "2507", "in21k"}
"""Words of names on the hub that do not tell sizes: as Qwen2.5-3B-Instruct, Qwen3-4B-Base, gemma-2-2b-it. Versions tell
them: Mistral-7B-v0.1 has another vocabulary than v0.3."""


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


@dataclass(frozen=True)
class FoundModel:
    """A model that a user has named.

    Attributes:
        settings: that name it.
        shape: None = an image model.
        origin: as of a Question.
    """

    settings: Mapping[str, str]
    shape: DecoderShape | None
    origin: str = ""


def find_model(named: str) -> FoundModel:
    """Find a preset, by its name or a name on the hub, or read a config.json or a folder with one.

    Raises:
        UserError: it is none of them, or stratlab does not train it.
    """
    path = Path(named)
    try:
        folder = path.parent if path.name == JSON and path.is_file() else path
        if (folder / JSON).is_file():
            return _read_folder(folder.absolute())
        is_folder = path.is_dir()
    except OSError:  # longer than a file's name may be
        is_folder = False
    if preset := _find_preset(named):
        hub = HUB.get(preset, preset)
        same = named.lower() in (preset, hub.lower())
        origin = "" if same else f"{named}: has the sizes of the preset {preset} ({hub}), which answers"
        return FoundModel({"model": preset}, SHAPES.get(preset), origin)
    if is_folder:
        raise UserError(f"{named}: the folder has no {JSON} [SL-predict-no-json]")
    near = difflib.get_close_matches(named.lower(), [*PRESETS, *map(str.lower, HUB.values())], n=3)
    hint = f"; similar: {', '.join(near)}" if near else ""
    raise UserError(
        f"{named}: no preset (docs/models.md), no name of one on the hub, and no {JSON} or folder with one. Download "
        f"the model's {JSON} and give its path{hint} [SL-predict-model]"
    )


def _find_preset(named: str) -> str:
    """Return the preset of this name, or the one whose published variants include it; "" without one."""
    if named.lower() in PRESETS:
        return named.lower()
    maker, _, name = named.lower().rpartition("/")
    for preset, hub in HUB.items():
        owner, _, published = hub.lower().partition("/")
        if maker in ("", owner) and _list_words(name) == _list_words(published):
            return preset
    return ""


def _list_words(name: str) -> list[str]:
    """Return the words of a name on the hub that tell sizes; the others name variants of equal sizes."""
    return [word for word in name.split("-") if word not in VARIANTS]


def _read_folder(folder: Path) -> FoundModel:
    """Read the shape of a language model.

    Raises:
        UserError: the file cannot be read, or is of a model that stratlab does not train.
    """
    try:
        content = parse_json((folder / JSON).read_bytes(), str(folder))
        if "vocab_size" not in text_part(content) and IMAGE_KEYS & content.keys():
            raise UserError(
                f"{folder}: {JSON} of an image model, which is not read; name a preset: {', '.join((*VIT, *NETWORKS))} "
                "[SL-predict-image-json]"
            )
        if content.get(QUANTIZATION) or text_part(content).get(QUANTIZATION):
            raise UserError(
                f"{folder}: {JSON} has {QUANTIZATION}, and quantized weights are not trained; remove it for weights of "
                "16 or 32 bits [SL-predict-quantized]"
            )
        shape = shape_of_json(content, str(folder))
    except ConfigError as failure:
        raise UserError("\n".join(failure.problems)) from None
    except OSError as failure:
        raise UserError(f"{folder}: {JSON}: {failure.strerror} [SL-predict-json-unreadable]") from None
    return FoundModel({"model_path": str(folder), "task": "text"}, shape, f"sizes from {folder / JSON}")


def ask_of_model(named: str, gpus: int, settings: Sequence[str], per_node: int = 0) -> list[Question]:
    """Return one question per strategy, and one per number of dimensions of nd.

    Settings that are not given have their defaults; text has rows of 2,048 tokens, or of as many as the model supports.

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
    found, given = find_model(named), _read_settings(settings)
    data, shape = dict(OF_IMAGES), found.shape
    if shape:
        data = OF_TEXT | {"seq_len": str(min(int(OF_TEXT["seq_len"]), shape.max_positions))}
    elif idle := [name for name in OF_ROWS if name in given]:
        raise UserError(f"--set {idle[0]}: images have no rows of tokens; leave it out [SL-set-of-text]")
    if twice := [name for name in NAMING if name in given]:
        raise UserError(f"--set {twice[0]}: the model is {named}; leave it out [SL-set-model]")
    common = {**data, "micro_batch_size": "1", **found.settings, **given}
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
            origin=found.origin,
        )
        for strategy in strategies
        for name, more in (_list_layouts(given) if strategy == "nd" and shape else [(strategy, {})])
        if strategy != "nd" or shape or "strategy" in given
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
    found, others = split_settings(settings)
    for name, value in others.items():
        raise UserError(
            f"--set {name}={value}: memory does not depend on {name}; leave it out [SL-set-no-memory]"
        )
    return found


def split_settings(settings: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return settings on which memory depends, and others.

    Raises:
        UserError: an unknown setting, or a value that it cannot have.
    """
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for text in settings:
        name, equals, value = text.removeprefix(OF_CHARTS).partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected name=value [SL-set-no-value]")
        if name not in SETTINGS:
            place = "that `python -m trainer.settings --schema` lists"
            allowed = name_allowed(name, sorted(SETTINGS), "memory depends on", place)
            raise UserError(f"--set {text}: {allowed} [SL-set-unknown]")
        if problem := find_problem(name, value):
            raise UserError(f"--set {text}: {problem} [SL-set-value]")
        found[name not in (*COUNTED, *OF_DATA)][name] = value
    return found


def _build_question(
    name: str,
    settings: Mapping[str, str],
    ranks: int,
    per_node: int,
    whole: bool,
    typed: Iterable[str] = (),
    origin: str = "",
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
        origin=origin,
    )


def _read_number(settings: Mapping[str, str], name: str) -> int:
    text = settings.get(name, str(SETTINGS[name]["default"]))
    if problem := find_problem(name, text):
        raise UserError(f"{name}={text}: {problem} [SL-batch-value]")
    return int(text)
