"""LoRA under tensor parallelism: an adapter B A beside a matrix that tp ranks share.

    W by columns (q k v gate up)    A whole, B by columns: W's output and B's are the same part
    W by rows (o down)              A by rows too, its small output is added up; B whole

An A or B that is whole has, on each tp rank, a part of its gradient's sum; DTensor calls it Partial, and fully_shard
adds the parts up before it reduces over the data ranks. Other targets are refused in trainer/layout/layout_rules.py.
"""

from __future__ import annotations

from typing import Any

from peft.tuners.lora import LoraLayer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from trainer.parallel.replication import replicate_parameters

Plan = dict[str, ParallelStyle]


def plan_column(name: str, linear: nn.Module) -> Plan:
    """A matrix cut by columns, whose input is whole on every tp rank."""
    if not isinstance(linear, LoraLayer):
        return {name: ColwiseParallel()}
    plan: Plan = {f"{name}.base_layer": ColwiseParallel()}
    for adapter in linear.lora_A:
        plan[f"{name}.lora_A.{adapter}"] = WholeLinear(Replicate(), use_local_output=False)
        plan[f"{name}.lora_B.{adapter}"] = ColwiseParallel()
    return plan


def plan_row(name: str, linear: nn.Module, stream: Placement) -> Plan:
    """A matrix cut by rows, whose output becomes the stream between the layers."""
    if not isinstance(linear, LoraLayer):
        return {name: RowwiseParallel(output_layouts=stream)}
    plan: Plan = {f"{name}.base_layer": RowwiseParallel(output_layouts=stream)}
    for adapter in linear.lora_A:
        plan[f"{name}.lora_A.{adapter}"] = RowwiseParallel(output_layouts=stream)
        plan[f"{name}.lora_B.{adapter}"] = WholeLinear(stream, use_local_output=True)
    return plan


class WholeLinear(ParallelStyle):
    """A linear layer that every tp rank has whole.

    Args:
        layout: of a plain tensor that comes in.
        use_local_output: gives a plain tensor.
    """

    def __init__(self, layout: Placement, *, use_local_output: bool) -> None:
        super().__init__()
        self.layout = layout
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        replicate_parameters(module, device_mesh)

        def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[DTensor]:
            given = args[0]
            if isinstance(given, DTensor):
                return (given,)
            return (DTensor.from_local(given, device_mesh, [self.layout], run_check=False),)

        module.register_forward_pre_hook(enter)
        if self.use_local_output:
            module.register_forward_hook(lambda _, args, output: output.to_local())
        return module
