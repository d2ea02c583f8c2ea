"""ZeRO++: gathers in whole numbers of 8 bits (qwz) and reductions in 4 (qgz), with one scale per block.

Kernel   DeepSpeed's CUDA kernel reads fp16 (0.19.8, ops/csrc/quantization/pt_binding.cpp casts data_ptr to __half*,
         whatever the tensor holds). Gradients lie far below what fp16 can tell apart, so each block is brought to a
         largest number between 1/2 and 1 first, by a power of two that its scale gets back. Infinity and NaN would get
         lost in the kernel, which takes the larger of two numbers by __hmax: a block that has one comes back as NaN,
         and the step is skipped everywhere. Numbers are unpacked in plain torch: one multiplication. The kernel's
         dequantize_fp32 writes eight numbers into room for four (dequantization_utils.h: `chunk` counts in halves,
         `_to_global` in T).

qwz      In the place of DeepSpeed's own (zero_quantized_weights), which refuses its autocast, cuts several parameters
         into common groups whose scale the largest of them sets, and asks that 8 divides every shard. Here each
         parameter has its own blocks, one too small for them is gathered as without qwz, and what arrives is rounded to
         the type in which that parameter is gathered without qwz: fp32, or bf16 for weights of products. So every
         precision goes with it. hpz's second copy inside a node holds what has arrived; it is gathered as it is, or it
         would be rounded twice. What is gathered outside a pass (small parameters after the update, checkpoints,
         exports) keeps all its bits.

qgz      The mean of all gradients in blocks, first inside each node and then between nodes. Sums are kept in fp32; only
         what is sent has 4 bits, so every gradient is rounded twice.

    step      among                        sends per rank, of n ranks in N nodes of L, for a gradient of S numbers
    inside    the ranks of a node          (L-1)/L S      each rank then has the sums of its node for N shards
    between   ranks of the same place      (N-1)/N S/L    each rank then has the mean of all for its own shard

         In the place of DeepSpeed's (runtime/comm/coalesced_collectives.py, all_to_all_quant_reduce), which is not a
         mean of these gradients: stage3.py (__avg_scatter_grads) hands it gradients in communication_data_type, here
         fp32, and swizzle_quant reads them as __half* (pt_binding.cpp, ds_swizzle_quant); quantized_reduction adds up
         the ranks of a node (quant_reduce.cu) and the end divides by the number of nodes alone; groups are as many as
         the first or second dimension, and a tail that does not fill them is left as torch.empty made it.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stratlab_spec.settings.library_rules import BITS, BLOCK, PREBUILT_QUANTIZER, count_blocks, is_quantized

ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
SMALLEST_EXPONENT = -126
"""Of an fp32 number with all its bits."""


class Quantizer(Protocol):
    """What is used of DeepSpeed's module."""

    Symmetric: Any

    def quantize(self, values: Tensor, groups: int, bits: int, kind: Any, /) -> Sequence[Tensor]:
        """fp16 in, (int8, with 4 bits two numbers to a byte, even elements in the upper half; fp32 scales) out."""
        ...


def load_quantizer() -> Quantizer:
    """The one that an image was built with (by images/trainer/quantizer.py), or else DeepSpeed compiles it now."""
    try:
        module: Quantizer = importlib.import_module(PREBUILT_QUANTIZER)
        return module
    except ModuleNotFoundError:
        from deepspeed.ops.op_builder import QuantizerBuilder

    # without a list of architectures of the machine's: DeepSpeed reads no letters in it ("9.0a" -> ValueError: invalid
    # literal for int(), 0.19.8, op_builder/builder.py), and compiles for the GPU that is there without one
    listed = os.environ.pop(ARCHITECTURES, None)
    try:
        module = QuantizerBuilder().load()
        return module
    finally:
        if listed is not None:
            os.environ[ARCHITECTURES] = listed


