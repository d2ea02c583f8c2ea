"""Decides when the run is saved, and goes on from what was; every rank calls the same functions at the same steps.

The loop waits while a snapshot is copied into host memory, and for the checkpoint before it, if that is still being
written (trainer/checkpoint/writing.py). So there is one copy of the state at a time, and the steps that have a
checkpoint do not depend on the speed of the volume.
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
"""Whoever trains comes first where processors are scarce."""


def run_in_background(work: Callable[[], Result], device: torch.device | None = None) -> Future[Result]:
    """Starts `work` at once, on a thread of its own beside the one that trains.

    Args:
        device: of this process, for libraries that touch the current one; None: a processor.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            thread = threading.get_native_id()  # Linux: a priority is of one thread alone
            if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:  # to raise it is for root
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own current device
            future.set_result(work())
        except BaseException as failure:
            future.set_exception(failure)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


SHARE = 0.5
"""Of the time that a stop leaves the ranks, a checkpoint may take so much: the step before it takes time as well."""
MARGIN_S = 15
ROUND_TO_S = 30


def find_grace_problem(checkpoint_s: float, grace_s: int) -> str | None:
    """Say what to set where a checkpoint that takes `checkpoint_s` is long for a grace period of `grace_s`.

    The grace period belongs to the release and cannot change while it runs; what a checkpoint takes is known only then.
    """
    ranks_s = grace_s - min(MARGIN_S, grace_s / 3)
    if checkpoint_s <= SHARE * ranks_s:
        return None
    wish = math.ceil((checkpoint_s / SHARE + MARGIN_S) / ROUND_TO_S) * ROUND_TO_S
    return (
        f"the last checkpoint took {checkpoint_s:.0f} s, and a stop leaves it {ranks_s:.0f} s of "
        f"TRAINER_GRACE_S={grace_s}: so that no step is lost, {name_again(os.environ)} with TRAINER_GRACE_S={wish} "
        "(under its name the run goes on) [SL-grace-short]"
    )


LABEL = "## Checkpoint ##"

log = logging.getLogger("trainer")


