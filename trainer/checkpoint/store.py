"""Saves and loads the run as a whole; every rank calls the same functions at the same steps.

    rank 0            every rank              every rank            rank 0
    .tmp-step_N/  ─▶  engine/, ranks/rank_k  ─▶  names           ─▶  state, manifest, COMMIT, rename, best, prune

A crash anywhere leaves the earlier checkpoints and a temporary folder that nobody reads. After each column the ranks
tell each other whether the volume is full: then all of them give this checkpoint up, and training goes on. When the
next one does not fit either, the older checkpoints make room, and when that is not enough the run ends.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import record_function

from trainer.checkpoint.attempt import Attempt
from trainer.checkpoint.folder import CheckpointFolder, sync_folder
from trainer.checkpoint.grace import find_grace_problem
from trainer.checkpoint.manifest import list_files, seal
from trainer.checkpoint.random_state import load_random_state, save_random_state
from trainer.checkpoint.together import run_together
from trainer.checkpoint.training_state import TrainingState, hash_config
from trainer.engine import Engine
from trainer.failures import CRASHED, PeerLost, StorageFull, exit_code
from trainer.measuring.memory import GIB
from trainer.models.batch_norm import average_running_statistics
from trainer.outcome.tracking import Recorder
from trainer.record.run_directory import RunDirectory
from trainer.run import Run
from trainer.settings.config import ConfigError

LABEL = "## Checkpoint ##"

log = logging.getLogger("trainer")


class Checkpoints:
    """Decides when to save, and saves.

    Args:
        run: its last step is always saved.
        attempt: with the checkpoint that it goes on from.
    """

    def __init__(
        self,
        run: Run,
        engine: Engine,
        recorder: Recorder,
        attempt: Attempt,
    ) -> None:
        self._run = run
        self._config = run.config
        self._steps = run.plan.steps
        self._world = run.world
        self._engine = engine
        self._recorder = recorder
        self._attempt = attempt
        self._folder = CheckpointFolder(run.folder)
        self._start = attempt.chosen.state if attempt.chosen else None
        self._began = time.monotonic()
        self.validation = self._start.validation if self._start else None
        """The newest one, equal on every rank: step, and `Evaluation.measures`."""
        self.best = self._start.best if self._start else None
        """That of the best checkpoint."""
        self._saved = attempt.from_step
        """Step of the newest checkpoint, equal on every rank; 0 = none."""
        self._grace_told = False
        self._missed = 0
        """Checkpoints in a row that did not fit, equal on every rank."""

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
        if state.strategy != self._config.strategy:
            raise ConfigError(
                [f"{path}: was saved by strategy {state.strategy}, this run has {self._config.strategy}"]
            )
        self._engine.load(path / "engine")
        load_random_state(path, self._world.rank, self._config.seed, state.step)
        self._recorder.skipped_steps = state.skipped_steps
        if state.step >= self._steps and state.observed:  # no step will be left to observe anything
            seen = state.observed[self._world.rank % len(state.observed)]
            self._engine.observed.bytes_held, self._engine.observed.dtypes = (
                seen["bytes_held"],
                seen["dtypes"],
            )
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

    def owes_validation(self) -> bool:
        """Whether the run was stopped behind the step that it goes on from, and before that step's validation."""
        step = self._attempt.from_step
        if not step or (step % self._run.plan.evaluate_every and step != self._steps):
            return False
        return self.validation is None or self.validation["step"] != step

    def commit_now(self, step: int) -> None:
        """Saves `step`, the last one that is done, if it is not saved and the run keeps checkpoints; collective.

        What waits to be written is written in any case. Returns when the checkpoint is committed.
        """
        self._recorder.flush()
        if self._config.checkpoint_every and step != self._saved:
            self._save_step(step)
        if self._run.writes:
            text = f"goes on behind step {self._saved}" if self._saved else "keeps no checkpoint"
            log.warning("stopped behind step %d, %s", step, text)
            self._recorder.record("event", step, name="stopped", text=text)

    def after_step(self, step: int) -> None:
        """Saves if it is time to; collective.

        Raises:
            StorageFull: on every rank, if this one does not fit, nor did the one before it.
        """
        if not self._config.checkpoint_every:
            return
        validation = self.validation
        improved = validation is not None and validation["step"] == step and is_better(validation, self.best)
        if step % self._config.checkpoint_every and step != self._steps and not improved:
            return
        self._save_step(step)

    def _save_step(self, step: int) -> None:
        validation = self.validation
        improved = validation is not None and validation["step"] == step and is_better(validation, self.best)
        best_before = self.best
        if improved:
            self.best = validation
        self._recorder.flush()  # a loss that is not finite ends the run here, before it is saved
        average_running_statistics(self._engine.module)
        began = time.monotonic()
        with record_function(LABEL):
            size = self._save_where_it_fits(step, int(best_before["step"]) if best_before else None)
        if size is None:
            self.best = best_before
            return
        self._saved = step
        taken_ms = (time.monotonic() - began) * 1e3
        self._recorder.record("system", step, checkpoint_ms=taken_ms, checkpoint_gib=size / GIB)
        self._tell_grace(step, taken_ms / 1e3)

    def _tell_grace(self, step: int, checkpoint_s: float) -> None:
        """Once in an attempt."""
        problem = find_grace_problem(checkpoint_s, self._config.grace_s)
        if self._run.writes and problem and not self._grace_told:
            self._grace_told = True
            log.warning("%s", problem)
            self._recorder.record("event", step, name="grace period too short", text=problem)

    def _save_where_it_fits(self, step: int, best: int | None) -> int | None:
        """As `_save`; None on every rank if the volume is full for the first time in a row, or after the last step.

        Args:
            best: step of the best checkpoint so far, which makes no room.
        """
        try:
            try:
                size = self._save(step)
            except StorageFull as full:
                if not self._missed:
                    self._missed += 1
                    self._tell(step, f"the checkpoint of step {step} is left out, training goes on: {full}")
                    return None
                self._tell(step, f"older checkpoints make room for that of step {step}: {full}")
                if self._run.writes:
                    self._folder.prune(1, best)
                dist.barrier()
                size = self._save(step)
        except StorageFull as full:
            if step == self._steps:  # what the run has found out is worth more than its weights
                self._tell(step, f"the last checkpoint is left out, the run ends without it: {full}")
                return None
            known = self._folder.committed()
            raise StorageFull(
                f"{full}; neither the checkpoint of step {step} nor the one before it fits. Free space, then install "
                f"again: the run goes on from {'its newest checkpoint' if known else 'its beginning, none is there'}"
            ) from full
        self._missed = 0
        return size

    def _tell(self, step: int, text: str) -> None:
        if self._run.writes:
            log.warning("%s", text)
            self._recorder.record("event", step, name="checkpoint left out", text=text)
            self._recorder.record("system", step, checkpoints_left_out=self._missed)

    def _save(self, step: int) -> int:
        """Bytes written, on rank 0; 0 elsewhere.

        Raises:
            StorageFull: on every rank, and nothing is left of this checkpoint.
        """
        temporary = self._folder.temporary(step)
        try:
            run_together(lambda: self._make(temporary), self._folder.path)
            ranks = run_together(lambda: self._write(temporary), self._folder.path)
            commit = partial(self._commit, temporary, step, ranks)
            size = run_together(commit if self._run.writes else int, self._folder.path)[0]
        except BaseException as failure:
            if self._run.writes:
                self._folder.give_up(step)
            elif exit_code(failure) == CRASHED and not temporary.exists():
                raise PeerLost(f"{temporary}: rank 0 has given this checkpoint up") from failure
            raise
        return int(size) if self._run.writes else 0

    def _make(self, temporary: Path) -> None:
        if self._run.writes:
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "engine").mkdir(parents=True)

    def _write(self, temporary: Path) -> dict[str, Any]:
        (temporary / "engine").mkdir(parents=True, exist_ok=True)  # NFS may not show rank 0's yet
        self._engine.save(temporary / "engine")
        save_random_state(temporary, self._world.rank, self._world.device_type)
        return {"names": list_files(temporary), **self._observed()}

    def _commit(self, temporary: Path, step: int, ranks: list[dict[str, Any]]) -> int:
        state = TrainingState(
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
            mlflow_run_id=_read_mlflow_run(self._run.folder),
            observed=[{key: seen[key] for key in ("bytes_held", "dtypes")} for seen in ranks],
        )
        state.write(temporary)
        names = {"state.json"}.union(*(seen["names"] for seen in ranks))
        size = seal(temporary, names)
        for folder in (temporary, *(path for path in temporary.rglob("*") if path.is_dir())):
            sync_folder(folder)
        self._folder.commit(step)
        if self.best:
            self._folder.write_best(self.best)
        self._folder.prune(self._config.checkpoint_keep, int(self.best["step"]) if self.best else None)
        return size

    def _train_loss(self) -> float:
        if self._start and not self._recorder.has_written:
            return self._start.train_loss
        return float(self._recorder.last["loss"])

    def _observed(self) -> dict[str, Any]:
        observed = self._engine.observed
        return {"bytes_held": observed.bytes_held, "dtypes": observed.dtypes}


def is_better(validation: dict[str, float], best: dict[str, float] | None) -> bool:
    """Higher accuracy, where there is one, or the same with a lower loss."""
    if best is None:
        return True
    ranks = [(found.get("accuracy_pct", 0.0), -found["loss"]) for found in (validation, best)]
    return ranks[0] > ranks[1]


def _read_mlflow_run(folder: RunDirectory) -> str | None:
    return json.loads(folder.mlflow.read_text())["run_id"] if folder.mlflow.exists() else None
