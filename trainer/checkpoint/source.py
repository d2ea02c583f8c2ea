"""Find the checkpoint of another run that `resume_from` names; the other run is read and never written to."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab_spec.models.model_specs import has_batch_norm, hash_names
from stratlab_spec.run_directory import RunDirectory, read_line
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.old_names import take_new_names
from stratlab_spec.settings.rules import CLASS_NAMES_SHA256, continuation_problems, resolved_problems
from trainer.checkpoint.folder import MANIFEST, STEP, CheckpointFolder, Chosen, TrainingState

RESUMED_FROM = "resumed_from"
"""Key in `resolved` of config.json."""


@dataclass(frozen=True)
class SourceRun:
    """Another run, as named by `resume_from`."""

    folder: RunDirectory
    step: int | None
    """The requested checkpoint; None: the newest complete one."""
    config: Mapping[str, Any]
    """Its config.json."""

    @property
    def name(self) -> str:
        """Return the name as in a comparison: `demo/ddp`."""
        return f"{self.config['comparison']}/{self.config['run']}"


def open_source(config: Config) -> SourceRun:
    """Return the run that `resume_from` names, without reading checkpoints.

    Raises:
        ConfigError: no run with a checkpoint, outside of the results, this run itself, or another training.
    """

    def refuse(text: str) -> ConfigError:
        return ConfigError([f"TRAINER_RESUME_FROM={config.resume_from!r}: {text}"])

    root = Path(config.results).resolve()
    path = (root / config.resume_from).resolve()
    if not path.is_relative_to(root):
        raise refuse(f"{path} is not below TRAINER_RESULTS={config.results!r} [SL-resume-outside]")
    match = STEP.fullmatch(path.name)
    run = path.parent.parent if match else path
    folder = RunDirectory(run.parent.parent, run.parent.name, run.name)
    if folder.path == RunDirectory(root, config.comparison, config.run).path:
        raise refuse("is this run, which resumes its own checkpoints; remove the setting [SL-resume-own-run]")
    known = read_line(folder.config.read_bytes()) if folder.config.is_file() else {}
    if not (isinstance(known.get("config"), dict) and isinstance(known.get("resolved"), dict)):
        hint = "name a folder <comparison>/<run>, or a checkpoint in it"
        raise refuse(f"{folder.path} is not a run; {hint} [SL-resume-no-run]")
    known["config"] = take_new_names(known["config"])
    source = SourceRun(folder, int(match[1]) if match else None, known)
    steps = CheckpointFolder(folder).committed()
    if not steps or (source.step is not None and source.step not in steps):
        there = f"committed steps: {', '.join(map(str, steps))}" if steps else "the run has no checkpoints"
        raise refuse(f"this checkpoint is not committed; {there} [SL-resume-no-checkpoint]")
    problems = continuation_problems(known["config"], config)
    micro = known["config"].get("micro_batch_size")
    local = config.batch_norm == "local"  # otherwise `resolved` records the number of samples
    if local and has_batch_norm(config) and micro != config.micro_batch_size:
        problems.append(
            f"TRAINER_MICRO_BATCH_SIZE={config.micro_batch_size}: {config.model_name} has batch norm with statistics "
            f"of one micro-batch; resume with {micro} [SL-resume-micro-batch]"
        )
    if problems:
        raise ConfigError(problems)
    return source


def _is_at_beginning(config: Config) -> bool:
    """Return whether this run still has to resume the run in `resume_from`: it has no checkpoint of its own."""
    own = RunDirectory(config.results, config.comparison, config.run)
    return bool(config.resume_from) and not CheckpointFolder(own).committed()


def class_problems(config: Config, class_names: Sequence[str]) -> list[str]:
    """Return a problem if the run in `resume_from` had other classes or another order, which its outputs follow.

    Args:
        class_names: classes of this run's data set.
    """
    if not _is_at_beginning(config):
        return []
    source = open_source(config)
    if source.config["resolved"].get(CLASS_NAMES_SHA256) in (None, hash_names(class_names)):
        return []
    return [
        f"TRAINER_RESUME_FROM={config.resume_from!r}: {source.name} was trained with other classes than "
        f"{config.dataset_name} has, or in another order. Use its original data set. Or start a new training with "
        f"TRAINER_MODEL_PATH={source.folder.model} and TRAINER_INIT=pretrained, which maps classes by "
        "name [SL-resume-classes]"
    ]


def exhausted_problems(config: Config, steps: int) -> list[str]:
    """Return a problem if the run in `resume_from` leaves no steps; reads only the names of checkpoints.

    Args:
        steps: number of steps of this run's plan.
    """
    if not _is_at_beginning(config):
        return []
    own = RunDirectory(config.results, config.comparison, config.run).config
    known = read_line(own.read_bytes()) if own.is_file() else {}
    source = open_source(config)
    step = source.step if source.step is not None else CheckpointFolder(source.folder).committed()[-1]
    step = known.get("resolved", {}).get(RESUMED_FROM, {}).get("step", step)  # recorded by an earlier attempt
    return [_describe_exhausted(config, step, steps)] if step >= steps else []


def _describe_exhausted(config: Config, step: int, steps: int) -> str:
    return (
        f"TRAINER_RESUME_FROM={config.resume_from!r}: its checkpoint is at step {step}, this run has {steps} steps; "
        "raise TRAINER_STEPS or TRAINER_EPOCHS, or name an earlier checkpoint "
        "[SL-resume-exhausted]"
    )


def choose_origin(
    config: Config,
    resolved: Mapping[str, Any],
    steps: int,
    known: Mapping[str, Any] | None,
    find_problem: Callable[[Path], str | None],
) -> tuple[Chosen, dict[str, Any], list[str]]:
    """Return the checkpoint of another run to resume, after reading every byte of it.

    Args:
        resolved: resolved facts of this run.
        steps: number of steps of its plan.
        known: origin of an earlier attempt of this run; only this origin is accepted.
        find_problem: reads a checkpoint and returns its problem, or None.

    Returns:
        (checkpoint, {run, step, strategy, world_size, manifest_sha256} for config.json, a sentence for each newer
        broken checkpoint).

    Raises:
        ConfigError: no checkpoint is complete, the training differs, or no steps are left.
    """
    source = open_source(config)
    if problems := resolved_problems(source.config["resolved"], resolved, config.resume_from):
        raise ConfigError(problems)
    folder = CheckpointFolder(source.folder)
    asked = known["step"] if known else source.step
    skipped: list[str] = []
    for step in [asked] if asked is not None else reversed(folder.committed()):
        path = folder.step(step)
        if problem := find_problem(path):
            skipped.append(
                f"{source.name}: checkpoint of step {step} is broken: {problem} [SL-origin-broken]"
            )
            continue
        state = TrainingState.read(path)
        facts = {name: getattr(state, name) for name in ("step", "strategy", "world_size")}
        manifest = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()
        record = {"run": source.name, **facts, "manifest_sha256": manifest}
        if known and known != record:
            skipped.append(
                f"{path} differs from the checkpoint that this run resumed: {record}, was {known} [SL-origin-changed]"
            )
            continue
        if state.step >= steps:
            raise ConfigError([_describe_exhausted(config, state.step, steps)])
        # time, validations and best checkpoint belong to the other run; skipped steps belong to the training
        own: dict[str, Any] = {
            "train_time_s": 0.0,
            "validation": None,
            "best": None,
            "mlflow_run_id": None,
            "observed": [],
        }
        return Chosen(path, dataclasses.replace(state, **own)), record, skipped
    named = f"TRAINER_RESUME_FROM={config.resume_from!r}"
    raise ConfigError([f"{named}: no checkpoint is complete: {'; '.join(skipped)} [SL-resume-none-whole]"])
