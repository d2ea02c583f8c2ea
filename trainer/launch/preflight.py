"""Everything that can be checked before torch is imported, let alone a GPU used; all broken rules at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stratlab_spec.layout.mesh_rules import broken_rules
from stratlab_spec.memory.fit import Choice, choose_on_device, fit_problems, largest_device_bytes
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.models.model_specs import (
    default_image_size,
    image_size_problem,
    lone_value_problem,
    model_problems,
)
from stratlab_spec.models.teacher import teacher_problems
from stratlab_spec.plan import Plan, resolve_plan
from stratlab_spec.registry import adapter_problems
from stratlab_spec.run_directory import RunDirectory, read_line
from stratlab_spec.schedule import build_schedule, plan_problems
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.faults import rank_problems
from stratlab_spec.settings.fields import MODELS
from stratlab_spec.settings.library_rules import (
    broken_deepspeed_rules,
    compile_problems,
    has_gpu,
    placement_problems,
)
from stratlab_spec.settings.old_names import take_new_names
from stratlab_spec.settings.rules import snapshot_problems
from stratlab_spec.settings.wording import name_removal
from trainer.checkpoint.folder import CheckpointFolder
from trainer.checkpoint.source import class_problems, exhausted_problems, open_source
from trainer.data import open_data
from trainer.data.files import check_classes, check_held_out, describe_head, evaluated, scale_problem
from trainer.data.text.text_source import check_given
from trainer.data.text.token_cache import DONE, cache_folder
from trainer.data.text.token_rows import read_index, text_problems
from trainer.launch.options import count_problem
from trainer.launch.rendezvous import refuse_finished
from trainer.prepare.preparation import ensure_cache

log = logging.getLogger("trainer")

BUILT_IN_IMAGES = ("digits", "synthetic")
SERVER = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")  # as the charts' schema has it
LOGIN = re.compile(r"[^/?#]*//[^/?#]*@")
OTHER_NAME = "choose another name (TRAINER_RUN)"
MAY_CHANGE = ("image", "accelerator", "wait_s", "grace_s", "max_attempts", "deadline_s")


@dataclass(frozen=True)
class Pods:
    """The number of processes that the operator requests: PET_NNODES ("2" or "2:2") x PET_NPROC_PER_NODE."""

    nodes: int
    processes_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class CheckedRun:
    """How an accepted run starts."""

    plan: Plan
    choice: Choice | None = None
    """Of strategy nd: its layout, and the layouts left out."""
    device_bytes: int | None = None


def read_pods(env: Mapping[str, str]) -> Pods:
    """Return pods and processes as the training operator injects them; 1 x 1 without an operator.

    Raises:
        ConfigError: for an elastic range or a count that is not a number.
    """
    problems: list[str] = []
    nodes = env.get("PET_NNODES", "1").split(":")
    if len(set(nodes)) > 1:
        problems.append(
            f"PET_NNODES={env['PET_NNODES']}: the size of a run is fixed, expected min = max [SL-nodes-elastic]"
        )
    per_node = env.get("PET_NPROC_PER_NODE", "1")
    counts = (("PET_NNODES", nodes[0]), ("PET_NPROC_PER_NODE", per_node))
    problems += filter(None, (count_problem(name, value) for name, value in counts))
    refuse(problems)
    return Pods(int(nodes[0]), int(per_node))


def refuse(problems: Collection[str]) -> None:
    """Raise ConfigError if there are problems."""
    if problems:
        raise ConfigError([*problems])


def check(
    config: Config,
    world_size: int,
    env: Mapping[str, str],
    *,
    replaces: bool = False,
    makes_caches: bool = True,
    opens_pictures: bool = True,
    tell: Callable[[str], None] = lambda sentence: None,
) -> CheckedRun | None:
    """Return how this run starts; None if it does not train, or if its token cache is missing and not built.

    Args:
        replaces: a run of this name that is there goes before this one starts.
        makes_caches: a token cache that is not there is made; else what depends on it is not checked.
        opens_pictures: those that are held out are opened; else they have been for another run.
        tell: receives how a text data set without a token cache is read.

    Raises:
        ConfigError: naming every setting that does not fit.
        DataMissing: no data set, or images that cannot be decoded.
    """
    if config.mode == "check":  # the check itself names missing parts
        return None
    if not replaces:
        refuse_finished(config, RunDirectory(config.results, config.comparison, config.run), env)
    if config.mode == "evaluate":
        config = evaluated(config)
    per_node = read_pods(env).processes_per_node
    problems = adapter_problems(config) + broken_rules(config, world_size, per_node) + model_problems(config)
    if config.is_text:  # of images with their classes and channels, below
        problems += teacher_problems(config)
    problems += _tracking_problems(env)
    problems += rank_problems(config.fault, world_size)
    problems += _fresh_problems(config) if replaces else _folder_problems(config, world_size, env)
    problems += compile_problems(config, env, gpu=has_gpu())
    problems += snapshot_problems(config, gpu=has_gpu())
    choice = None
    device_bytes = largest_device_bytes()
    if config.is_text:
        problems += text_problems(config)
        problems += broken_deepspeed_rules(config, world_size, per_node, env=env, gpu=has_gpu())
        refuse(problems)
        if config.strategy == "nd":
            choice = choose_on_device(config, world_size, read_shape(config), device_bytes)
        layout = choice.layout if choice else None
        refuse([*fit_problems(config, world_size, read_shape(config), device_bytes, layout)])
        samples = _check_rows(config, makes_caches, tell)
    else:
        samples = _check_images(config, world_size, env, problems, opens_pictures)
    if config.mode != "train" or samples is None:
        return None
    return CheckedRun(
        resolve_plan(config, world_size, per_node, samples, device_bytes, choice), choice, device_bytes
    )


def check_elsewhere(config: Config, pods: Pods) -> None:
    """Check a run for another machine: everything except its data, folders, models and devices.

    Raises:
        ConfigError: naming every setting that does not fit.
        DataMissing: built-in data cannot be read here.
    """
    if config.mode != "train":
        return
    ours = not config.model_path and "/" not in config.model
    problems = adapter_problems(config)
    if ours or config.strategy != "nd":
        problems += broken_rules(config, pods.world_size, pods.processes_per_node)
    if ours:
        problems += model_problems(config)
    if config.teacher in MODELS:  # else of a volume, or of the hub
        problems += teacher_problems(config)
    problems += placement_problems(config, pods.world_size, pods.processes_per_node)
    samples = None
    if not config.is_text and ours:
        image_size = config.image_size or default_image_size(config)
        size_problem = image_size_problem(config, image_size)
        problems += filter(None, (lone_value_problem(config, pods.world_size), size_problem))
        if not size_problem and config.dataset in BUILT_IN_IMAGES and not config.dataset_path:
            data = open_data(config, image_size)
            samples, scale = len(data.train), scale_problem(config, data.source_edge, image_size)
            problems += [scale] if scale else []
    if samples is not None or config.steps:
        problems += plan_problems(config, samples)
    refuse(problems)


def _check_rows(config: Config, makes_caches: bool, tell: Callable[[str], None]) -> int | None:
    """Training samples of a language model's data; None where its token cache is missing and not made."""
    if not makes_caches and read_index(cache_folder(config)) is None:
        if config.dataset_path:  # here, because reading it takes no longer than in the run
            for sentence in check_given(config):
                tell(f"{config.dataset_setting}: {sentence}")
        return None
    samples = ensure_cache(config, partial(print, flush=True))
    refuse(_plan_problems(config, samples))
    return samples


