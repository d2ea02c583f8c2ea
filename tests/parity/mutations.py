"""Deliberate faults, each of a kind that has been published as a result. The suite fails if one is not caught."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.parity.cases import Case


@dataclass(frozen=True)
class Mutation:
    """A fault and the case that has to notice it."""

    name: str
    case: Case
    plant: Callable[[], AbstractContextManager[Any]]


def _averaged_gradients() -> AbstractContextManager[Any]:
    from torch.distributed.fsdp import FSDPModule

    return mock.patch.object(FSDPModule, "set_gradient_divide_factor", lambda *_: None)


def _mean_of_the_rank() -> AbstractContextManager[Any]:
    from trainer.engines.torch_engine import TorchEngine

    whole = TorchEngine.train_step

    def local(self: Any, batch: Any, lr: float) -> Any:
        return whole(self, dataclasses.replace(batch, global_labels=len(batch.micro[0][1])), lr)

    return mock.patch.object(TorchEngine, "train_step", local)


def _clipping_per_rank() -> AbstractContextManager[Any]:
    import torch

    from trainer.engines import torch_engine as engine
    from trainer.measuring.observation import local_part

    def local(gradients: Any, device_type: str) -> Any:
        return torch.nn.utils.get_total_norm([local_part(gradient) for gradient in gradients])

    return mock.patch.object(engine, "whole_norm", local)


def _order_by_world_size() -> AbstractContextManager[Any]:
    from trainer.data.order import SampleOrder

    whole = SampleOrder.batch

    def shifted(self: Any, step: int, size: int) -> Any:
        return whole(self, step + int(os.environ["WORLD_SIZE"]) - 1, size)

    return mock.patch.object(SampleOrder, "batch", shifted)


def _state_in_bf16() -> AbstractContextManager[Any]:
    import torch

    whole = torch.optim.AdamW.step

    def lossy(self: Any, *arguments: Any) -> Any:
        result = whole(self, *arguments)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].to(torch.bfloat16))
        return result

    return mock.patch.object(torch.optim.AdamW, "step", lossy)


def _accumulation_not_scaled() -> AbstractContextManager[Any]:
    from trainer.engines.zero_engine import DeepSpeedEngine

    whole = DeepSpeedEngine.__init__

    def forgetful(self: Any, *arguments: Any) -> None:
        whole(self, *arguments)
        self._loss_factor /= self._engine.gradient_accumulation_steps()

    return mock.patch.object(DeepSpeedEngine, "__init__", forgetful)


def _never_synchronised() -> AbstractContextManager[Any]:
    from trainer.strategies import ddp

    whole = ddp.TorchEngine

    def deaf(*arguments: Any, **options: Any) -> Any:
        sync = options.pop("apply_sync")
        return whole(*arguments, **options, apply_sync=lambda _: sync(False))

    return mock.patch.object(ddp, "TorchEngine", deaf)


def _last_micro_batch_only() -> AbstractContextManager[Any]:
    from trainer.engines.torch_engine import TorchEngine

    whole = TorchEngine.train_step

    def forgetful(self: Any, batch: Any, lr: float) -> Any:
        return whole(self, dataclasses.replace(batch, micro=batch.micro[-1:]), lr)

    return mock.patch.object(TorchEngine, "train_step", forgetful)


def _shards_overwritten() -> AbstractContextManager[Any]:
    from trainer.strategies import sharding

    whole = sharding.apply_sync

    def forgetful(model: Any, sharded: bool, completes_step: bool) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        whole(model, sharded, completes_step)

    return mock.patch.object(sharding, "apply_sync", forgetful)


def _reduced_too_early() -> AbstractContextManager[Any]:
    from trainer.strategies import sharding

    whole = sharding.apply_sync
    return mock.patch.object(
        sharding, "apply_sync", lambda model, sharded, completes: whole(model, sharded, not completes)
    )


def _buckets_not_emptied() -> AbstractContextManager[Any]:
    import torch

    whole = torch.optim.Optimizer.zero_grad

    def lazy(self: Any, set_to_none: bool = True) -> None:
        if set_to_none:
            whole(self, set_to_none)

    return mock.patch.object(torch.optim.Optimizer, "zero_grad", lazy)


def _mean_of_the_nodes() -> AbstractContextManager[Any]:
    """What DeepSpeed's own qgz does: sums of nodes, divided by the nodes."""
    from trainer.engines.quantized_reduction import QuantizedReduction

    whole = QuantizedReduction._reduce
    return mock.patch.object(
        QuantizedReduction,
        "_reduce",
        lambda self, parameters: [part * self._per_node for part in whole(self, parameters)],
    )


