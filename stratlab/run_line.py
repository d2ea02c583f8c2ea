"""Turn the line `stratlab run MODEL STRATEGY ...` into settings of charts.

`build_run_line` chooses settings that the user left open: processes, data, batch sizes, the name of the comparison. It
translates foreign names (foreign_settings.py) and collects a sentence for each decision. The verb then rehearses the
charts, renders scripts, or starts a sweep on a cluster, all with the same settings.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab import UserError
from stratlab.foreign_settings import (
    ACCUMULATION,
    NODES,
    PROCESSES,
    STRATEGY,
    Translated,
    name_strategy,
    translate_file,
    translate_setting,
)
from stratlab.run_settings import SETTINGS
from stratlab.wording import ask_nearest, name_allowed
from stratlab_spec.models.decoder_config import TEXT_HUB_IDS
from stratlab_spec.settings.config import MODELS_ELSEWHERE, SETTINGS_ELSEWHERE
from stratlab_spec.settings.fields import HUB_ID, MODELS, TEXT_DATASETS, TEXT_MODELS
from stratlab_spec.settings.wording import VARIABLE

CONFIG = "run.config."
ON_CPU = 2
"""Processes of a comparison on a machine without a GPU."""
GLOBAL_BATCH = 64
LARGEST_MICRO = {"image": 32, "text": 4}
"""Largest micro-batch that is chosen for a user who names none."""
ON_VOLUME = "/results/"
"""Start of paths on the results volume, as pods see it."""
DATA = {"image": "digits", "text": "arithmetic"}
"""Built-in data sets."""
PRETRAINED = "the model starts from its published weights; --set init=scratch starts from random ones"
NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
GPU_LIST_S = 10


@dataclass(frozen=True)
class RunRequest:
    """Hold the options of the verb; None, "" and () = left out."""

    model: str
    strategies: str = ""
    gpus: int | None = None
    nodes: int | None = None
    data: str = ""
    batch: int | None = None
    micro_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    comparison: str = ""
    settings: Sequence[str] = ()
    config: Path | None = None


@dataclass(frozen=True)
class RunLine:
    """Describe the runs of one line.

    Attributes:
        config: setting -> text, for `run.config`; null resets a chart's own value.
        paths: further settings of the charts, `run.env` and the like, as typed.
        processes: per node; None = the chart's own.
        notes: a sentence for each decision, and for each foreign name.
    """

    strategies: tuple[str, ...]
    config: Mapping[str, str]
    paths: tuple[str, ...]
    nodes: int | None
    processes: int | None
    notes: tuple[str, ...]

    @property
    def comparison(self) -> str:
        return self.config["comparison"]

    @property
    def settings(self) -> list[str]:
        """Return settings for helm; a comma in a value is escaped."""
        texts = {name: value.replace(",", "\\,") for name, value in self.config.items()}
        return [*(f"{CONFIG}{name}={text}" for name, text in texts.items()), *self.paths]


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine, 0 without a driver."""
    if not (program := shutil.which("nvidia-smi")):
        return 0
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=GPU_LIST_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def build_run_line(request: RunRequest, charts: Sequence[str], *, local_gpus: int | None) -> RunLine:
    """Build the runs of `request`.

    Args:
        charts: names of the strategies' charts.
        local_gpus: GPUs of this machine, None for a run elsewhere.

    Raises:
        UserError: a model, strategy, setting or number cannot be used.
    """
    given = translate_file(request.config) if request.config else Translated()
    ours, paths = _sort_settings(request.settings, given)
    parts = given.parts | ours
    notes = [f"{origin} became {what}" for origin, what in given.became.items()]
    if given.unused:
        notes.append(f"without a counterpart here, ignored: {', '.join(given.unused)}")
    strategies = _pick_strategies(request.strategies, parts.pop(STRATEGY, ""), charts, notes)
    nodes = request.nodes or _whole(parts.pop(NODES, ""), NODES)
    gpus = request.gpus or _whole(parts.pop(PROCESSES, ""), PROCESSES)
    world, processes = _divide(gpus, nodes or 1, strategies, local_gpus, notes)
    config = _name_model(request.model, notes)
    config |= _find_data(request.data, config, parts, notes)
    if config.get("model") in TEXT_HUB_IDS and (request.data or "lora" in strategies):
        config["init"] = "pretrained"
        notes.append(PRETRAINED)
    accumulation = _whole(parts.pop(ACCUMULATION, ""), ACCUMULATION)
    for name, number in {"epochs": request.epochs, "steps": request.steps}.items():
        if number is not None:
            config[name] = str(number)
    asked = {"global_batch_size": request.batch, "micro_batch_size": request.micro_batch}
    config |= {name: str(number) for name, number in asked.items() if number is not None}
    config |= {name: value for name, value in parts.items() if name not in config or name in ours}
    is_text = _is_text(config)
    config |= _size_batch(config, strategies, world, accumulation, is_text, notes)
    if "model_path" in config and any(name.startswith("llm-") for name in strategies):
        config["model"] = "null"  # these charts name a model
    config["comparison"] = request.comparison or config.get("comparison") or _name_comparison(config)
    return RunLine(strategies, config, tuple(paths), nodes, processes, tuple(notes))


