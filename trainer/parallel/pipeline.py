"""Pipeline parallelism: each rank holds consecutive layers and sends the stream between layers to the next rank.

    rank 0  layers 0-17    F0 F1    B0 F2 B1 ...       1f1b: after the start-up one forward, one backward
    rank 1  layers 18-35      F0 B0 F1 B1 ...          (arXiv 2104.04473); gpipe: all forward, then all backward

interleaved1f1b gives each rank two shorter runs of layers and so halves the bubble. Zero-bubble schedules are not
supported: with fully_shard they lose gradients silently (torch 2.13). Every rank reads positions and documents from the
data; they are never sent. All micro-batches of a run have one shape.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from stratlab_spec.models.decoder import split_layers
from trainer.measuring.phases import Phases

SCHEDULES: dict[str, Any] = {
    "1f1b": Schedule1F1B,
    "gpipe": ScheduleGPipe,
    "interleaved1f1b": ScheduleInterleaved1F1B,
}


class StageLayers(nn.ModuleDict):
    """A stage's layers under their numbers in the whole decoder; for transformers' forward a list."""

    def __iter__(self) -> Any:
        return iter(self.values())

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, slice) else super().__getitem__(key)


def apply_stage(decoder: Any, index: int, stages: int) -> None:
    """Keep only one stage's parts of `decoder`, under their old names.

    transformers' own forward runs the remaining parts, in the order of its base_model_pp_plan: embed_tokens, layers,
    norm. The inputs of the decoder's forward become (ids, or the previous stage's stream; positions; documents;
    labels; with a teacher whole rows, used only by the last stage). It returns the stream, or at the end the sum of
    the losses.
    """
    decoder.forward = partial(_forward, decoder)
    if stages == 1:
        return
    core = decoder.base
    mine = split_layers(len(core.layers), stages)[index]
    core.layers = StageLayers({str(layer): core.layers[layer] for layer in mine})
    core.config = copy.copy(core.config)
    if kinds := getattr(core.config, "layer_types", None):
        core.config.layer_types = [kinds[layer] for layer in mine]
    if index > 0:
        core.embed_tokens = None
    if index < stages - 1:
        core.norm, decoder.hf.lm_head = nn.Identity(), None


def layers_of(decoder: Any) -> dict[str, nn.Module]:
    """Return the layers of a stage by their number in the whole decoder."""
    return dict(decoder.hf.get_submodule(decoder.layers_name).named_children())


def _forward(
    decoder: Any,
    entering: Tensor,
    positions: Tensor,
    documents: Tensor | None = None,
    labels: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    taught = None
    if rows is not None and decoder.head is not None and decoder.training:
        taught = decoder.teacher.explain(rows, decoder.columns)  # before the student keeps activations
    with decoder.autocast(entering.device.type):
        packing = None if documents is None else decoder.pack(documents, next(decoder.parameters()).dtype)
        name = "inputs_embeds" if decoder.embedding is None else "input_ids"
        stream: Tensor = decoder.run_base(positions, packing, **{name: entering})
        if decoder.head is None:
            return stream
        loss: Tensor = decoder.head(stream, labels=labels, taught=taught)
        return loss


class LabelledStage(PipelineStage):
    """A stage whose work on each micro-batch counts as forward or backward; waiting for its neighbours does not."""

    def __init__(self, phases: Phases, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phases = phases

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._phases.forward:
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        with self._phases.backward:
            super().backward_one_chunk(*args, **kwargs)

    def perform_reduce_grad(self, *args: Any, **kwargs: Any) -> None:
        with self._phases.backward:
            super().perform_reduce_grad(*args, **kwargs)


def build_schedule(name: str, stages: list[LabelledStage], micro_batches: int, share: Any) -> Any:
    """Build one rank's schedule; `share(loss, labels)` returns the loss as a part of the step's mean.

    The schedule sums the gradients of all micro-batches.
    """
    given: Any = stages if name == "interleaved1f1b" else stages[0]
    return SCHEDULES[name](given, n_microbatches=micro_batches, loss_fn=share, scale_grads=False)


def build_tied_group(peers: list[list[int]]) -> dist.ProcessGroup:
    """Build this rank's group of (first, last) stage, which hold the same embedding; collective.

    Args:
        peers: ranks along the pipeline, for every place on the other axes.
    """
    mine = None
    for ranks in peers:  # collective: every rank creates every group
        ends = [ranks[0], ranks[-1]]
        group = dist.new_group(ends, group_desc="tied")
        if dist.get_rank() in ends:
            mine = group
    return mine


def pass_through(
    modules: dict[int, nn.Module], stages: int, entering: Tensor, stream: Tensor, pp: Any, **known: Any
) -> Tensor | None:
    """Run one micro-batch forward through all stages and return the loss on the last stage, elsewhere None; collective.

    Unlike torch's schedules it takes batches of any shape at any time. Consecutive batches overlap.

    Args:
        modules: this rank's stages by index.
        entering: token ids.
        stream: an empty tensor with the shape and element type that stages send.
    """
    group, ranks, rank = pp.get_group(), pp.size(), pp.get_local_rank()
    output = None
    for index, module in sorted(modules.items()):
        given = entering
        if index > 0:
            given = torch.empty_like(stream)
            dist.recv(given, group=group, group_src=(index - 1) % ranks)
        output = module(given, **known)
        if index < stages - 1:
            assert rank == index % ranks
            dist.send(output.contiguous(), group=group, group_dst=(index + 1) % ranks)
            output = None
    return output
