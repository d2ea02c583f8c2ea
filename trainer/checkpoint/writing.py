"""Writes one checkpoint, on a thread beside training: every rank its own files, which it also hashes.

    rank 0            every rank                                  rank 0
    .tmp-step_N/  ─▶  engine/, ranks/rank_k, their sizes and hashes  ─▶  state, manifest, COMMIT, rename, best, prune

A crash anywhere leaves the earlier checkpoints and a temporary folder that is never read. After each column the ranks
tell each other, in a group of their own, whether the volume is full: then all of them give this checkpoint up, and
training goes on. When the next one does not fit either, the older checkpoints make room, and when that is not enough
the run ends.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stratlab_spec.exit_codes import CRASHED, STORAGE_FULL_ERRNOS, PeerLost, StorageFull, exit_code
from stratlab_spec.settings.wording import name_again
from trainer.checkpoint.deepspeed_files import read_plain
from trainer.checkpoint.folder import CheckpointFolder, TrainingState, describe_files, seal, sync
from trainer.distributed.consensus import run_together
from trainer.engine import Snapshot


def random_state(device_type: str) -> dict[str, Any]:
    """The state of every generator of this process: Python, NumPy, torch on the CPU and on the device.

    Tensors and plain numbers only, so that the file is read with `weights_only=True`: reading it runs no code.
    """
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()  # type: ignore[misc]
    state = {
        "python": {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if device_type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Puts every generator back; the device's only where both have one."""
    python, numbers = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    keys = numbers["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, numbers["position"], numbers["has_gauss"], numbers["cached"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def rank_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / "ranks" / f"rank_{rank:05d}.pt"


def save_random_state(checkpoint: Path, rank: int, state: dict[str, Any]) -> None:
    """Writes what `random_state` gave."""
    path = rank_file(checkpoint, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def load_random_state(checkpoint: Path, rank: int, seed: int, step: int) -> None:
    """This rank's numbers; a rank that the run did not have before gets new ones, by seed, step and rank.

    Raises:
        ConfigError: the file holds anything else.
    """
    path = rank_file(checkpoint, rank)
    if path.is_file():
        set_random_state(read_plain(path))
        return
    fresh = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    random.seed(fresh)
    np.random.seed(fresh)
    torch.manual_seed(fresh)


log = logging.getLogger("trainer")


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one rank has in memory of a checkpoint that is to be written."""

    step: int
    snapshot: Snapshot
    random: dict[str, Any]
    observed: dict[str, Any]
    state: TrainingState | None
    """On rank 0, without what the ranks have observed."""
    missed: int
    """Checkpoints in a row that did not fit, up to this one."""
    is_last: bool
    """What the run has found out is worth more than its weights."""
    best_before: int | None
    """Step of the best checkpoint so far, which makes no room."""


@dataclass(frozen=True)
class WriteOutcome:
    """What has become of it, equal on every rank but for bytes and seconds, which are rank 0's."""

    step: int
    committed: bool
    left_out: list[str]
    """Sentences on it."""
    end: str
    """Why the run cannot go on; empty: it can."""
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class CheckpointWriter:
    """One rank's part in writing."""

    folder: CheckpointFolder
    group: Any
    """Of all ranks, on their hosts; nothing else uses it meanwhile."""
    rank: int
    keep: int
    """Newest checkpoints that stay, besides the best."""

    def write(self, taken: Taken) -> WriteOutcome:
        """All of it, until the checkpoint is committed or given up; collective."""
        began, left_out, size, end, step = time.monotonic(), list[str](), None, "", taken.step

        def report(text: str) -> None:
            left_out.append(text)
            if self.rank == 0:
                log.warning("%s", text)

        try:
            try:
                size = self._save(taken)
            except StorageFull as full:
                if not taken.missed:
                    report(
                        f"the checkpoint of step {step} is left out, training goes on: {full} [SL-checkpoint-left-out]"
                    )
                else:
                    report(
                        f"older checkpoints make room for that of step {step}: {full} [SL-checkpoints-make-room]"
                    )
                    self._on_rank_0(partial(self.folder.prune, 1, taken.best_before))
                    size = self._save(taken)
        except StorageFull as full:
            if taken.is_last:
                report(
                    f"the last checkpoint is left out, the run ends without it: {full} [SL-last-checkpoint-left-out]"
                )
            else:
                start = "its newest checkpoint" if self.folder.committed() else "its beginning, none is there"
                end = (
                    f"{full}; neither the checkpoint of step {step} nor the one before it fits. Free space, then "
                    f"{name_again(os.environ)}: the run goes on from {start} [SL-checkpoint-no-room]"
                )
        return WriteOutcome(step, size is not None, left_out, end, size or 0, time.monotonic() - began)

    def _save(self, taken: Taken) -> int:
        """Bytes of all files.

        Raises:
            StorageFull: on every rank, and nothing is left of this checkpoint.
        """
        temporary = self.folder.temporary(taken.step)
        try:
            self._on_rank_0(partial(_make_folder, temporary))
            ranks = self._together(lambda: self._write_own(taken, temporary))
            size = self._on_rank_0(partial(self._commit, taken, temporary, ranks))
        except BaseException as failure:
            if self.rank == 0:
                self.folder.give_up(taken.step)
            elif exit_code(failure) == CRASHED and not temporary.exists():
                text = f"{temporary}: rank 0 has given this checkpoint up [SL-checkpoint-given-up]"
                raise PeerLost(text) from failure
            raise
        return int(size)

    def _on_rank_0(self, action: Callable[[], Any]) -> Any:
        """What it returned there, on every rank."""
        return self._together(action if self.rank == 0 else bool)[0]

    def _together(self, action: Callable[[], Any]) -> list[Any]:
        return run_together(action, self.folder.path, self.group)

    def _write_own(self, taken: Taken, temporary: Path) -> dict[str, Any]:
        (temporary / "engine").mkdir(parents=True, exist_ok=True)  # NFS may not show rank 0's yet
        written = taken.snapshot.write(temporary / "engine")
        save_random_state(temporary, self.rank, taken.random)
        names = [f"engine/{name}" for name in written.names]
        names.append(str(rank_file(temporary, self.rank).relative_to(temporary)))
        files = describe_files(temporary, names)
        return {"part": written.part, "files": files, "observed": taken.observed}

    def _commit(self, taken: Taken, temporary: Path, ranks: list[dict[str, Any]]) -> int:
        assert taken.state is not None
        once = taken.snapshot.finish(temporary / "engine", [rank["part"] for rank in ranks])
        state = dataclasses.replace(taken.state, observed=[rank["observed"] for rank in ranks])
        state.write(temporary)
        files = describe_files(temporary, ["state.json", *(f"engine/{name}" for name in once)])
        for rank in ranks:
            files |= rank["files"]
        size = seal(temporary, files)
        for folder in (temporary, *(path for path in temporary.rglob("*") if path.is_dir())):
            sync(folder)
        self.folder.commit(taken.step)
        if state.best:
            try:
                self.folder.write_best(state.best)
            except OSError as failure:
                # the checkpoint is committed by now, and says itself which one is the best
                if failure.errno not in STORAGE_FULL_ERRNOS:
                    raise
                log.warning("best.json is not written, checkpoints are as they should be: %s", failure)
        self.folder.prune(self.keep, int(state.best["step"]) if state.best else None)
        return size


def _make_folder(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "engine").mkdir(parents=True)
