"""Tensor parallelism (Megatron-LM, arXiv 1909.08053) and, on the same ranks, sequence parallelism (arXiv 2205.05198).

    q k v gate up    by columns  ─▶  each rank some heads, some neurons
    o down           by rows     ─▶  partial sums, summed over tp
    embedding, head  by words    ─▶  the loss is computed on parts of the vocabulary
    norms, router    whole on each rank

`apply_tensor` splits a stage by `build_plan`. The stream between the layers is a plain tensor: [rows, seq, hidden], or
with sequence parallelism [rows, seq/tp, hidden]. Pipeline stages send the same tensor. The forward
pass runs 2 all-reduces of it per layer, or 2 all-gathers and 2 reduce-scatters. The backward pass runs as many.

LoRA adds an adapter B A to a matrix that tp ranks share.

    W by columns (q k v gate up)    A whole, B by columns: W's output and B's are the same part
    W by rows (o down)              A by rows too, its small output is summed over tp; B whole

Each tp rank has only a part of the gradient of a whole A or B. DTensor calls it Partial. fully_shard sums the parts
before it reduces over the data ranks. stratlab_spec/layout/layout_rules.py rejects other targets.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer.models.mixed_precision import ProductEmbedding
from trainer.parallel.collectives import wait_for
from trainer.parallel.pipeline import layers_of


def replicate_parameters(module: nn.Module, mesh: DeviceMesh) -> None:
    """Turn each parameter of the module itself into a DTensor that is whole on every rank of `mesh`, in place."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        whole = DTensor.from_local(parameter.data, mesh, [Replicate()], run_check=False)
        module.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))


def plan_column(name: str, linear: nn.Module) -> Plan:
    """Plan a matrix split by columns; its input is whole on every tp rank."""
    if not isinstance(linear, LoraLayer):
        return {name: ColwiseParallel()}
    plan: Plan = {f"{name}.base_layer": ColwiseParallel()}
    for adapter in linear.lora_A:
        plan[f"{name}.lora_A.{adapter}"] = Whole(use_local_output=False)
        plan[f"{name}.lora_B.{adapter}"] = ColwiseParallel()
    return plan


def plan_row(name: str, linear: nn.Module, stream: Placement) -> Plan:
    """Plan a matrix split by rows; its output becomes the stream between the layers."""
    if not isinstance(linear, LoraLayer):
        return {name: RowwiseParallel(output_layouts=stream)}
    plan: Plan = {f"{name}.base_layer": RowwiseParallel(output_layouts=stream)}
    for adapter in linear.lora_A:
        plan[f"{name}.lora_A.{adapter}"] = RowwiseParallel(output_layouts=stream)
        plan[f"{name}.lora_B.{adapter}"] = Whole(stream)
    return plan


class Whole(ParallelStyle):
    """A linear layer or norm that every tp rank holds whole.

    Args:
        layout: of a plain input tensor; by default all tp ranks have the same input.
        use_local_output: return a plain tensor.
    """

    def __init__(self, layout: Placement | None = None, *, use_local_output: bool = True) -> None:
        super().__init__()
        self.layout = layout or Replicate()
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        replicate_parameters(module, device_mesh)

        def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[DTensor]:
            if isinstance(args[0], DTensor):
                return (args[0],)
            return (DTensor.from_local(args[0], device_mesh, [self.layout], run_check=False),)

        module.register_forward_pre_hook(enter)
        if self.use_local_output:
            module.register_forward_hook(lambda _, args, output: output.to_local())
        return module


Plan = dict[str, ParallelStyle]


def apply_tensor(decoder: Any, tp: DeviceMesh, sequence_parallel: bool) -> None:
    """Split the parameters of a stage over `tp`, in place; an axis of size one changes nothing."""
    if tp.size() == 1:
        return
    trained = {name: p.requires_grad for name, p in decoder.named_parameters()}
    embedding, head = decoder.embedding, decoder.head
    tied = embedding is not None and head is not None and head.weight is embedding.weight
    if hasattr(embedding, "embed_scale"):  # a sum over tp is scaled once it is complete
        del embedding.embed_scale
        embedding.__class__ = ProductEmbedding
    parallelize_module(decoder.hf, tp, build_plan(decoder, sequence_parallel))
    if tied:  # split the same way, but in two copies
        head.weight = embedding.weight
    for name, parameter in decoder.named_parameters():  # some styles create trainable parameters
        parameter.requires_grad_(trained[name])


