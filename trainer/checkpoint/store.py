"""Decide when the run is saved, and resume it; every rank calls the same functions at the same steps.

The loop waits while a snapshot is copied into host memory, and for the previous checkpoint if that is still being
written (trainer/checkpoint/writing.py). So there is one copy of the state at a time, and the speed of the volume does
not change which steps have a checkpoint.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch.profiler import record_function

from stratlab_spec.exit_codes import StorageFull
from stratlab_spec.settings.config import ConfigError
from stratlab_spec.settings.wording import name_again, spell
from trainer.checkpoint.attempt import Attempt
from trainer.checkpoint.folder import CheckpointFolder, TrainingState, hash_config
from trainer.checkpoint.writing import CheckpointWriter, Taken, WriteOutcome, load_random_state, random_state
from trainer.engine import Engine
from trainer.measuring.held_tensors import GIB
from trainer.metrics.tracking import Recorder
from trainer.models.batch_norm import average_running_statistics
from trainer.run import Run

Result = TypeVar("Result")
NICENESS = 10
"""Niceness of the writing thread: the training thread goes first if processors are scarce."""


def run_in_background(work: Callable[[], Result], device: torch.device | None = None) -> Future[Result]:
    """Start `work` immediately in a thread of its own, next to the training thread.

    Args:
        device: device of this process, for libraries that use the current device; None: a CPU.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            thread = threading.get_native_id()  # on Linux, a priority applies to one thread only
            if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:  # only root may raise a priority
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own current device
            future.set_result(work())
        except BaseException as failure:
            future.set_exception(failure)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


SHARE = 0.5
"""Share of the grace period that a checkpoint may use; the step before it needs time as well."""
MARGIN_S = 15
ROUND_TO_S = 30


def find_grace_problem(checkpoint_s: float, grace_s: int) -> str | None:
    """Return which setting to change if a checkpoint of `checkpoint_s` is too long for a grace period of `grace_s`.

    The grace period belongs to the release and cannot change during the run; the duration is known only afterwards.
    """
    ranks_s = grace_s - min(MARGIN_S, grace_s / 3)
    if checkpoint_s <= SHARE * ranks_s:
        return None
    wish = math.ceil((checkpoint_s / SHARE + MARGIN_S) / ROUND_TO_S) * ROUND_TO_S
    return (
        f"the last checkpoint took {checkpoint_s:.0f} s, but a stop leaves {ranks_s:.0f} s of "
        f"TRAINER_GRACE_S={grace_s}: to keep all steps, {name_again(os.environ)} with TRAINER_GRACE_S={wish} "
        "and the same name, which resumes the run [SL-grace-short]"
    )


LABEL = "## Checkpoint ##"

log = logging.getLogger("trainer")


