"""Names and life cycle of the checkpoint folders of one run, without torch: which are there, which may be read."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.manifest import COMMIT, find_problem
from trainer.checkpoint.training_state import TrainingState
from trainer.record.run_directory import RunDirectory, write_json

STEP = re.compile(r"step_(\d{8})")
TEMPORARY = ".tmp-"
ASIDE = ".aside-"  # broken, or of a run that was started over; removed when a newer one is committed

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Chosen:
    """The checkpoint that an attempt goes on from."""

    path: Path
    state: TrainingState


class CheckpointFolder:
    """`<run directory>/checkpoints`. Only rank 0 changes it."""

    def __init__(self, run: RunDirectory) -> None:
        self.path = run.checkpoints
        self._metrics = run.metrics
        self._best = self.path / "best.json"

    def step(self, step: int) -> Path:
        return self.path / f"step_{step:08d}"

    def temporary(self, step: int) -> Path:
        return self.path / f"{TEMPORARY}step_{step:08d}"

    def committed(self) -> list[int]:
        """Steps with a committed checkpoint, the oldest first; their content is not looked at."""
        if not self.path.is_dir():
            return []
        found = [(STEP.fullmatch(path.name), path) for path in self.path.iterdir()]
        return sorted(int(match[1]) for match, path in found if match and (path / COMMIT).is_file())

    def choose(self, find: Callable[[Path], str | None] = find_problem) -> tuple[Chosen | None, list[str]]:
        """The newest checkpoint that is whole, and a sentence for each newer one that is not; reads every byte.

        Args:
            find: says what is wrong with one.
        """
        skipped: list[str] = []
        steps = self.committed()
        while steps:
            path = self.step(step := steps.pop())
            problem = find(path)
            if problem is None:
                return Chosen(path, self._known_best(TrainingState.read(path))), skipped
            then = "the one before it is taken" if steps else "there is none before it, training starts over"
            code = "[SL-checkpoint-broken]" if steps else "[SL-no-checkpoint-whole]"
            skipped.append(f"checkpoint of step {step} is broken, {then}: {problem} {code}")
            self._set_aside(path)
        return None, skipped

    def _known_best(self, state: TrainingState) -> TrainingState:
        """Without a best that was pruned for the sake of a better one which is broken now."""
        if state.best and int(state.best["step"]) not in self.committed():
            return dataclasses.replace(state, best=None)
        return state

    def set_all_aside(self) -> None:
        """For a run that starts over: its first own checkpoint replaces them."""
        for step in self.committed():
            self._set_aside(self.step(step))
        self._best.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """What earlier attempts had not finished."""
        for path in self._hidden(TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)

    def commit(self, step: int) -> None:
        """Gives the finished temporary folder its name: from here on it is the newest checkpoint.

        The metrics of its steps are made durable before: nobody will make these steps again.
        """
        if self._metrics.exists():
            sync(self._metrics)
        final = self.step(step)
        if final.exists():
            self._set_aside(final)
        os.rename(self.temporary(step), final)
        sync(self.path)
        for path in self._hidden(ASIDE):
            shutil.rmtree(path, ignore_errors=True)

    def give_up(self, step: int) -> None:
        """Removes the unfinished checkpoint, if there is one: it may be what fills the volume."""
        try:
            self._remove(self.temporary(step))
        except OSError:  # a full volume may have no room for another name either
            shutil.rmtree(self.temporary(step), ignore_errors=True)

    def prune(self, keep: int, best: int | None) -> None:
        """Removes all but the newest `keep` and the best."""
        for step in self.committed()[:-keep]:
            if step != best:
                self._remove(self.step(step))

    def retire(self, keep: str) -> None:
        """Of a run that has succeeded: keeps `newest` alone, `all` or `none`."""
        if keep != "all":
            committed = self.committed()
            for step in committed[:-1] if keep == "newest" else committed:
                self._remove(self.step(step))

    def write_best(self, best: dict[str, Any]) -> None:
        write_json(self._best, best)

    def read_best(self) -> int | None:
        """The step of the best checkpoint, if it is there."""
        try:
            step = int(json.loads(self._best.read_text())["step"])
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return step if step in self.committed() else None

    def _remove(self, path: Path) -> None:
        """At once, for whoever looks at it or writes into it: never half removed under its own name."""
        doomed = self.path / f"{TEMPORARY}{path.name.removeprefix(TEMPORARY)}-old"
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _set_aside(self, path: Path) -> None:
        target = self.path / f"{ASIDE}{path.name}"
        shutil.rmtree(target, ignore_errors=True)
        os.rename(path, target)

    def _hidden(self, prefix: str) -> list[Path]:
        return list(self.path.glob(f"{prefix}*"))


def sync(path: Path) -> None:
    """Makes durable what is in a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
