"""How long to train, in which pieces and with which learning rate: plain functions of the settings and the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratlab_spec.settings.config import Config
from stratlab_spec.settings.values import step_problems


@dataclass(frozen=True)
class Schedule:
    """The steps of a run, counted from 1."""

    steps: int
    evaluate_every: int
    profile_first: int
    """First recorded step; 0 = no profile."""


def count_micro_batches(global_batch_size: int, micro_batch_size: int, dp: int) -> int:
    """Return the micro-batches of a step on each rank. `dp`: ranks that see different samples."""
    return global_batch_size // (micro_batch_size * dp)


def build_schedule(config: Config, train_samples: int) -> Schedule:
    """Return steps from epochs or given; the profile moves forward in a run too short for its default place."""
    per_epoch = max(1, train_samples // config.global_batch_size)
    steps = config.steps or max(1, config.epochs * train_samples // config.global_batch_size)
    first = config.profile_first_step if config.profile_steps else 0
    if first and first + config.profile_steps - 1 > steps:
        first = steps - config.profile_steps + 1
        if first <= config.profile_warmup:
            first = 0
    return Schedule(steps, config.evaluate_every or per_epoch, first)


def profile_first_from(config: Config, plan: Schedule, done_steps: int, recorded: bool) -> int:
    """Return the first recorded step of an attempt that resumes after `done_steps`; 0 = no profile.

    Args:
        recorded: an earlier attempt's traces are there.
    """
    if not done_steps or not plan.profile_first:
        return plan.profile_first
    first = max(plan.profile_first, done_steps + 1 + config.profile_warmup)
    return 0 if recorded or first + config.profile_steps - 1 > plan.steps else first


def plan_problems(config: Config, train_samples: int | None) -> list[str]:
    """Return settings that do not fit the number of training samples; None = not known, `steps` are set."""
    epoch = ""
    if train_samples is None:
        assert config.steps
        train_samples = config.global_batch_size
    else:
        epoch = f"; an epoch has {_count(train_samples // config.global_batch_size)}"
    if train_samples < config.global_batch_size:
        return [
            f"TRAINER_GLOBAL_BATCH_SIZE={config.global_batch_size}: there are only {train_samples} training samples "
            "[SL-batch-above-samples]"
        ]
    if config.mode == "evaluate":
        return []
    plan = build_schedule(config, train_samples)
    problems = [*step_problems(config.fault, plan.steps)]
    asked, most = config.profile_first_step, plan.steps - config.profile_warmup
    if config.profile_steps > max(most, 0):
        problems.append(
            f"TRAINER_PROFILE_STEPS={config.profile_steps}: the run has {_count(plan.steps)}, of which "
            f"{_count(max(most, 0))} can be recorded after TRAINER_PROFILE_WARMUP={config.profile_warmup}; train "
            f"longer (TRAINER_EPOCHS or TRAINER_STEPS{epoch}), "
            "record fewer, or switch the profile off with TRAINER_PROFILE_STEPS=0 [SL-profile-steps]"
        )
    elif (
        config.profile_steps
        and "profile_first_step" in config.model_fields_set
        and plan.profile_first != asked
    ):
        last = plan.steps - config.profile_steps + 1
        problems.append(
            f"TRAINER_PROFILE_FIRST_STEP={asked}: the run has {_count(plan.steps)}, "
            f"expected at most {last} (or no profile, by TRAINER_PROFILE_STEPS=0) [SL-profile-first-step]"
        )
    if config.warmup_steps >= plan.steps:
        problems.append(
            f"TRAINER_WARMUP_STEPS={config.warmup_steps}: must be below the {plan.steps} steps "
            "[SL-warmup-above-run]"
        )
    return problems


def _count(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def learning_rate(config: Config, step: int, steps: int) -> float:
    """Return the rate of `step` (from 1): linear warm-up to `lr`, then constant, or down to 0 at the end."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.lr_schedule == "constant":
        return config.lr
    done = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.lr_schedule == "linear":
        return config.lr * (1 - done)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))