def _one_scale_for_all() -> AbstractContextManager[Any]:
    """Every block in the unit of the first one."""
    from trainer.engines import quantized_gathers

    whole = quantized_gathers.dequantize
    return mock.patch.object(
        quantized_gathers,
        "dequantize",
        lambda numbers, scales, bits: whole(numbers, scales.reshape(-1)[:1].expand(scales.numel()), bits),
    )


def _another_temperature() -> AbstractContextManager[Any]:
    from trainer.models.teacher import Teacher

    whole = Teacher.__init__

    def warmer(self: Any, model: Any, temperature: float, *others: Any) -> None:
        whole(self, model, 1.05 * temperature, *others)

    return mock.patch.object(Teacher, "__init__", warmer)


def _another_teacher() -> AbstractContextManager[Any]:
    from tests.parity import teachers

    return mock.patch.object(teachers, "SEED", teachers.SEED + 1)


def _temperature_of_the_gradients_left_out() -> AbstractContextManager[Any]:
    """Without T^2: whoever raises the temperature then learns the less from the teacher."""
    from trainer.models import learner

    whole = learner.sum_distances
    return mock.patch.object(learner, "sum_distances", lambda *given: whole(*given) / given[2] ** 2)


def _taught_by_its_own_samples_alone() -> AbstractContextManager[Any]:
    """Every sample is taught what the teacher says of the rank's first one."""
    from trainer.models.teacher import Teacher

    whole = Teacher.answer

    def first(self: Any, images: Any) -> Any:
        return whole(self, images[:1].expand_as(images))

    return mock.patch.object(Teacher, "answer", first)


MUTATIONS = (
    Mutation(
        "gradients averaged instead of summed", Case("fsdp", "vit_tiny", 2, "plain"), _averaged_gradients
    ),
    Mutation("mean over the rank's own samples", Case("ddp", "vit_tiny", 2, "plain"), _mean_of_the_rank),
    Mutation("clipping by each rank's own norm", Case("fsdp", "vit_tiny", 2, "clipped"), _clipping_per_rank),
    Mutation("order of samples depends on world size", Case("ddp", "cnn", 2, "plain"), _order_by_world_size),
    Mutation("optimizer state in bf16", Case("ddp", "cnn", 2, "adamw"), _state_in_bf16),
    Mutation(
        "accumulated gradients not scaled", Case("zero2", "cnn", 2, "accumulated"), _accumulation_not_scaled
    ),
    Mutation("gradients never synchronised", Case("ddp", "cnn", 2, "plain"), _never_synchronised),
    Mutation(
        "only the last micro-batch counts", Case("fsdp", "cnn", 2, "accumulated"), _last_micro_batch_only
    ),
    Mutation(
        "shards of earlier micro-batches overwritten",
        Case("fsdp", "cnn", 2, "accumulated"),
        _shards_overwritten,
    ),
    Mutation(
        "whole gradients reduced before the last micro-batch",
        Case("fsdp", "cnn", 2, "whole gradients"),
        _reduced_too_early,
    ),
    Mutation(
        "replicas reduce before the last micro-batch", Case("hsdp", "cnn", 4, "all three"), _reduced_too_early
    ),
    Mutation(
        "gradients of the step before stay in ddp's buckets",
        Case("ddp", "cnn", 2, "accumulated"),
        _buckets_not_emptied,
    ),
    Mutation("a temperature 5 % too high", Case("fsdp", "vit_tiny", 2, "distilled"), _another_temperature),
    Mutation("a swapped teacher", Case("zero2", "vit_tiny", 2, "distilled"), _another_teacher),
    Mutation(
        "distance to the teacher without T^2",
        Case("ddp", "cnn", 2, "distilled"),
        _temperature_of_the_gradients_left_out,
    ),
    Mutation(
        "taught what belongs to another image",
        Case("ddp", "cnn", 2, "distilled"),
        _taught_by_its_own_samples_alone,
    ),
    Mutation("qgz divides by the nodes", Case("zeropp", "vit_tiny", 4, "qgz"), _mean_of_the_nodes),
    Mutation("qwz with one scale for all blocks", Case("zeropp", "vit_tiny", 2, "qwz"), _one_scale_for_all),
)