def _sort_settings(settings: Sequence[str], given: Translated) -> tuple[dict[str, str], list[str]]:
    """Return the lab's settings by name, and the paths of charts; add foreign ones to `given`."""
    ours: dict[str, str] = {}
    paths: list[str] = []
    for text in settings:
        name, equals, value = text.partition("=")
        name = name.strip()
        plain = name.removeprefix(CONFIG)
        if not equals or not name:
            raise UserError(f"--set {text}: expected name=value, such as lr=0.001 [SL-run-set-form]")
        if plain in SETTINGS:
            ours[plain] = value
        elif name.startswith("run."):
            paths.append(text)
        elif (parts := translate_setting(name, value)) is not None:
            given.take(text, parts)
        elif instead := SETTINGS_ELSEWHERE.get(name):
            instead = VARIABLE.sub(lambda found: found[1].lower(), instead)
            raise UserError(f"--set {text}: {instead} [SL-run-set-elsewhere]")
        else:
            near = name_allowed(
                name, sorted(SETTINGS), "settings are", "in `python -m trainer.settings --schema`"
            )
            raise UserError(f"--set {text}: no such setting; {near} [SL-run-set-unknown]")
    return ours, paths


def _pick_strategies(typed: str, of_file: str, charts: Sequence[str], notes: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in typed.split(",") if name.strip()] or [of_file] * bool(of_file)
    if not names:
        raise UserError(
            f"which strategy? Name one of {', '.join(charts)}, or several with commas [SL-run-no-strategy]"
        )
    picked: list[str] = []
    for name in names:
        ours = name if name in charts else name_strategy(name)
        if ours not in charts:
            near = ask_nearest(name, charts)
            raise UserError(
                f"strategy {name}: expected one of {', '.join(charts)}{near and f'; {near}'} [SL-run-strategy]"
            )
        if ours != name:
            notes.append(f"strategy {name} is called {ours} here")
        if ours in picked:
            raise UserError(f"strategy {ours} is named twice [SL-run-strategy-twice]")
        picked.append(ours)
    if of_file and typed and picked != [of_file]:
        notes.append(f"the file's strategy {of_file} is not used: {typed} is named on the line")
    return tuple(picked)


def _divide(
    gpus: int | None, nodes: int, strategies: Sequence[str], local_gpus: int | None, notes: list[str]
) -> tuple[int | None, int | None]:
    """Return the world size and the processes of each node; None = the charts' own."""
    if gpus is None and local_gpus is not None:
        gpus = 1 if strategies == ("single",) else local_gpus or ON_CPU
        where = "one per GPU of this machine" if local_gpus else "on CPUs, because this machine has no GPU"
        notes.append(f"{gpus} processes, {where}" if gpus > 1 else "one process")
    if gpus is None:
        return None, None
    if "single" in strategies and gpus > 1:
        raise UserError(
            f"--gpus {gpus}: the strategy single has one process; compare it in a run of its own, or leave it out "
            "[SL-run-single]"
        )
    if gpus % nodes:
        raise UserError(f"--gpus {gpus}: cannot be divided by --nodes {nodes} [SL-run-nodes]")
    return gpus, gpus // nodes


def _whole(text: str, name: str) -> int | None:
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{name}={text}: expected a whole number from 1 [SL-run-whole-number]")
    return int(text)


def _name_model(model: str, notes: list[str]) -> dict[str, str]:
    """Return the settings of the model: a preset, a hub id, or a folder in Hugging Face format."""
    folder = Path(model).expanduser()
    if folder.name == "config.json" and folder.is_file():
        folder = folder.parent
    if (folder / "config.json").is_file():
        found = {"model_path": str(folder.resolve())}
        if _is_decoder(folder / "config.json"):
            found["task"] = "text"
        has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
        source = "the folder's weights" if has_weights else "random weights: the folder has none"
        notes.append(f"the model starts from {source}")
        return found | {"init": "pretrained" if has_weights else "scratch"}
    if model.startswith(ON_VOLUME) and not folder.exists():
        notes.append(
            "the model starts from the weights of a folder on the volume; a decoder needs --set task=text"
        )
        return {"model_path": model, "init": "pretrained"}
    if folder.is_dir():
        raise UserError(
            f"{model}: has no config.json; expected a folder in Hugging Face format [SL-run-model-folder]"
        )
    if model in MODELS:
        return {"model": model}
    if ours := MODELS_ELSEWHERE.get(model):
        notes.append(f"model {model} is called {ours} here")
        return {"model": ours}
    if re.fullmatch(HUB_ID, model):
        notes.append(PRETRAINED)
        return {"model": model, "init": "pretrained"}
    known = name_allowed(model, list(MODELS), "presets are", "in docs/models.md")
    raise UserError(
        f"model {model}: expected a preset, a hub id such as Qwen/Qwen2.5-0.5B, or a folder; {known} [SL-run-model]"
    )


