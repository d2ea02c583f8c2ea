"""One rank that trains cases and compares what it holds with the reference: losses, norms, first-step gradients.

Every rank compares its own copies, so that replicas, stages and tied copies that drift apart are seen as well.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

from tests.parity.suite import FLOOR
from tests.parity_llm.cases import STEPS, TEACHER, Case
from tests.parity_llm.models import build_share
from tests.parity_llm.routing import Routing, routed_as, routing_kept
from tests.trainer.models.varlen_stand_in import on_varlen

GRADIENT_STEP = {False: 1, True: 2}
"""Whether there are adapters -> step whose gradients are compared; LoRA's A has none while B is still zero."""
EMBEDDING = "model.embed_tokens.weight"
"""Stands for a tied head, of which the last stage of a pipeline has a copy under the head's name."""
SGD_RATE = 16.0
"""Of DeepSpeed's one step of SGD, large so that the gradient can be read off the weights."""


@dataclass(frozen=True)
class Folders:
    """Where the ranks read and write."""

    checkpoints: Path
    references: Path
    out: Path


@dataclass(frozen=True)
class Training:
    """A case to train, sound or with a fault; rank 0 writes `<name>.json`."""

    name: str
    case: Case
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext
    steps: int = STEPS

    @property
    def world_size(self) -> int:
        return self.case.world_size

    def work(self, folders: Folders) -> None:
        with self.plant(), on_varlen() if self.case.varlen else nullcontext():
            found = _train(self.case, folders, self.steps)
        write_found(folders.out / f"{self.name}.json", found)


class Work(Protocol):
    """What ranks do together."""

    def work(self, folders: Folders) -> None:
        """Collective over all ranks of a group that is there already."""


def work_off(works: Sequence[Work], folders: Folders) -> None:
    """One after the other in one process group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for each in works:
        each.work(folders)
        dist.barrier()


def write_found(path: Path, found: dict[str, Any]) -> None:
    """By rank 0."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        path.write_text(json.dumps(found))


def write_references(cases: tuple[Case, ...], folders: Folders) -> None:
    """The strategy single, in the form of reference.py, for numerics that the plain model does not have."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in cases:
        engine, next_batch, _ = build(case, folders.checkpoints)
        gradients: dict[str, Any] = {}
        step_of_gradients = GRADIENT_STEP[case.lora]
        weights = {n: p.detach().clone() for n, p in engine.module.named_parameters()}
        losses, norms = [], []
        routing: list[Routing] = [{} for _ in range(STEPS)]
        for step in range(1, STEPS + 1):
            reading = _gradients(engine, gradients) if step == step_of_gradients else nullcontext()
            with reading, routing_kept(engine.module, routing[step - 1]):
                result = engine.train_step(next_batch(step), case.config()["lr"])
            losses.append(float(result.loss))
            norms.append(float(result.grad_norm))
        found = {"losses": losses, "norms": norms, "gradients": _without_prefix(gradients)}
        found |= {"weights": _without_prefix(weights), "routing": routing}
        torch.save(found, folders.references / f"{case.reference}.pt")
        engine.close()


def build(case: Case, checkpoints: Path, **changes: Any) -> tuple[Any, Callable[[int], Any], Any]:
    """(engine, step -> this rank's batch, axes), by the functions that trainer/worker.py calls."""
    from stratlab_spec.settings.config import Config
    from tests.trainer.runs import run_of
    from trainer.measuring.phases import Phases
    from trainer.models.decoder_build import build_decoder
    from trainer.strategies import build_engine, builds_empty

    taught = {"teacher": str(checkpoints / TEACHER)} if case.taught else {}
    settings = case.config() | taught | changes
    config = Config(run="parity", model_path=str(checkpoints / case.model), **settings)
    rank = int(os.environ["RANK"])
    run = run_of(config)
    axes = run.axes
    model = build_decoder(config, empty=builds_empty(config, rank))
    if case.taught and axes.computes_loss(rank):
        model.teacher = build_teacher(config, run.precision.teacher_dtype)
    engine = build_engine(run, model, Phases("cpu"))

    def next_batch(step: int) -> Any:
        return build_share(step, case.packed, axes.dp_rank(rank), axes.dp, config.micro_batch_size)

    return engine, next_batch, axes


def build_teacher(config: Any, dtype: Any) -> Any:
    """As trainer/tasks/text_task.py does it."""
    from stratlab_spec.models.teacher import teacher_config
    from trainer.models.decoder_build import build_decoder
    from trainer.models.teacher import Teacher, place_teacher

    placed = place_teacher(build_decoder(teacher_config(config)), "cpu", dtype)
    return Teacher(placed, config.distill_temperature, config.distill_alpha)


def _train(case: Case, folders: Folders, steps: int) -> dict[str, Any]:
    """What this case is off by, worst over all ranks; the same on every rank."""
    import torch
    import torch.distributed as dist

    reference = torch.load(folders.references / f"{case.reference}.pt", weights_only=True)
    errors: dict[str, float] = {}
    if case.strategy.startswith("zero") and not case.lora:
        errors = _deepspeed_errors(case, folders, reference)
    engine, next_batch, _ = build(case, folders.checkpoints)
    start = _without_prefix(engine.gather_state())
    loaded = {n: bool(torch.equal(start[n], w)) for n, w in reference["weights"].items()} if start else {}
    losses, norms, moved = [], [], []
    for step in range(1, steps + 1):
        gradients: dict[str, Any] = {}
        reads = step == GRADIENT_STEP[case.lora] and not case.strategy.startswith("zero")
        reading = _gradients(engine, gradients) if reads else nullcontext()
        with reading, _routed(case, engine, reference, step, moved):
            loss, norm = read_step(engine, next_batch(step), case)
        if reads:
            errors = _errors(_without_prefix(gradients), reference["gradients"])
        losses.append(loss)
        norms.append(norm)
    engine.close()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (losses, norms, errors, loaded, moved))
    worst: dict[str, float] = {}
    for _, _, found, _, _ in everyone:
        for name, error in found.items():
            worst[name] = max(worst.get(name, 0.0), error)
    unread = case.lora and case.strategy.startswith(
        "zero"
    )  # its second step's gradients are nowhere to be read
    missing = [] if unread else sorted(reference["gradients"].keys() - worst.keys())
    return {
        "loss": max(_furthest(theirs, reference["losses"][:steps]) for theirs, *_ in everyone),
        "grad_norm": max(_furthest(theirs, reference["norms"][:steps]) for _, theirs, *_ in everyone),
        "moved_pct": 100 * mean(shares)
        if (shares := [s for *_, theirs in everyone for s in theirs])
        else None,
        "gradients": worst,
        "without_gradient": missing,
        "wrongly_loaded": sorted(name for name, equal in everyone[0][3].items() if not equal),
    }