class Checkpoints:
    """The checkpoints of one attempt.

    Args:
        run: its last step is saved, where checkpoints are kept at all.
        attempt: with the checkpoint that it goes on from.
        group: of all ranks, for the thread that writes (`open_disk_group`).
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
        """The newest one, equal on every rank: step, and `Evaluation.measures`."""
        self.best = start.best if start else None
        """That of the best checkpoint, the one that is being written included."""
        self._best_before = self.best
        self._committed = attempt.from_step
        """Step of the newest checkpoint, equal on every rank; 0 = none."""
        self._grace_reported = False
        self._missed = 0
        """Checkpoints in a row that did not fit, equal on every rank."""
        self._writing: Future[WriteOutcome] | None = None
        self._newest = 0
        """The step that was last taken in this attempt."""
        self._is_reported = True
        self._fails = False
        """The thread that writes has found that the run cannot go on."""
        self._taken_at = self._began
        self._stall_s, self._staging_bytes = 0.0, 0

    def load(self) -> None:
        """Puts engine, random numbers and counters back to where the chosen checkpoint was; collective.

        Raises:
            ConfigError: this strategy or this world size cannot go on from it.
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
        if state.step >= self._steps and state.observed:  # no step will be left to observe anything
            seen, observed = state.observed[self._world.rank % len(state.observed)], self._engine.observed
            observed.bytes_held, observed.dtypes = seen["bytes_held"], seen["dtypes"]
        self._began = time.monotonic()

    def train_time_s(self) -> float:
        """Seconds of training up to now, those of earlier attempts included as far as their steps count."""
        return time.monotonic() - self._began + (self._start.train_time_s if self._start else 0.0)

    def numbers(self) -> dict[str, Any]:
        """What the run has come to, for summary.json; on rank 0, after the last step."""
        assert self.validation is not None, "a run ends with a validation"
        return {
            "train_loss": self._train_loss(),
            **{f"validation_{name}": value for name, value in self.validation.items() if name != "step"},
            "skipped_steps": self._recorder.skipped_steps,
            "train_time_s": self.train_time_s(),
        }

    @property
    def is_kept(self) -> bool:
        """Whether the run ends with a checkpoint and its weights: if it has settings for it, or is long enough."""
        return bool(self._config.checkpoint_every or self._start or self._newest)

    def owes_validation(self) -> bool:
        """Whether the run was stopped behind the step that it goes on from, and before that step's validation."""
        step = self._attempt.from_step
        if not step or (step % self._run.plan.evaluate_every and step != self._steps):
            return False
        return self.validation is None or self.validation["step"] != step

    def after_step(self, step: int, asked: bool = False) -> None:
        """Takes a snapshot if it is time to; collective.

        Args:
            asked: the ranks have agreed on it, because `is_wanted` somewhere.

        Raises:
            StorageFull: on every rank, if the last one did not fit, nor did the one before it.
        """
        self._look()
        if asked:
            self.finish()
        every = self._config.checkpoint_every
        by_step = step % every == 0 if every else asked
        if by_step or self._is_best(step) or (step == self._steps and self.is_kept):
            self._take(step)

    def is_wanted(self) -> bool:
        """Whether this rank wants all of them to agree on the next step behind which to save.

        By rank 0's clock, as soon as none is being written; and to end together where the volume is full.
        """
        if self._fails:
            return True
        by_clock = self._run.writes and not self._config.checkpoint_every and self._config.checkpoint_minutes
        if not by_clock or (self._writing is not None and not self._writing.done()):
            return False
        return time.monotonic() - self._taken_at >= self._config.checkpoint_minutes * 60

    def commit_now(self, step: int) -> bool:
        """Saves `step`, the last one that is done, and returns when it is committed; collective.

        What waits to be written is written in any case. Nothing is saved twice, nor where no checkpoints are kept.

        Returns:
            Whether the newest checkpoint is that of `step`.

        Raises:
            StorageFull: as `after_step`; the first one in a row that does not fit is left out here too.
        """
        self._recorder.flush()
        kept = self._config.checkpoint_every or self._config.checkpoint_minutes
        if kept and step not in (self._newest, self._committed):
            self._take(step)
        self.finish()
        if self._run.writes:
            text = f"goes on behind step {self._committed}" if self._committed else "keeps no checkpoint"
            log.warning("stopped behind step %d, %s", step, text)
            self._recorder.record("event", step, name="stopped", text=text)
        return self._committed == step

    def finish(self) -> None:
        """Waits for the checkpoint that is being written, if there is one; collective.

        Raises:
            StorageFull: on every rank, if it does not fit, nor did the one before it.
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
        """When the results are there: keeps of the checkpoints what the settings say; on rank 0."""
        self._folder.retire(self._config.checkpoint_keep_finished)

    def _look(self) -> None:
        """Raises what went wrong on the thread that writes; rank 0 writes down what has become of its work."""
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
        """Once in an attempt."""
        problem = find_grace_problem(checkpoint_s, self._config.grace_s)
        if self._run.writes and problem and not self._grace_reported:
            self._grace_reported = True
            log.warning("%s", problem)
            text = spell(problem, os.environ)
            self._recorder.record("event", step, name="grace period too short", text=text)

    def _is_best(self, step: int) -> bool:
        """Whether it was just validated and is to be kept for that; not by the clock, which meets few validations."""
        found = self.validation
        if not self._config.checkpoint_every or found is None or found["step"] != step:
            return False
        return is_better(found, self.best)

    def _take(self, step: int) -> None:
        began, observed = time.monotonic(), self._engine.observed
        with record_function(LABEL):
            self.finish()
            self._recorder.flush()  # a loss that is not finite ends the run here, before it is saved
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
    """Higher accuracy, where there is one, or the same with a lower loss."""
    if best is None:
        return True
    ranks = [(found.get("accuracy_pct", 0.0), -found["loss"]) for found in (validation, best)]
    return ranks[0] > ranks[1]