class Checkpoints:
    """The checkpoints of one attempt.

    Args:
        run: its last step is saved if the run keeps checkpoints.
        attempt: with the checkpoint that it resumes.
        group: process group of all ranks for the writing thread (`open_disk_group`).
    """

    def __init__(self, run: Run, engine: Engine, recorder: Recorder, attempt: Attempt, group: Any) -> None:
        self._run = run
        self._config = run.config
        self._steps = run.plan.steps
        self._world = run.world
        self._engine = engine
        self._recorder = recorder
        self._attempt = attempt
        self._folder = CheckpointFolder(run.folder)
        self._writer = CheckpointWriter(self._folder, group, run.world.rank, run.config.checkpoint_keep)
        self._start = start = attempt.chosen.state if attempt.chosen else None
        self._began = time.monotonic()
        self.validation = start.validation if start else None
        """The newest validation, equal on every rank: step, and `Evaluation.measures`."""
        self.best = start.best if start else None
        """The validation of the best checkpoint, including the checkpoint in progress."""
        self._best_before = self.best
        self._committed = attempt.from_step
        """Step of the newest checkpoint, equal on every rank; 0 = none."""
        self._grace_reported = False
        self._missed = 0
        """Number of consecutive checkpoints that did not fit, equal on every rank."""
        self._writing: Future[WriteOutcome] | None = None
        self._newest = 0
        """The last step with a snapshot in this attempt."""
        self._is_reported = True
        self._fails = False
        """Whether the writing thread found that the run cannot continue."""
        self._taken_at = self._began
        self._stall_s, self._staging_bytes = 0.0, 0

    def load(self) -> None:
        """Restore engine, random generators and counters from the chosen checkpoint; collective.

        Raises:
            ConfigError: this strategy or this world size cannot resume it.
        """
        for sentence in self._attempt.skipped:
            self._recorder.record("event", 0, name="checkpoint skipped", text=sentence)
        if self._attempt.chosen is None:
            return
        path, state = self._attempt.chosen.path, self._attempt.chosen.state
        if state.strategy != self._config.strategy and not self._attempt.is_moved:
            saved, own = state.strategy, self._config.strategy
            problem = f"{path}: was saved by strategy {saved}, this run has {own} [SL-checkpoint-strategy]"
            raise ConfigError([problem])
        self._engine.load(path / "engine")
        load_random_state(path, self._world.rank, self._config.seed, state.step)
        self._recorder.skipped_steps = state.skipped_steps
        if state.step >= self._steps and state.observed:  # no remaining step will measure anything
            seen, observed = state.observed[self._world.rank % len(state.observed)], self._engine.observed
            observed.bytes_held, observed.dtypes = seen["bytes_held"], seen["dtypes"]
        self._began = time.monotonic()

    def train_time_s(self) -> float:
        """Return the seconds of training so far, including the counted steps of earlier attempts."""
        return time.monotonic() - self._began + (self._start.train_time_s if self._start else 0.0)

    def numbers(self) -> dict[str, Any]:
        """Return the final results for summary.json; on rank 0, after the last step."""
        assert self.validation is not None, "a run ends with a validation"
        return {
            "train_loss": self._train_loss(),
            **{f"validation_{name}": value for name, value in self.validation.items() if name != "step"},
            "skipped_steps": self._recorder.skipped_steps,
            "train_time_s": self.train_time_s(),
        }

    @property
    def is_kept(self) -> bool:
        """Return whether the run ends with a checkpoint and weights: by its settings, or because it is long enough."""
        return bool(self._config.checkpoint_every or self._start or self._newest)

    def owes_validation(self) -> bool:
        """Return whether the run was stopped after the step that it resumes, but before that step's validation."""
        step = self._attempt.from_step
        if not step or (step % self._run.plan.evaluate_every and step != self._steps):
            return False
        return self.validation is None or self.validation["step"] != step

    def after_step(self, step: int, asked: bool = False) -> None:
        """Take a snapshot if it is due; collective.

        Args:
            asked: whether the ranks agreed on a snapshot, because `is_wanted` was true on one of them.

        Raises:
            StorageFull: on every rank, if the last two checkpoints did not fit.
        """
        self._look()
        if asked:
            self.finish()
        every = self._config.checkpoint_every
        by_step = step % every == 0 if every else asked
        if by_step or self._is_best(step) or (step == self._steps and self.is_kept):
            self._take(step)

    def is_wanted(self) -> bool:
        """Return whether this rank requests an agreement on the next step to save.

        Rank 0 decides by its clock, once no checkpoint is in progress. Any rank requests it to end together on a full
        volume.
        """
        if self._fails:
            return True
        by_clock = self._run.writes and not self._config.checkpoint_every and self._config.checkpoint_minutes
        if not by_clock or (self._writing is not None and not self._writing.done()):
            return False
        return time.monotonic() - self._taken_at >= self._config.checkpoint_minutes * 60

    def commit_now(self, step: int) -> bool:
        """Save `step`, the last finished step, and return when it is committed; collective.

        A checkpoint in progress is always finished. No step is saved twice, and without checkpoints none is saved.

        Returns:
            Whether the newest checkpoint is from `step`.

        Raises:
            StorageFull: as in `after_step`; a first checkpoint that does not fit is left out here too.
        """
        self._recorder.flush()
        kept = self._config.checkpoint_every or self._config.checkpoint_minutes
        if kept and step not in (self._newest, self._committed):
            self._take(step)
        self.finish()
        if self._run.writes:
            text = f"resumes after step {self._committed}" if self._committed else "keeps no checkpoint"
            log.warning("stopped after step %d, %s", step, text)
            self._recorder.record("event", step, name="stopped", text=text)
        return self._committed == step

    def finish(self) -> None:
        """Wait for the checkpoint in progress, if any; collective.

        Raises:
            StorageFull: on every rank, if the last two checkpoints did not fit.
        """
        if self._writing is None:
            return
        outcome = self._writing.result()
        self._look()
        self._writing = None
        if outcome.committed:
            self._missed, self._committed = 0, outcome.step
        else:
            self._missed += 1
            self.best = self._best_before
        if outcome.end:
            raise StorageFull(outcome.end)

    def retire(self) -> None:
        """Prune the checkpoints according to the settings once the results exist; on rank 0."""
        self._folder.retire(self._config.checkpoint_keep_finished)

    def _look(self) -> None:
        """Raise the error of the writing thread; rank 0 records the outcome of its work."""
        if self._is_reported or self._writing is None or not self._writing.done():
            return
        outcome = self._writing.result()
        self._is_reported, self._fails = True, bool(outcome.end)
        for text in outcome.left_out:
            self._recorder.record("event", outcome.step, name="checkpoint left out", text=text)
            self._recorder.record("system", outcome.step, checkpoints_left_out=max(self._missed, 1))
        if outcome.committed:
            self._recorder.record(
                "system",
                outcome.step,
                checkpoint_ms=(self._stall_s + outcome.seconds) * 1e3,
                checkpoint_stall_ms=self._stall_s * 1e3,
                checkpoint_gib=outcome.size_bytes / GIB,
                checkpoint_staging_gib=self._staging_bytes / GIB,
            )
            self._report_grace(outcome.step, self._stall_s + outcome.seconds)

    def _report_grace(self, step: int, checkpoint_s: float) -> None:
        """Report a short grace period, once per attempt."""
        problem = find_grace_problem(checkpoint_s, self._config.grace_s)
        if self._run.writes and problem and not self._grace_reported:
            self._grace_reported = True
            log.warning("%s", problem)
            text = spell(problem, os.environ)
            self._recorder.record("event", step, name="grace period too short", text=text)

    def _is_best(self, step: int) -> bool:
        """Return whether the step was just validated and is the best; not by the clock, which meets few validations."""
        found = self.validation
        if not self._config.checkpoint_every or found is None or found["step"] != step:
            return False
        return is_better(found, self.best)

    def _take(self, step: int) -> None:
        began, observed = time.monotonic(), self._engine.observed
        with record_function(LABEL):
            self.finish()
            self._recorder.flush()  # ends the run here if a loss is not finite, before it is saved
            self._best_before = self.best
            if self._is_best(step):
                self.best = self.validation
            average_running_statistics(self._engine.module)
            taken = Taken(
                step=step,
                snapshot=self._engine.snapshot(),
                random=random_state(self._world.device_type),
                observed={"bytes_held": observed.bytes_held, "dtypes": observed.dtypes},
                state=self._state(step) if self._run.writes else None,
                missed=self._missed,
                is_last=step == self._steps,
                best_before=int(self._best_before["step"]) if self._best_before else None,
            )
        self._newest, self._taken_at, self._is_reported = step, began, False
        self._staging_bytes = taken.snapshot.held_bytes
        self._stall_s = time.monotonic() - began
        on_device = self._world.device_type == "cuda"
        device = torch.device("cuda", self._world.local_rank) if on_device else None
        self._writing = run_in_background(lambda: self._writer.write(taken), device)

    def _state(self, step: int) -> TrainingState:
        mlflow = self._run.folder.mlflow
        return TrainingState(
            step=step,
            attempt=self._attempt.number,
            strategy=self._config.strategy,
            world_size=self._world.size,
            axes=self._run.axes.as_dict(),
            config_sha256=hash_config(self._config),
            samples=step * self._config.global_batch_size,
            train_loss=self._train_loss(),
            skipped_steps=self._recorder.skipped_steps,
            train_time_s=self.train_time_s(),
            validation=self.validation,
            best=self.best,
            mlflow_run_id=json.loads(mlflow.read_text())["run_id"] if mlflow.exists() else None,
        )

    def _train_loss(self) -> float:
        if self._start and not self._recorder.has_written:
            return self._start.train_loss
        return float(self._recorder.last["loss"])


def is_better(validation: dict[str, float], best: dict[str, float] | None) -> bool:
    """Return whether the accuracy is higher, or the loss lower at the same or without accuracy."""
    if best is None:
        return True
    ranks = [(found.get("accuracy_pct", 0.0), -found["loss"]) for found in (validation, best)]
    return ranks[0] > ranks[1]