def build_plan(decoder: Any, sequence_parallel: bool) -> Plan:
    """Return the split of each module of `decoder.hf` in this stage; the layers follow transformers' tp plan."""
    stream: Placement = Shard(1) if sequence_parallel else Replicate()
    plan: Plan = {}
    if decoder.embedding is not None:
        plan[decoder.embedding_name] = SplitEmbedding(input_layouts=Replicate(), output_layouts=stream)
    theirs = {
        name.removeprefix("layers.*."): style for name, style in decoder.hf.config.base_model_tp_plan.items()
    }
    for index, layer in layers_of(decoder).items():
        plan |= _plan_layer(f"{decoder.layers_name}.{index}.", layer, theirs, stream)
    if decoder.head is not None:
        plan["model.norm"] = _plan_norm(stream)
        plan[decoder.head_name] = SplitHead(input_layouts=stream)
    return plan


def _plan_norm(stream: Placement) -> ParallelStyle:
    return Whole() if stream.is_replicate() else SequenceParallel(use_local_output=True)


def _plan_layer(at: str, layer: nn.Module, theirs: dict[str, str], stream: Placement) -> Plan:
    """`theirs`: base_model_tp_plan of this family, without the layers' names."""
    has_experts = hasattr(layer.mlp, "experts")
    plan: Plan = {f"{at}{name}": _plan_norm(stream) for name, _ in layer.named_children() if "norm" in name}
    # gathered once for q, k and v; their gradients are summed before the reduction
    plan[f"{at}self_attn"] = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": stream},
        desired_input_kwarg_layouts={"hidden_states": Replicate()},
    )
    if has_experts:
        assert not stream.is_replicate(), (
            "experts with tp need sequence parallelism: tp ranks send different tokens"
        )
        plan[f"{at}mlp.gate"] = WholeWeight()
    else:
        plan[f"{at}mlp"] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    for name, style in theirs.items():
        if name.startswith("mlp.") and has_experts:
            continue
        module = layer.get_submodule(name)
        if style == "colwise":
            plan |= plan_column(f"{at}{name}", module)
        elif style == "rowwise":
            plan |= plan_row(f"{at}{name}", module, stream)
        else:  # norms of q and k, each rank with its own heads
            assert style == "replicated_with_grad_allreduce", style
            plan[f"{at}{name}"] = WholeWeight()
    return plan


class SplitEmbedding(RowwiseParallel):
    """An embedding split by words; its sum over tp is complete when forward returns.

    An unfinished sum is a tensor of another class. A compiled layer would read its content without its history, and the
    embedding would silently lack its gradient from the layers (torch 2.13, AOTAutograd's runtime wrappers; not 2.11).
    """

    @staticmethod
    def _prepare_output_fn(layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        stream = wait_for(RowwiseParallel._prepare_output_fn(layouts, use_local_output, mod, outputs, mesh))
        scale = getattr(mod, "scalar_embed_scale", None)
        return stream if scale is None else stream * float(torch.tensor(scale, dtype=stream.dtype))


class SplitHead(ColwiseParallel):
    """A head split by words; its output is the loss, equal on all tp ranks."""

    _prepare_output_fn = staticmethod(lambda output_layouts, use_local_output, mod, outputs, mesh: outputs)


class WholeWeight(ParallelStyle):
    """A router or norm with one weight for the tokens or heads of all tp ranks: each gradient is a part of the sum."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        replicate_parameters(module, device_mesh)
        forward = module.forward

        def forward_locally(*args: Any, **kwargs: Any) -> Any:
            held = dict(module._parameters)
            for name, parameter in held.items():
                assert isinstance(parameter, DTensor)
                local: Any = parameter.to_local(grad_placements=[Partial()])
                module._parameters[name] = local
            try:
                return forward(*args, **kwargs)
            finally:
                module._parameters.update(held)

        module.forward = forward_locally
        return module
