"""Context parallelism: cp ranks hold consecutive parts of each sequence and communicate only in the attention.

    ulysses    exchange: [rows, heads, seq/cp] -> [rows, heads/cp, seq], attend, exchange back (arXiv 2309.14509)
               3 all-to-all before attention, 1 after; cp must divide the heads of a tp rank; few key heads are repeated
    allgather  queries stay, keys and values of all ranks are gathered (Llama 3, arXiv 2407.21783, 3.3.2)
               any number of heads; the rank with the end of the sequence computes most

Every rank knows the document start of each token in the whole packed row, so ranks do not send masks. With allgather a
rank's queries are a part of the row. trainer/models/packing.py builds the packing for that part, also for a row with a
single document.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from transformers import AttentionInterface

from trainer.models.mixed_precision import ATTENTION
from trainer.models.packing import Packing, causal_attention, repeat_heads
from trainer.parallel.collectives import all_to_all, gather


def apply_context(decoder: Any, layers: list[nn.Module], cp: DeviceMesh, kind: str) -> None:
    """Replace the attention of `layers`, in place; with one cp rank the decoder keeps its own.

    Args:
        kind: ulysses or allgather.
    """
    if cp.size() == 1:
        return
    decoder.columns = (cp.get_local_rank(), cp.size())
    for layer in layers:
        for module in layer.modules():
            if type(module).__name__.endswith(ATTENTION):
                module.context_group = cp.get_group()
    if kind == "allgather":
        decoder.part = (cp.get_local_rank(), cp.size())
    # transformers does not build a mask for this name
    for config in (decoder.hf.config, decoder.base.config):  # a stage has a copy
        config._attn_implementation = f"stratlab_{kind}"


def split_context(whole: Tensor, cp: DeviceMesh) -> Tensor:
    """Return this rank's columns of [rows, seq]."""
    if cp.size() == 1:
        return whole
    return whole.chunk(cp.size(), dim=1)[cp.get_local_rank()].contiguous()


def _ulysses(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    group = module.context_group
    assert isinstance(group, ProcessGroup)
    heads = math.lcm(key.shape[1], group.size())
    key, value = (repeat_heads(part, heads) for part in (key, value))
    query, key, value = (exchange_heads(part, group) for part in (query, key, value))
    attended = causal_attention(query, key, value, packing, dropout, scaling, sliding_window or 0)
    return exchange_sequence(attended, group).transpose(1, 2).contiguous(), None


def _gathered(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    group = module.context_group
    assert isinstance(group, ProcessGroup)
    assert packing is not None, "the decoder's part covers only some columns of the row"
    end = (group.rank() + 1) * query.shape[2]  # this rank's queries attend to nothing later
    key, value = (gather(part, 2, group)[:, :, :end] for part in (key, value))
    attended = causal_attention(query, key, value, packing, dropout, scaling, sliding_window or 0)
    return attended.transpose(1, 2).contiguous(), None


for _name, _function in (("ulysses", _ulysses), ("allgather", _gathered)):
    AttentionInterface.register(f"stratlab_{_name}", _function)


def exchange_heads(part: Tensor, group: ProcessGroup) -> Tensor:
    """[rows, heads, seq/n, dim] -> [rows, heads/n, seq, dim]."""
    n, (rows, heads, seq, dim) = group.size(), part.shape
    sent = part.reshape(rows, n, heads // n, seq, dim).transpose(0, 1)
    got = all_to_all(sent.contiguous(), group)  # [part of the sequence, rows, heads/n, seq/n, dim]
    return got.permute(1, 2, 0, 3, 4).reshape(rows, heads // n, n * seq, dim)


def exchange_sequence(part: Tensor, group: ProcessGroup) -> Tensor:
    """[rows, heads/n, seq, dim] -> [rows, heads, seq/n, dim]."""
    n, (rows, heads, seq, dim) = group.size(), part.shape
    sent = part.reshape(rows, heads, n, seq // n, dim).permute(2, 0, 1, 3, 4)
    got = all_to_all(sent.contiguous(), group)  # [part of the heads, rows, heads/n, seq/n, dim]
    return got.transpose(0, 1).reshape(rows, n * heads, seq // n, dim)