def _routed(
    case: Case, engine: Any, reference: dict[str, Any], step: int, moved: list[float]
) -> AbstractContextManager[None]:
    """Tokens go where the reference sent them in this step, if the case says so."""
    if not case.routed_alike:
        return nullcontext()
    return routed_as(engine.module, reference["routing"][step - 1], moved)


def read_step(engine: Any, batch: Any, case: Case) -> tuple[float, float]:
    """One step: (loss over all ranks, gradient norm)."""
    import torch.distributed as dist

    result = engine.train_step(batch, case.config()["lr"])
    loss = result.loss.clone().double()
    dist.all_reduce(loss)
    return float(loss), float(result.grad_norm)


def _furthest(left: list[float], right: list[float]) -> float:
    apart = [abs(a - b) for a, b in zip(left, right, strict=True)]
    return max(apart) if all(value == value for value in apart) else float("inf")


def _errors(gradients: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """Each parameter's distance from the reference, relative to its own norm."""
    import torch

    whole = torch.stack([g.norm() for g in reference.values()]).norm()
    assert whole > 0
    errors = {}
    for name, gradient in gradients.items():
        expected = reference[name if name in reference else EMBEDDING]
        apart = float((gradient - expected).norm() / (expected.norm() + FLOOR * whole))
        errors[name] = apart if apart == apart else float("inf")
    return errors


def _deepspeed_errors(case: Case, folders: Folders, reference: dict[str, Any]) -> dict[str, float]:
    """DeepSpeed keeps gradients in its own flat partitions: they are read off a step of SGD, on rank 0."""
    sgd = {"optimizer": "sgd", "lr": SGD_RATE, "weight_decay": 0.0}
    engine, next_batch, _ = build(case, folders.checkpoints, **sgd)
    before = {name: value.clone() for name, value in engine.gather_state().items()}
    with _routed(case, engine, reference, 1, []):
        engine.train_step(next_batch(1), SGD_RATE)
    after = engine.gather_state()
    engine.close()
    found = _without_prefix({name: (before[name] - after[name]) / SGD_RATE for name in after})
    return _errors({n: g for n, g in found.items() if n in reference["gradients"]}, reference["gradients"])


@contextmanager
def _gradients(engine: Any, found: dict[str, Any]) -> Iterator[None]:
    """Fills `found` with {name: whole gradient} of this rank's parameters, as the optimizer is about to apply them."""
    from torch.distributed.tensor import DTensor
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    modules = [stage.module for stage in getattr(engine, "stages", [])] or [engine.module]
    names = {id(parameter): name for module in modules for name, parameter in module.named_parameters()}

    def read(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if isinstance(gradient, DTensor):
                    gradient = gradient.full_tensor()
                if gradient is not None:
                    found[names[id(parameter)]] = gradient.detach().clone()

    handle = register_optimizer_step_pre_hook(read)
    try:
        yield
    finally:
        handle.remove()


def _without_prefix(tensors: dict[str, Any]) -> dict[str, Any]:
    """By the names of Hugging Face's model, whatever wraps it."""
    named = {}
    for name, tensor in tensors.items():
        short = name.partition("hf.")[2].replace("_checkpoint_wrapped_module.", "")
        named[short or name] = tensor.detach()
    return named