def _plan_problems(config: Config, train_samples: int, before: Sequence[str] = ()) -> list[str]:
    """Return the problems of the run's length, including a run that has no steps left.

    Args:
        before: problems already known; one may be that `resume_from` names a missing run.
    """
    problems = plan_problems(config, train_samples)
    if before or problems or config.mode != "train":
        return problems
    return exhausted_problems(config, build_schedule(config, train_samples).steps)


def _check_images(
    config: Config, world_size: int, env: Mapping[str, str], problems: list[str], opens: bool
) -> int:
    """Return the training samples of an image model's data."""
    per_node = read_pods(env).processes_per_node
    image_size = config.image_size or default_image_size(config)
    size_problem = image_size_problem(config, image_size)
    problems += filter(None, (size_problem, lone_value_problem(config, world_size)))
    try:
        data = open_data(config, image_size if not size_problem else default_image_size(config))
    except ConfigError as failure:
        raise ConfigError(problems + failure.problems) from None
    if not size_problem and (scale := scale_problem(config, data.source_edge, image_size)):
        problems.append(scale)
    problems += teacher_problems(config, data.class_names, data.channels)
    problems += _plan_problems(config, len(data.train), problems)
    problems += [] if problems or config.mode != "train" else class_problems(config, data.class_names)
    problems += broken_deepspeed_rules(config, world_size, per_node, env=env, gpu=has_gpu())
    refuse(problems)
    if config.mode == "evaluate":
        check_classes(config, data)
    prepared = bool(config.dataset_path) and Path(config.dataset_path, DONE).is_file()
    odd = check_held_out(data, config.mode == "evaluate", prepared) if opens else []
    for note in (*data.notes, *odd, describe_head(config, data.class_names)):
        if note:
            log.info(note)
    return len(data.train)


