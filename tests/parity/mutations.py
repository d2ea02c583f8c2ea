"""Deliberate faults, each of a kind that has been published as a result. The suite fails if one is not caught."""

import os
from dataclasses import replace
from typing import Any

from tests.parity.cases import Case
from tests.parity.suite import AVERAGED, WARMER, Fault

STEP = "trainer.engines.torch_engine:TorchEngine.train_step"
SYNC = "trainer.strategies.fsdp:apply_sync"


def _norm_of_the_rank(whole: Any) -> Any:
    import torch

    from trainer.measuring.held_tensors import local_part

    return lambda gradients, *_: torch.nn.utils.get_total_norm([local_part(each) for each in gradients])


def _state_in_bf16(whole: Any) -> Any:
    import torch

    def lossy(self: Any, *given: Any) -> Any:
        result = whole(self, *given)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].to(torch.bfloat16))
        return result

    return lossy


def _accumulation_not_scaled(whole: Any) -> Any:
    def forgetful(self: Any, *given: Any) -> None:
        whole(self, *given)
        self._loss_factor /= self._engine.gradient_accumulation_steps()

    return forgetful


def _never_synchronised(whole: Any) -> Any:
    def deaf(*given: Any, apply_sync: Any, **options: Any) -> Any:
        return whole(*given, **options, apply_sync=lambda _: apply_sync(False))

    return deaf


def _shards_overwritten(whole: Any) -> Any:
    def forgetful(model: Any, sharded: bool, completes_step: bool) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        whole(model, sharded, completes_step)

    return forgetful


def _reduced_too_early(whole: Any) -> Any:
    return lambda model, sharded, completes_step: whole(model, sharded, not completes_step)


def _buckets_not_emptied(whole: Any) -> Any:
    return lambda self, set_to_none=True: whole(self, set_to_none) if set_to_none else None


MUTATIONS = (
    Fault("gradients averaged instead of summed", Case("fsdp", "vit_tiny", 2, "plain"), *AVERAGED),
    Fault(
        "mean over the rank's own samples",
        Case("ddp", "vit_tiny", 2, "plain"),
        STEP,
        lambda whole: (
            lambda self, batch, lr: whole(self, replace(batch, global_labels=len(batch.micro[0][1])), lr)
        ),
    ),
    Fault(
        "clipping by each rank's own norm", Case("fsdp", "vit_tiny", 2, "clipped"),
        "trainer.engines.torch_engine:whole_norm", _norm_of_the_rank,
    ),
    Fault(
        "order of samples depends on world size",
        Case("ddp", "cnn", 2, "plain"),
        "trainer.data.batches:SampleOrder.batch",
        lambda whole: lambda self, step, size: whole(self, step + int(os.environ["WORLD_SIZE"]) - 1, size),
    ),
    Fault(
        "optimizer state in bf16", Case("ddp", "cnn", 2, "adamw"), "torch.optim:AdamW.step", _state_in_bf16
    ),
    Fault(
        "accumulated gradients not scaled", Case("zero2", "cnn", 2, "accumulated"),
        "trainer.strategies.zero:DeepSpeedEngine.__init__", _accumulation_not_scaled,
    ),
    Fault(
        "gradients never synchronised", Case("ddp", "cnn", 2, "plain"),
        "trainer.strategies.ddp:TorchEngine", _never_synchronised,
    ),
    Fault(
        "only the last micro-batch counts", Case("fsdp", "cnn", 2, "accumulated"), STEP,
        lambda whole: lambda self, batch, lr: whole(self, replace(batch, micro=batch.micro[-1:]), lr),
    ),
    Fault(
        "shards of earlier micro-batches overwritten", Case("fsdp", "cnn", 2, "accumulated"), SYNC,
        _shards_overwritten,
    ),
    Fault(
        "whole gradients reduced before the last micro-batch",
        Case("fsdp", "cnn", 2, "whole gradients"), SYNC, _reduced_too_early,
    ),
    Fault(
        "replicas reduce before the last micro-batch", Case("hsdp", "cnn", 4, "all three"), SYNC,
        _reduced_too_early,
    ),
    Fault(
        "gradients of the step before stay in ddp's buckets", Case("ddp", "cnn", 2, "accumulated"),
        "torch.optim:Optimizer.zero_grad", _buckets_not_emptied,
    ),
    Fault("a temperature 5 % too high", Case("fsdp", "vit_tiny", 2, "distilled"), *WARMER),
    Fault(
        "a swapped teacher", Case("zero2", "vit_tiny", 2, "distilled"), "tests.parity.teachers:SEED",
        lambda whole: whole + 1,
    ),
    Fault(
        "distance to the teacher without T^2",  # whoever raises the temperature then learns the less
        Case("ddp", "cnn", 2, "distilled"),
        "trainer.models.model_with_loss:sum_distances",
        lambda whole: lambda *given: whole(*given) / given[2] ** 2,
    ),
    Fault(
        "taught what belongs to another image", Case("ddp", "cnn", 2, "distilled"),
        "trainer.models.teacher:Teacher.answer",
        lambda whole: lambda self, images: whole(self, images[:1].expand_as(images)),
    ),
    Fault(
        "qgz divides by the nodes",  # what DeepSpeed's own qgz does
        Case("zeropp", "vit_tiny", 4, "qgz"),
        "trainer.engines.quantization:QuantizedReduction._reduce",
        lambda whole: lambda self, given: [part * self._per_node for part in whole(self, given)],
    ),
    Fault(
        "qwz with one scale for all blocks",
        Case("zeropp", "vit_tiny", 2, "qwz"),
        "trainer.engines.quantization:dequantize",
        lambda whole: (
            lambda numbers, scales, bits: whole(numbers, scales.reshape(-1)[:1].expand(scales.numel()), bits)
        ),
    ),
)  # fmt: skip
