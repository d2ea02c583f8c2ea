"""Manage the checkpoint folders of one run, without torch: list, verify, commit, choose and prune them.

manifest.json    size and sha256 of every file of a checkpoint, to verify later that it is complete
state.json       values that the loop needs to continue, in addition to the engine's tensors
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stratlab_spec.run_directory import RunDirectory, write_json
from stratlab_spec.settings.config import Config, ConfigError

MANIFEST = "manifest.json"
COMMIT = "COMMIT"
THREADS = 8  # hashlib releases the interpreter's lock


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Sync the files that this rank wrote, read them back, and return their sizes and hashes.

    Raises:
        OSError: a file does not exist, or the volume is full.
    """
    names = sorted(names)
    with ThreadPoolExecutor(THREADS) as pool:
        described = pool.map(lambda name: _describe(folder / name, sync=True), names)
        return dict(zip(names, described, strict=True))


def seal(folder: Path, files: dict[str, dict[str, Any]]) -> int:
    """Write manifest.json, then COMMIT; return the bytes of the files.

    Args:
        files: of every rank, from `describe_files`.
    """
    write_json(folder / MANIFEST, {"schema_version": 1, "files": dict(sorted(files.items()))})
    write_json(folder / COMMIT, {"manifest_sha256": _describe(folder / MANIFEST)["sha256"]})
    return sum(entry["bytes"] for entry in files.values())


def compare_files(folder: Path, files: dict[str, dict[str, Any]]) -> str | None:
    """Read every byte of the files and return the first problem, or None."""
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda item: _compare(folder, *item), files.items())
        return next((problem for problem in found if problem), None)


def find_problem(
    folder: Path, compare: Callable[[Path, dict[str, dict[str, Any]]], str | None] = compare_files
) -> str | None:
    """Read every byte of a committed checkpoint and return the first problem, or None.

    Args:
        compare: checks the files that the manifest names.
    """
    try:
        promised = json.loads((folder / COMMIT).read_text())["manifest_sha256"]
        if _describe(folder / MANIFEST)["sha256"] != promised:
            return f"{MANIFEST} differs from the committed one [SL-manifest-changed]"
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError) as failure:
        return f"{COMMIT} or {MANIFEST} cannot be read ({failure}) [SL-commit-unreadable]"
    return compare(folder, files)


def _compare(folder: Path, name: str, promised: dict[str, Any]) -> str | None:
    try:
        size = (folder / name).stat().st_size
        if size != promised["bytes"]:
            return f"{name} has {size} bytes instead of {promised['bytes']} [SL-file-size]"
        if _describe(folder / name)["sha256"] != promised["sha256"]:
            return f"the content of {name} has changed [SL-file-changed]"
    except FileNotFoundError:
        return f"{name} is missing [SL-checkpoint-file-missing]"
    except OSError as failure:
        return f"{name} cannot be read ({failure}) [SL-checkpoint-file-unreadable]"
    return None


def _describe(path: Path, sync: bool = False) -> dict[str, Any]:
    with open(path, "rb") as file:
        if sync:  # only files of this machine; a network volume flushes files of other machines at close
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


FILE = "state.json"
Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class TrainingState:
    """The run after `step`. The position in the data and in the schedule depends only on the step."""

    step: Count
    attempt: Count
    strategy: str
    world_size: Count
    axes: dict[str, int]
    config_sha256: str
    samples: Count
    """Samples used so far, over all ranks: step x global batch."""
    train_loss: float
    skipped_steps: Count
    train_time_s: float
    """Training time of all attempts, as far as their steps count."""
    validation: dict[str, Any] | None = None
    """step, loss and accuracy_pct or perplexity of the newest validation."""
    best: dict[str, Any] | None = None
    """The same for the best checkpoint, this one included."""
    mlflow_run_id: str | None = None
    observed: list[dict[str, Any]] = field(default_factory=list)
    """Bytes and element types per rank, for a run that crashes after its last step."""

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> TrainingState:
        """Read state.json; fields of a later version are ignored.

        Raises:
            ConfigError: the file is not the state of a run.
        """
        content = json.loads((folder / FILE).read_text())
        try:
            return msgspec.convert(content, cls)
        except msgspec.ValidationError as failure:
            text = json.dumps(content)[:200]
            problem = f"{folder / FILE}: is not the state of a run: {text} [SL-state-not-a-run]"
            raise ConfigError([problem]) from failure


def hash_config(config: Config) -> str:
    """Return the sha256 of the settings."""
    return hashlib.sha256(json.dumps(config.model_dump(), sort_keys=True).encode()).hexdigest()


