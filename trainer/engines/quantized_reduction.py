"""qgz of ZeRO++: the mean of all gradients in blocks of 4 bits, first inside each node and then between nodes.

    step      among                        sends per rank, of n ranks in N nodes of L, for a gradient of S numbers
    inside    the ranks of a node          (L-1)/L S      each rank then has the sums of its node for N shards
    between   ranks of the same place      (N-1)/N S/L    each rank then has the mean of all for its own shard

In the place of DeepSpeed's (0.19.8, runtime/comm/coalesced_collectives.py, all_to_all_quant_reduce), which is not a
mean of these gradients, for reasons that can be read there:

* stage3.py (__avg_scatter_grads) hands it gradients in communication_data_type, here fp32, and swizzle_quant reads
  them as __half* (ops/csrc/quantization/pt_binding.cpp, ds_swizzle_quant);
* quantized_reduction adds up the ranks of a node (quant_reduce.cu) and the end divides by the number of nodes alone:
  the result is the mean times the ranks of a node;
* groups are as many as the first or second dimension, and a tail that does not fill them is left as torch.empty made
  it.

Sums are kept in fp32 here; only what is sent has 4 bits, so every gradient is rounded twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.engines.quantizer import Quantizer, dequantize, quantize
from trainer.settings.quantized_shares import BITS, BLOCK, count_blocks, is_quantized

QGZ_BITS = BITS["qgz"]
REDUCTION = "_DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads"
"""Of DeepSpeed's optimizer: full gradients in, this rank's part of their mean out."""


def apply_quantized_reduction(optimizer: Any, quantizer: Quantizer, per_node: int) -> None:
    """Puts itself in the place of the reduction; collective.

    Args:
        optimizer: of DeepSpeed's engine, stage 3.
        per_node: ranks of a node, which have consecutive numbers.
    """
    plain = getattr(optimizer, REDUCTION)
    setattr(optimizer, REDUCTION, QuantizedReduction(plain, quantizer, dist.get_rank(), per_node))


class QuantizedReduction:
    """The mean of gradients over all ranks, of each rank its own shard.

    Args:
        plain: reduces what has too few elements for blocks.
        rank: of this process, in the default group.
    """

    def __init__(
        self,
        plain: Callable[[list[Any], torch.dtype], list[Tensor]],
        quantizer: Quantizer,
        rank: int,
        per_node: int,
    ) -> None:
        self._plain, self._quantizer, self._rank = plain, quantizer, rank
        self._ranks, self._per_node = dist.get_world_size(), per_node
        self._nodes = self._ranks // per_node
        self._inside = self._between = None
        for node in range(self._nodes):  # every rank takes part in making every group
            members = range(node * per_node, (node + 1) * per_node)
            group = dist.new_group(list(members))
            self._inside = group if rank in members else self._inside
        for place in range(per_node):
            group = dist.new_group(list(range(place, self._ranks, per_node)))
            self._between = group if rank % per_node == place else self._between

    def __call__(self, parameters: Sequence[Any], communication_data_type: torch.dtype) -> list[Tensor]:
        """This rank's part of each gradient's mean, without the filling that the last shard may have."""
        few = [each for each in parameters if is_quantized(each.ds_numel, self._ranks)]
        whole = [each for each in parameters if not is_quantized(each.ds_numel, self._ranks)]
        parts = dict(zip(map(id, few), self._reduce(few), strict=True)) if few else {}
        if whole:
            parts |= dict(zip(map(id, whole), self._plain(whole, communication_data_type), strict=True))
        return [parts[id(each)] for each in parameters]

    def _reduce(self, parameters: Sequence[Any]) -> list[Tensor]:
        lengths = [BLOCK * count_blocks(each.ds_numel, self._ranks) for each in parameters]
        device = parameters[0].grad.device
        shards = torch.zeros(self._nodes, self._per_node, sum(lengths), device=device)
        columns = shards.view(self._ranks, -1).split(lengths, dim=1)
        for parameter, column in zip(parameters, columns, strict=True):
            _fill(column, parameter.grad.reshape(-1))
        # to each place of the node its shards of all nodes
        sums = self._add_up(shards.transpose(0, 1), self._inside)
        mean = self._add_up(sums, self._between) / self._ranks
        found = []
        for parameter, part in zip(parameters, mean.split(lengths), strict=True):
            length = math.ceil(parameter.ds_numel / self._ranks)
            found.append(part[: min(length, max(0, parameter.ds_numel - self._rank * length))])
        return found

    def _add_up(self, parts: Tensor, group: Any) -> Tensor:
        """One part to each rank of the group; the sum of those that come."""
        if len(parts) == 1:
            return parts[0]
        arrived = []
        for sent in quantize(self._quantizer, parts, QGZ_BITS):
            arrived.append(torch.empty_like(sent))
            dist.all_to_all_single(arrived[-1], sent, group=group)
        return dequantize(arrived[0], arrived[1], QGZ_BITS).view(parts.shape).sum(0)


def _fill(rows: Tensor, gradient: Tensor) -> None:
    """The shards of a gradient, one to a row, in place; what is left of a row stays 0."""
    length = math.ceil(gradient.numel() / len(rows))
    for row, shard in zip(rows, gradient.split(length), strict=False):
        row[: shard.numel()].copy_(shard)
