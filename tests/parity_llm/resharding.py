"""Half of the steps on one mesh, a checkpoint, the other half on another mesh."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parity_llm.cases import LORA, STEPS, Case
from tests.parity_llm.training import Folders, build, read_step, write_found
from tests.trainer.saving import save_state

HALF = STEPS // 2


@dataclass(frozen=True)
class Resharding:
    """A checkpoint of `saved`, read by `continued`: the same model and rows, other degrees."""

    saved: Case
    continued: Case

    @property
    def name(self) -> str:
        return f"{self.saved.name} to {self.continued.name}"


def _pairs(saved: Case, *meshes: str) -> list[Resharding]:
    settings = {name: value for name, value in saved.settings.items() if name == "lora_rank"}
    return [
        Resharding(
            saved, Case(saved.model, mesh, packed=True, micro=2 if mesh == "pp3" else 0, settings=settings)
        )
        for mesh in meshes
    ]


RESHARDINGS = (
    *_pairs(Case("4 layers", "pp2.dp2.tp2+sp", packed=True), "dp1", "dp2", "pp3", "cp2.tp2+sp", "pp2.rep2"),
    *_pairs(Case("tied", "dp2", packed=True), "tp2", "pp2.tp2+sp"),
    *_pairs(
        Case("4 layers", "pp2", packed=True, micro=2, settings={"pp_schedule": "interleaved1f1b"}), "dp2.tp2"
    ),
    *_pairs(Case("moe", "pp2.dp2.tp2.ep4+sp", packed=True), "dp2", "dp4.ep4", "cp2.tp2.ep2+sp"),
    *_pairs(Case("moe", "dp2.ep2", packed=True), "pp2.dp2.tp2.ep2+sp"),
    *_pairs(Case("tied", "pp2.dp2.tp2", packed=True, settings=LORA), "dp2", "tp2+sp"),
)


@dataclass(frozen=True)
class Saving:
    """The first half of a case's steps and its checkpoint."""

    case: Case

    @property
    def world_size(self) -> int:
        return self.case.world_size

    def work(self, folders: Folders) -> None:
        import torch.distributed as dist

        engine, next_batch, _ = build(self.case, folders.checkpoints)
        for step in range(1, HALF + 1):
            engine.train_step(next_batch(step), self.case.config()["lr"])
        folder = checkpoint_of(folders, self.case)
        if dist.get_rank() == 0:
            folder.mkdir()
        dist.barrier()
        save_state(engine, folder)


@dataclass(frozen=True)
class Continuing:
    """The second half on the other mesh; rank 0 writes `<name>.json` with the largest differences."""

    name: str
    pair: Resharding
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def world_size(self) -> int:
        return self.pair.continued.world_size

    def work(self, folders: Folders) -> None:
        import torch

        case = self.pair.continued
        reference = torch.load(folders.references / f"{case.reference}.pt", weights_only=True)
        engine, next_batch, _ = build(case, folders.checkpoints)
        with self.plant():
            engine.load(checkpoint_of(folders, self.pair.saved))
        loss = grad_norm = 0.0
        for step in range(HALF + 1, STEPS + 1):
            found = read_step(engine, next_batch(step), case)
            loss = max(loss, abs(found[0] - reference["losses"][step - 1]))
            grad_norm = max(grad_norm, abs(found[1] - reference["norms"][step - 1]))
        write_found(folders.out / f"{self.name}.json", {"loss": loss, "grad_norm": grad_norm})


def checkpoint_of(folders: Folders, case: Case) -> Path:
    return folders.out / f"{case.name} saved"


def optimizer_state_lost() -> AbstractContextManager[Any]:
    """A fault for the suite to catch: only the weights are kept."""
    from unittest import mock

    from trainer.parallel.nd_engine import ScheduleEngine

    whole = ScheduleEngine.load

    def weights_only(self: Any, folder: Path) -> None:
        whole(self, folder)
        for optimizer in self.optimizers:
            optimizer.state.clear()

    return mock.patch.object(ScheduleEngine, "load", weights_only)


STATE_LOST = Continuing(
    "optimizer state lost at a change of the mesh",
    next(pair for pair in RESHARDINGS if pair.saved.world_size == pair.continued.world_size == 2),
    optimizer_state_lost,
)
"""The fault, and the change that has to notice it."""