STEP = re.compile(r"step_(\d{8})")
TEMPORARY = ".tmp-"
ASIDE = ".aside-"  # broken, or from a run that was restarted; removed when a newer checkpoint is committed

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Chosen:
    """The checkpoint that an attempt resumes."""

    path: Path
    state: TrainingState


class CheckpointFolder:
    """The folder `<run directory>/checkpoints`; only rank 0 changes it."""

    def __init__(self, run: RunDirectory) -> None:
        self.path = run.checkpoints
        self._metrics = run.metrics
        self._best = self.path / "best.json"

    def step(self, step: int) -> Path:
        return self.path / f"step_{step:08d}"

    def temporary(self, step: int) -> Path:
        return self.path / f"{TEMPORARY}step_{step:08d}"

    def committed(self) -> list[int]:
        """Return the steps with a committed checkpoint, oldest first, without reading the content."""
        if not self.path.is_dir():
            return []
        found = [(STEP.fullmatch(path.name), path) for path in self.path.iterdir()]
        return sorted(int(match[1]) for match, path in found if match and (path / COMMIT).is_file())

    def choose(self, find: Callable[[Path], str | None] = find_problem) -> tuple[Chosen | None, list[str]]:
        """Return the newest complete checkpoint, and a sentence for each newer broken one; reads every byte.

        Args:
            find: returns the problem of a checkpoint, or None.
        """
        skipped: list[str] = []
        steps = self.committed()
        while steps:
            path = self.step(step := steps.pop())
            problem = find(path)
            if problem is None:
                return Chosen(path, self._known_best(TrainingState.read(path))), skipped
            then = "trying the previous one" if steps else "there is no older one, so training starts over"
            code = "[SL-checkpoint-broken]" if steps else "[SL-no-checkpoint-whole]"
            skipped.append(f"checkpoint of step {step} is broken, {then}: {problem} {code}")
            self._set_aside(path)
        return None, skipped

    def _known_best(self, state: TrainingState) -> TrainingState:
        """Drop the best checkpoint if it was pruned for a better one that is now broken."""
        if state.best and int(state.best["step"]) not in self.committed():
            return dataclasses.replace(state, best=None)
        return state

    def set_all_aside(self) -> None:
        """Set all checkpoints aside for a run that starts over; its first checkpoint replaces them."""
        for step in self.committed():
            self._set_aside(self.step(step))
        self._best.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove unfinished checkpoints of earlier attempts."""
        self._clear(TEMPORARY)

    def commit(self, step: int) -> None:
        """Rename the finished temporary folder, which makes it the newest checkpoint.

        The metrics of its steps are synced first, because these steps will not run again.
        """
        if self._metrics.exists():
            sync(self._metrics)
        final = self.step(step)
        if final.exists():
            self._set_aside(final)
        os.rename(self.temporary(step), final)
        sync(self.path)
        self._clear(ASIDE)

    def give_up(self, step: int) -> None:
        """Remove the unfinished checkpoint, if any; it may fill the volume."""
        try:
            self._remove(self.temporary(step))
        except OSError:  # a full volume may not even have room for a rename
            shutil.rmtree(self.temporary(step), ignore_errors=True)

    def prune(self, keep: int, best: int | None) -> None:
        """Remove all checkpoints except the newest `keep` and the best."""
        for step in self.committed()[:-keep]:
            if step != best:
                self._remove(self.step(step))

    def retire(self, keep: str) -> None:
        """Prune the checkpoints of a successful run: keep only the `newest`, `all` or `none`."""
        committed = [] if keep == "all" else self.committed()
        for step in committed[:-1] if keep == "newest" else committed:
            self._remove(self.step(step))

    def write_best(self, best: dict[str, Any]) -> None:
        write_json(self._best, best)

    def read_best(self) -> int | None:
        """Return the step of the best checkpoint, if it exists."""
        try:
            step = int(json.loads(self._best.read_text())["step"])
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return step if step in self.committed() else None

    def _remove(self, path: Path) -> None:
        """Remove a folder atomically for readers and writers: never half removed under its own name."""
        doomed = self.path / f"{TEMPORARY}{path.name.removeprefix(TEMPORARY)}-old"
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _set_aside(self, path: Path) -> None:
        target = self.path / f"{ASIDE}{path.name}"
        shutil.rmtree(target, ignore_errors=True)
        os.rename(path, target)

    def _clear(self, prefix: str) -> None:
        for path in list(self.path.glob(f"{prefix}*")):
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Sync the content of a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