def _tracking_problems(env: Mapping[str, str]) -> list[str]:
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if LOGIN.match(uri):  # not shown: it holds a password
        return [
            "MLFLOW_TRACKING_URI: holds a login; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead "
            "[SL-tracking-login]"
        ]
    if uri and not SERVER.fullmatch(uri):
        return [
            f"MLFLOW_TRACKING_URI={uri!r}: expected the address of a server, http://host:port [SL-tracking-uri]"
        ]
    return []


def _folder_problems(config: Config, world_size: int, env: Mapping[str, str]) -> list[str]:
    folder = RunDirectory(config.results, config.comparison, config.run)
    removal = f"{OTHER_NAME}, or remove the folder ({name_removal(folder.path, env)})"
    if config.mode == "evaluate":
        return _evaluation_problems(config, folder)
    if os.path.lexists(folder.path) and not folder.path.is_dir():
        return [f"{folder.path}: expected a folder; {OTHER_NAME}, or remove this file [SL-run-not-a-folder]"]
    if strangers := folder.find_strangers():
        return [
            f"{folder.path}: holds {strangers[0]}, but no files of a run; {OTHER_NAME} [SL-run-strangers]"
        ]
    has_checkpoints = bool(CheckpointFolder(folder).committed())
    if folder.config.exists():
        before = read_line(folder.config.read_bytes())
        if not (isinstance(before.get("config"), dict) and isinstance(before.get("resolved"), dict)):
            return [
                f"{folder.config}: was not written by a run, so its settings cannot be compared; "
                f"{removal} [SL-run-config-odd]"
            ]
        goes_on = config.resume == "auto" and has_checkpoints
        if changed := _changed_settings(before, config, world_size, goes_on):
            resize = ""
            if not goes_on and any(text.startswith("processes=") for text in changed):
                resize = (
                    ", or start it with as many processes as before: another number can only resume from a "
                    "checkpoint (TRAINER_CHECKPOINT_EVERY or _MINUTES above 0, TRAINER_RESUME='auto')"
                )
            return [
                f"{folder.path}: an attempt of this run was started with other settings: {', '.join(changed)}; "
                f"{removal}{resize} [SL-run-settings-changed]"
            ]
    elif folder.read_attempts():
        return [
            f"{folder.config}: is missing, but this run has attempts, so their settings cannot be compared; "
            f"{removal} [SL-run-config-missing]"
        ]
    # with a checkpoint of its own, the run that it began with is not needed any more
    return _writable_problems(config) if has_checkpoints else _fresh_problems(config)


def _fresh_problems(config: Config) -> list[str]:
    """Return the problems that keep a run without its own checkpoints from starting."""
    problems = []
    if config.resume_from:
        try:
            open_source(config)
        except ConfigError as failure:
            problems = failure.problems
    return problems + _writable_problems(config)


def _writable_problems(config: Config) -> list[str]:
    parent = RunDirectory(config.results, config.comparison, config.run).path
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not os.access(parent, os.W_OK | os.X_OK):
        return [
            f"TRAINER_RESULTS={config.results!r}: {parent} is not writable for user {os.getuid()} "
            "[SL-results-unwritable]"
        ]
    return []


def _evaluation_problems(config: Config, folder: RunDirectory) -> list[str]:
    """Return the problems of `mode: evaluate`: missing weights, or no place for its numbers."""
    problems = _writable_problems(config)
    if config.model_path == str(folder.model) and not (folder.model / "config.json").is_file():
        problems.append(
            f"TRAINER_MODE='evaluate': {folder.model} is missing (a run leaves its weights there at its end if "
            "it has a checkpoint, as with TRAINER_CHECKPOINT_EVERY above 0); name another model in Hugging Face "
            "format in TRAINER_MODEL_PATH [SL-evaluate-no-weights]"
        )
    return problems


def _changed_settings(before: dict[str, Any], config: Config, world_size: int, goes_on: bool) -> list[str]:
    """Return the settings that differ from an earlier attempt's config.json, without those that may change to fix a
    fault.

    Args:
        goes_on: from a checkpoint, which every strategy also reads with another number of processes.
    """
    then = {**take_new_names(before["config"]), "processes": before["resolved"].get("world_size")}
    now = {**config.model_dump(), "processes": world_size}
    may_change = (*MAY_CHANGE, "processes") if goes_on else MAY_CHANGE
    names = [name for name in now if name not in may_change and then.get(name) != now[name]]
    return [f"{name}={now[name]!r} (was {then.get(name)!r})" for name in names]