def quantize(quantizer: Quantizer, values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(int8 numbers, fp32 scales), both flat.

    Args:
        values: fp32 or bf16, elements a multiple of the block.
    """
    blocks = values.reshape(-1, BLOCK).float()
    largest = blocks.abs().amax(1, keepdim=True)
    exponent = torch.frexp(largest).exponent.clamp(min=SMALLEST_EXPONENT)
    unit = torch.where(largest.isfinite(), torch.ldexp(torch.ones_like(largest), exponent), torch.nan)
    numbers, scales = quantizer.quantize((blocks / unit).half(), len(blocks), bits, quantizer.Symmetric)
    return numbers.reshape(-1), scales.reshape(-1) * unit.reshape(-1)


def dequantize(numbers: Tensor, scales: Tensor, bits: int) -> Tensor:
    """fp32, flat."""
    if bits == 4:
        numbers = torch.stack([numbers >> 4, (numbers << 4) >> 4], -1)
    return (numbers.reshape(-1, BLOCK) * scales.reshape(-1, 1)).reshape(-1)


QWZ_BITS = BITS["qwz"]


def apply_quantized_gathers(parameters: Iterable[Any], quantizer: Quantizer) -> None:
    """Puts itself before the gathering of each parameter.

    Args:
        parameters: dealt out by DeepSpeed (stage 3).
    """
    for parameter in parameters:
        plain = parameter.all_gather_coalesced
        parameter.all_gather_coalesced = functools.partial(_gather, quantizer, plain)


def _gather(
    quantizer: Quantizer,
    plain: Callable[..., Any],
    parameters: Iterable[Any],
    safe_mode: bool = False,
    quantize: bool = False,
) -> Any:
    """In the place of DeepSpeed's all_gather_coalesced; `quantize` is its own way, which stays off."""
    from deepspeed.runtime.zero.partition_parameters import MultipleAllGatherHandles

    ordered = sorted(parameters, key=lambda each: each.ds_id)
    few = [each for each in ordered if _goes_in_blocks(each)]
    whole = [each for each in ordered if not _goes_in_blocks(each)]
    handles = [plain(whole, safe_mode)] if whole or not few else []
    if few:
        handles.append(QuantizedGather(few, quantizer))
    return MultipleAllGatherHandles(handles)


def _goes_in_blocks(parameter: Any) -> bool:
    shards = parameter.ds_zero_partition_world_size
    return parameter.ds_secondary_tensor is None and shards > 1 and is_quantized(parameter.ds_numel, shards)


class QuantizedGather:
    """Parameters on their way, with the interface of DeepSpeed's handles.

    Args:
        parameters: of one process group, in the same order on every rank.
    """

    def __init__(self, parameters: list[Any], quantizer: Quantizer) -> None:
        from deepspeed.accelerator import get_accelerator
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        self._parameters = parameters
        self._shards = parameters[0].ds_zero_partition_world_size
        self._lengths = [BLOCK * count_blocks(each.ds_numel, self._shards) for each in parameters]
        device = get_accelerator().current_device_name()
        own = torch.zeros(sum(self._lengths), device=device)
        for parameter, part in zip(parameters, own.split(self._lengths), strict=True):
            assert parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE, parameter.ds_summary()
            parameter.ds_status = ZeroParamStatus.INFLIGHT
            real = _count_real(parameter)
            part[:real].copy_(parameter.ds_tensor[:real])
        group = parameters[0].ds_process_group
        self._sent: tuple[Tensor, ...] = quantize(quantizer, own, bits=QWZ_BITS)  # held till it has arrived
        self._arriving = [_start(mine, self._shards, group) for mine in self._sent]
        self._available = ZeroParamStatus.AVAILABLE

    def wait(self, handle_dependency: bool = True) -> None:
        """The parameters are whole after it; the second call does nothing."""
        if not self._arriving:
            return
        for _, work in self._arriving:
            work.wait()
        (numbers, _), (scales, _) = self._arriving
        self._arriving, self._sent = [], ()
        rows = numbers.view(self._shards, -1).split(self._lengths, dim=1)
        units = scales.view(self._shards, -1).split([length // BLOCK for length in self._lengths], dim=1)
        for parameter, row, unit in zip(self._parameters, rows, units, strict=True):
            shards = dequantize(row, unit, QWZ_BITS).view(self._shards, -1)
            whole = shards[:, : parameter.ds_tensor.ds_numel].reshape(-1)[: parameter.ds_numel]
            whole = whole.view(parameter.ds_shape).to(_gathered_type(parameter))
            parameter.data = whole.to(parameter.ds_tensor.dtype)
            parameter.ds_status = self._available


def _count_real(parameter: Any) -> int:
    """Elements of this rank's shard. The filling behind them, on the last ranks, is memory that nobody has written to:
    in a block it would set the scale of all others."""
    length = parameter.ds_tensor.ds_numel
    return max(0, min(length, parameter.ds_numel - parameter.ds_zero_partition_rank * length))


def _start(mine: Tensor, shards: int, group: Any) -> tuple[Tensor, Any]:
    whole = torch.empty(shards * mine.numel(), dtype=mine.dtype, device=mine.device)
    return whole, dist.all_gather_into_tensor(whole, mine, group, async_op=True)


def _gathered_type(parameter: Any) -> torch.dtype:
    from deepspeed.runtime.zero.partition_parameters import get_allgather_dtype

    dtype: torch.dtype = get_allgather_dtype(parameter, parameter.ds_tensor)
    return dtype


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
            gradient = parameter.grad.reshape(-1)
            length = math.ceil(gradient.numel() / len(column))  # what is left of a row stays 0
            for row, shard in zip(column, gradient.split(length), strict=False):
                row[: shard.numel()].copy_(shard)
        # to each place of the node its shards of all nodes
        sums = self._add_up(shards.transpose(0, 1), self._inside)
        mean = self._add_up(sums, self._between) / self._ranks
        parts = []
        for parameter, part in zip(parameters, mean.split(lengths), strict=True):
            length = math.ceil(parameter.ds_numel / self._ranks)
            parts.append(part[: min(length, max(0, parameter.ds_numel - self._rank * length))])
        return parts

    def _add_up(self, parts: Tensor, group: Any) -> Tensor:
        """One part to each rank of the group; the sum of those that come."""
        if len(parts) == 1:
            return parts[0]
        arrived = []
        for sent in quantize(self._quantizer, parts, QGZ_BITS):
            arrived.append(torch.empty_like(sent))
            dist.all_to_all_single(arrived[-1], sent, group=group)
        return dequantize(arrived[0], arrived[1], QGZ_BITS).view(parts.shape).sum(0)
