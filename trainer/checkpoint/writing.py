"""Write one checkpoint in a thread next to training; every rank writes and hashes its own files.

    rank 0            every rank                                  rank 0
    .tmp-step_N/  ─▶  engine/, ranks/rank_k, their sizes and hashes  ─▶  state, manifest, COMMIT, rename, best, prune

A crash at any point leaves the earlier checkpoints and a temporary folder that is never read. After each column the
ranks exchange, in a process group of their own, whether the volume is full. If so, all of them give this checkpoint up
and training continues. If the next checkpoint does not fit either, older checkpoints are removed. If it still does not
fit, the run ends.
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
    """Return the state of every generator of this process: Python, NumPy, torch on the CPU and on the device.

    It holds only tensors and plain numbers, so `weights_only=True` can read the file without running code.
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
    """Restore every generator; the device's only if both state and process have one."""
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
    """Write the result of `random_state`."""
    path = rank_file(checkpoint, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


def load_random_state(checkpoint: Path, rank: int, seed: int, step: int) -> None:
    """Restore this rank's generators; a rank that is new in the run is seeded by seed, step and rank.

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
    """One rank's snapshot of a checkpoint in host memory."""

    step: int
    snapshot: Snapshot
    random: dict[str, Any]
    observed: dict[str, Any]
    state: TrainingState | None
    """On rank 0, without the values measured by the ranks."""
    missed: int
    """Number of consecutive checkpoints that did not fit before this one."""
    is_last: bool
    """Whether this is the last step: the results are worth more than its weights."""
    best_before: int | None
    """Step of the best checkpoint so far, which is not removed for space."""


@dataclass(frozen=True)
class WriteOutcome:
    """The outcome, equal on every rank except for bytes and seconds, which are rank 0's."""

    step: int
    committed: bool
    left_out: list[str]
    """Warnings about it."""
    end: str
    """Why the run cannot continue; empty if it can."""
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class CheckpointWriter:
    """One rank's part in writing a checkpoint."""

    folder: CheckpointFolder
    group: Any
    """Process group of all ranks on their hosts, used only by this writer."""
    rank: int
    keep: int
    """Number of newest checkpoints to keep, in addition to the best."""

    def write(self, taken: Taken) -> WriteOutcome:
        """Write the checkpoint until it is committed or given up; collective."""
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
                        f"the checkpoint of step {step} left out, training continues: {full} [SL-checkpoint-left-out]"
                    )
                else:
                    report(
                        f"removing older checkpoints for the one at step {step}: {full} [SL-checkpoints-make-room]"
                    )
                    self._on_rank_0(partial(self.folder.prune, 1, taken.best_before))
                    size = self._save(taken)
        except StorageFull as full:
            if taken.is_last:
                report(
                    f"the last checkpoint is left out, the run ends without it: {full} [SL-last-checkpoint-left-out]"
                )
            else:
                start = (
                    "its newest checkpoint"
                    if self.folder.committed()
                    else "its beginning, without a checkpoint"
                )
                end = (
                    f"{full}; the checkpoint of step {step} and the previous one do not fit. Free space, then "
                    f"{name_again(os.environ)}: the run resumes from {start} [SL-checkpoint-no-room]"
                )
        return WriteOutcome(step, size is not None, left_out, end, size or 0, time.monotonic() - began)

    def _save(self, taken: Taken) -> int:
        """Write all files and return their bytes.

        Raises:
            StorageFull: on every rank, after removing this checkpoint.
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
        """Run `action` on rank 0 and return its result on every rank."""
        return self._together(action if self.rank == 0 else bool)[0]

    def _together(self, action: Callable[[], Any]) -> list[Any]:
        return run_together(action, self.folder.path, self.group)

    def _write_own(self, taken: Taken, temporary: Path) -> dict[str, Any]:
        (temporary / "engine").mkdir(parents=True, exist_ok=True)  # NFS may not show rank 0's folder yet
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
                # the checkpoint is committed already, and its state records the best one
                if failure.errno not in STORAGE_FULL_ERRNOS:
                    raise
                log.warning("best.json was not written, but the checkpoints are complete: %s", failure)
        self.folder.prune(self.keep, int(state.best["step"]) if state.best else None)
        return size


def _make_folder(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "engine").mkdir(parents=True)