def _is_decoder(file: Path) -> bool:
    try:
        content: Any = json.loads(file.read_text())
        names = content.get("architectures") or []
        return any("CausalLM" in str(name) or "LMHead" in str(name) for name in names)
    except (OSError, ValueError, AttributeError):
        return False


def _is_text(config: Mapping[str, str]) -> bool:
    return (
        config.get("task") == "text"
        or config.get("model") in TEXT_MODELS
        or config.get("dataset") in TEXT_DATASETS
    )


def _find_data(
    data: str, config: Mapping[str, str], parts: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    if data:
        return name_data(data)
    if parts.get("dataset") or parts.get("dataset_path"):
        return {}
    built_in = DATA["text" if _is_text({**config, **parts}) else "image"]
    notes.append(f"data: {built_in}, which is built in; --data PATH takes your own")
    return {"dataset": built_in}


def name_data(data: str) -> dict[str, str]:
    """Return the setting of data: a path here or on the results volume, or the name of a data set.

    Raises:
        UserError: a path that does not exist.
    """
    if (path := Path(data).expanduser()).exists():
        return {"dataset_path": str(path.resolve())}
    if data.startswith(ON_VOLUME):
        return {"dataset_path": data}
    if data.startswith(("/", "./", "../", "~")):
        raise UserError(f"--data {data}: no such file or folder [SL-run-no-data]")
    return {"dataset": data}


def _size_batch(
    config: Mapping[str, str],
    strategies: Sequence[str],
    world: int | None,
    accumulation: int | None,
    is_text: bool,
    notes: list[str],
) -> dict[str, str]:
    """Return batch sizes unless the user has set them, equal for all strategies.

    Layouts of several dimensions have charts with batch sizes of their own, and so has a cluster's.
    """
    layouts = [name for name in strategies if name.startswith("llm-")]
    if accumulation and (layouts or not world or "micro_batch_size" not in config):
        raise UserError(
            f"{ACCUMULATION} steps {accumulation}: need --gpus, a micro-batch and strategies with data parallelism "
            "only; use --batch instead [SL-run-accumulation]"
        )
    if not world or layouts:
        return {}
    micro = _whole(config.get("micro_batch_size", ""), "micro_batch_size")
    batch = _whole(config.get("global_batch_size", ""), "global_batch_size")
    if accumulation and micro:
        if batch not in (None, micro * world * accumulation):
            raise UserError(
                f"global batch {batch}: micro-batch {micro} x {world} processes x accumulation {accumulation} is "
                f"{micro * world * accumulation}; leave one of them out [SL-run-batch-conflict]"
            )
        batch = micro * world * accumulation
        notes.append(
            f"global batch {batch}: micro-batch {micro} x {world} processes x accumulation {accumulation}"
        )
    if batch is None:
        step = (micro or 1) * world
        batch = step * math.ceil(GLOBAL_BATCH / step)
        notes.append(f"global batch {batch}; --batch sets it")
    if batch % world:
        least = math.ceil(batch / world) * world
        raise UserError(
            f"--batch {batch}: cannot be divided among {world} processes; use {least} [SL-run-batch]"
        )
    if micro is None:
        share, most = batch // world, LARGEST_MICRO["text" if is_text else "image"]
        micro = max(size for size in range(1, min(share, most) + 1) if share % size == 0)
        notes.append(f"micro-batch {micro}; --micro-batch sets it")
    return {"global_batch_size": str(batch), "micro_batch_size": str(micro)}


def _name_comparison(config: Mapping[str, str]) -> str:
    """Return `<model>-<data>` in small letters, without the ending of a file of data."""
    model = Path(config.get("model_path") or config["model"]).name
    path = config.get("dataset_path")
    data = Path(path).name.partition(".")[0] if path else Path(config.get("dataset", "data")).name
    return NO_NAME.sub("-", f"{model}-{data}").strip("-._").lower() or "runs"
