"""The contract between the loop and the strategies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainer.data.batches import Batch
from trainer.measuring.held_tensors import Observed


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step as one rank sees it. Tensors stay on the device: the loop must not wait for them."""

    loss: Tensor
    """This rank's share: sum of its labels' losses / labels of all ranks. The shares add up to the mean."""
    grad_norm: Tensor | float
    """Norm of the whole gradient, before clipping, equal on every rank."""
    samples: int
    """Samples of the step, over all ranks."""
    skipped: int = 0
    """1 if the engine left the update out (gradients that are not finite)."""
    tokens: int = 0
    """Of text: places in all rows of the step, padding included."""
    useful_tokens: int = 0
    """Of text: those that hold a document."""
    token_pairs: int = 0
    """Of text: sum of the documents' squared lengths."""
    measures: Tensor | None = None
    """`Learner.step_measures` of this rank's samples, before the update, [n]; None without any."""


@dataclass(frozen=True, slots=True)
class Written:
    """One rank's files of a snapshot."""

    names: list[str]
    """Its files, relative to the folder."""
    part: Any = None
    """This rank's data for `Snapshot.finish`."""


class Snapshot(Protocol):
    """One rank's part of the state after a step, in host memory: training continues while it is written.

    It is valid until the engine takes the next one. Neither function is collective, nor on the loop's thread.
    """

    held_bytes: int
    """Of host memory, for this copy; the engine keeps them for the next one."""

    def write(self, folder: Path) -> Written:
        """Write this rank's files into `folder`, which all ranks share; again, if a volume was full."""

    def finish(self, folder: Path, parts: list[Any]) -> list[str]:
        """On rank 0, when all ranks have written: write the shared files; names as in `Written`.

        Args:
            parts: of `Written`, by rank.
        """


class Engine(Protocol):
    """A model under a strategy. A wider contract would leak how DeepSpeed or a pipeline works."""

    observed: Observed
    """Element types and bytes, known after the first step."""
    module: nn.Module
    """The model inside, as the strategy left it: whole, wrapped or sharded."""
    settings: dict[str, Any]
    """Settings of a library inside the engine (DeepSpeed); empty for plain PyTorch."""

    def train_step(self, batch: Batch, lr: float) -> StepResult:
        """Return all micro-batches and one update with learning rate `lr`."""

    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return (sum of the losses, then the task's measures), float64 [1 + n], without gradients.

        Collective: every rank must call it equally often. If ranks share rows (tp, cp, pp), one of them counts each
        label, so that a sum over all is right.
        """

    def snapshot(self) -> Snapshot:
        """Return a copy of model, optimizer and scaler, each tensor on only one rank; collective."""

    def load(self, folder: Path) -> None:
        """Read the files of snapshots, with the same world size or another one that the strategy reshards; collective.

        Raises:
            ConfigError: this world size cannot be loaded; names a command that helps.
        """

    def gather_state(self) -> dict[str, Tensor]:
        """Return the whole model's state on rank 0, on the CPU; empty elsewhere; collective."""

    def close(self) -> None:
        """Release the strategy's resources."""


def as_sums(loss: Tensor, measures: Tensor) -> Tensor:
    """Return a learner's results in evaluation in the form of `Engine.evaluate`."""
    return torch.cat([loss.double()[None], measures.double()])


def add_up(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    """Return a sum over micro-batches that stays on the device; None if a part is missing."""
    return more if total is None or more is None else total + more


def build_result(
    batch: Batch, loss: Tensor, measures: Tensor | None, grad_norm: Tensor | float, skipped: int
) -> StepResult:
    """Return the result of a step for the loop; `measures` are the learner's sums."""
    tokens = (batch.tokens, batch.useful_tokens, batch.token_pairs)
    counted = None if measures is None or not len(measures) else measures
    return StepResult(loss, grad_norm, batch.global_samples, skipped, *tokens, counted)
