"""Running statistics of batch norm over all ranks.

In training a batch norm layer normalises with the mean and variance of the micro-batch of its own rank, under every
strategy: the results of such a model depend on the micro-batch size, and the running statistics differ from rank to
rank. (SyncBatchNorm would add two collectives per layer, and runs on GPUs only.) Before the model is judged or kept,
the ranks agree on the mean of their statistics.
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
