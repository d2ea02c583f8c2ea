"""Tensor parallelism (Megatron-LM, arXiv 1909.08053) and, on the same ranks, sequence parallelism (arXiv 2205.05198).

    q k v gate up    by columns  ─▶  each rank some heads, some neurons
    o down           by rows     ─▶  partial sums, added up over tp
    embedding, head  by words    ─▶  the loss is computed on parts of the vocabulary
    norms, router    whole on each rank

`apply_tensor` splits a stage by `build_plan`. The stream between the layers is a plain tensor: [rows, seq, hidden], or
with sequence parallelism [rows, seq/tp, hidden]. Pipeline stages send the same tensor. Forward takes 2 all-reduces of
it per layer, or 2 all-gathers and 2 reduce-scatters; backward takes the same.

LoRA adds an adapter B A to a matrix that tp ranks share.

    W by columns (q k v gate up)    A whole, B by columns: W's output and B's are the same part
    W by rows (o down)              A by rows too, its small output is added up; B whole

On each tp rank a whole A or B has a part of its gradient's sum. DTensor calls it Partial, and fully_shard adds the
parts up before it reduces over the data ranks. stratlab_spec/layout/layout_rules.py rejects other targets.
"""

from __future__ import annotations

from typing import Any

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

from trainer.parallel.pipeline import layers_of
from trainer.parallel.process_groups import wait_for


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


def apply_tensor(decoder: nn.Module, tp: DeviceMesh, sequence_parallel: bool) -> None:
    """Split the parameters of a stage over `tp`, in place; an axis of size one changes nothing."""
    if tp.size() == 1:
        return
    trained = {name: p.requires_grad for name, p in decoder.named_parameters()}
    core, head = decoder.hf.model, decoder.hf.lm_head
    tied = core.embed_tokens is not None and head is not None and head.weight is core.embed_tokens.weight
    parallelize_module(decoder.hf, tp, build_plan(decoder, sequence_parallel))
    if tied:  # split the same way, but in two copies
        head.weight = core.embed_tokens.weight
    for name, parameter in decoder.named_parameters():  # some styles create trainable parameters
        parameter.requires_grad_(trained[name])


def build_plan(decoder: nn.Module, sequence_parallel: bool) -> Plan:
    """Return the split of each module of `decoder.hf` that this stage has."""
    core = decoder.hf.model
    stream: Placement = Shard(1) if sequence_parallel else Replicate()
    plan: Plan = {}
    if core.embed_tokens is not None:
        plan["model.embed_tokens"] = SplitEmbedding(input_layouts=Replicate(), output_layouts=stream)
    for index, layer in layers_of(decoder).items():
        plan |= _plan_layer(f"model.layers.{index}.", layer, stream)
    if decoder.hf.lm_head is not None:
        plan["model.norm"] = SequenceParallel() if sequence_parallel else Whole()
        plan["lm_head"] = SplitHead(input_layouts=stream)
    return plan


def _plan_layer(at: str, layer: nn.Module, stream: Placement) -> Plan:
    has_experts = hasattr(layer.mlp, "experts")
    split = not stream.is_replicate()
    plan: Plan = {f"{at}input_layernorm": SequenceParallel() if split else Whole()}
    after = SequenceParallel(use_local_output=has_experts) if split else Whole()
    plan[f"{at}post_attention_layernorm"] = after
    # gathered once for q, k and v; their gradients are added up before the reduction
    plan[f"{at}self_attn"] = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": stream},
        desired_input_kwarg_layouts={"hidden_states": Replicate()},
    )
    for name in ("q_proj", "k_proj", "v_proj"):
        plan |= plan_column(f"{at}self_attn.{name}", getattr(layer.self_attn, name))
    plan |= plan_row(f"{at}self_attn.o_proj", layer.self_attn.o_proj, stream)
    for name in ("q_norm", "k_norm"):  # of [rows, seq, heads of this rank, dim], each head separately
        if hasattr(layer.self_attn, name):
            plan[f"{at}self_attn.{name}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    if has_experts:
        assert split, "experts with tp need sequence parallelism: otherwise tp ranks send the same tokens"
        plan[f"{at}mlp.gate"] = WholeRouter()
        return plan
    plan[f"{at}mlp"] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    for name in ("gate_proj", "up_proj"):
        plan |= plan_column(f"{at}mlp.{name}", getattr(layer.mlp, name))
    return plan | plan_row(f"{at}mlp.down_proj", layer.mlp.down_proj, stream)


class SplitEmbedding(RowwiseParallel):
    """An embedding split by words; its sum over tp is complete when forward returns.

    An unfinished sum is a tensor of another class. A compiled layer would read its content without its history, and the
    embedding would silently get no gradient from the layers (torch 2.13, AOTAutograd's runtime wrappers; not 2.11).
    """

    @staticmethod
    def _prepare_output_fn(layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        stream = RowwiseParallel._prepare_output_fn(layouts, use_local_output, mod, outputs, mesh)
        return wait_for(stream)


class SplitHead(ColwiseParallel):
    """A head split by words; its output is the loss, equal on all tp ranks."""

    _prepare_output_fn = staticmethod(lambda output_layouts, use_local_output, mod, outputs, mesh: outputs)


class WholeRouter(ParallelStyle):
    """A router whose tp ranks route different tokens with the same weight, so each gradient is a part of the sum."""

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
