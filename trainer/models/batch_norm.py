"""Running statistics of batch norm over all ranks, and what parity with one process means for such a model.

batch_norm     a layer normalises, in training, with            losses and gradients are those of one process with
local          the micro-batch of its own rank                  the same micro_batch_size
synchronised   the micro-batches of all ranks together          all of them as its micro-batch, without accumulation

Under every strategy alike. `local`: the running statistics differ from rank to rank, and so do those of one process,
which has seen every micro-batch; before the model is judged or kept, the ranks agree on their mean.
`synchronised` (synchronised_batch_norm.py): they are equal on every rank, and those of one process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Running means and variances of all batch norm layers, in the order of the modules."""
    layers = [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
    return [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var)]


@torch.no_grad()
def average_running_statistics(model: nn.Module) -> None:
    """Replaces every rank's running statistics by their mean over all ranks: one all-reduce; collective.

    Nothing happens for a model without batch norm or with one process. To be called before an evaluation and before
    a checkpoint of rank 0's state; calling it twice changes nothing.
    """
    statistics = running_statistics(model)
    if not statistics or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    flat = torch.cat([tensor.float().flatten() for tensor in statistics])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([tensor.numel() for tensor in statistics])
    for tensor, part in zip(statistics, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
