"""ZeRO++: gather in 8-bit integers (qwz) and reduce in 4-bit integers (qgz), with one scale per block.

Kernel   DeepSpeed's CUDA kernel reads fp16 (0.19.8, ops/csrc/quantization/pt_binding.cpp casts data_ptr to __half*
         without a check). Gradients are too small for fp16. So a power of two first scales each block to a largest
         number between 1/2 and 1, and the block's scale reverses this. The kernel would lose infinity and NaN, because
         it takes the larger of two numbers by __hmax. A block with one of them returns as NaN, and all ranks skip the
         step. Plain torch unpacks numbers with one multiplication. The kernel's dequantize_fp32 writes eight numbers
         into space for four (dequantization_utils.h: `chunk` counts in halves, `_to_global` in T).

qwz      `QuantizedGather` replaces DeepSpeed's zero_quantized_weights. DeepSpeed's version rejects its own autocast,
         needs shards divisible by 8, and puts several parameters into groups with one scale. Here each parameter has
         its own blocks. A parameter too small for a block is gathered without qwz. The result is rounded to the
         parameter's type without qwz: fp32, or bf16 for product weights. So it works under every precision.
         hpz's second copy inside a node holds the received values. It is gathered unquantized, because it would
         otherwise be rounded twice. Gathers outside a pass (small parameters after the update, checkpoints, exports)
         keep all bits.

qgz      `QuantizedReduction` averages all gradients in blocks, first inside each node and then between nodes. Sums are
         fp32. Only sent numbers have 4 bits, so every gradient is rounded twice.

    step      among                        sends per rank, of n ranks in N nodes of L, for a gradient of S numbers
    inside    the ranks of a node          (L-1)/L S      each rank then has the sums of its node for N shards
    between   ranks of the same place      (N-1)/N S/L    each rank then has the mean of all for its own shard

         It replaces DeepSpeed's (runtime/comm/coalesced_collectives.py, all_to_all_quant_reduce), which does not
         compute the mean of these gradients. stage3.py (__avg_scatter_grads) passes gradients in
         communication_data_type, here fp32, and swizzle_quant reads them as __half* (pt_binding.cpp,
         ds_swizzle_quant). quantized_reduction adds up the ranks of a node (quant_reduce.cu), but the end divides only
         by the number of nodes. The first or second dimension sets the number of groups. The rest that does not fill
         them keeps the uninitialised values of torch.empty.
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
"""Exponent of the smallest normal fp32 number."""


class Quantizer(Protocol):
    """The interface of DeepSpeed's module that this file uses."""

    Symmetric: Any

    def quantize(self, values: Tensor, groups: int, bits: int, kind: Any, /) -> Sequence[Tensor]:
        """Map fp16 to (int8, fp32 scales). With 4 bits a byte holds two numbers, even elements in the upper half."""
        ...


def load_quantizer() -> Quantizer:
    """Return the image's prebuilt module (images/trainer/quantizer.py), or let DeepSpeed compile one now."""
    try:
        module: Quantizer = importlib.import_module(PREBUILT_QUANTIZER)
        return module
    except ModuleNotFoundError:
        from deepspeed.ops.op_builder import QuantizerBuilder

    # without the machine's list of architectures: DeepSpeed cannot parse letters in it ("9.0a" -> ValueError: invalid
    # literal for int(), 0.19.8, op_builder/builder.py), and without a list it compiles for the present GPU
    listed = os.environ.pop(ARCHITECTURES, None)
    try:
        module = QuantizerBuilder().load()
        return module
    finally:
        if listed is not None:
            os.environ[ARCHITECTURES] = listed


def quantize(quantizer: Quantizer, values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return (int8 numbers, fp32 scales), both flat.

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
    """Return fp32, flat."""
    if bits == 4:
        numbers = torch.stack([numbers >> 4, (numbers << 4) >> 4], -1)
    return (numbers.reshape(-1, BLOCK) * scales.reshape(-1, 1)).reshape(-1)


QWZ_BITS = BITS["qwz"]


def apply_quantized_gathers(parameters: Iterable[Any], quantizer: Quantizer) -> None:
    """Replace the gathering of each parameter.

    Args:
        parameters: partitioned by DeepSpeed (stage 3).
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
    """Replace DeepSpeed's all_gather_coalesced; `quantize` is its own switch, which stays off."""
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
    """Parameters in flight, with the interface of DeepSpeed's handles.

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
        self._sent: tuple[Tensor, ...] = quantize(quantizer, own, bits=QWZ_BITS)  # kept until received
        self._arriving = [_start(mine, self._shards, group) for mine in self._sent]
        self._available = ZeroParamStatus.AVAILABLE

    def wait(self, handle_dependency: bool = True) -> None:
        """Wait until the parameters are whole; a second call changes nothing."""
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
    """Count the elements of this rank's shard, without the padding of the last ranks.

    The padding is uninitialised memory: in a block it would set the scale of all other elements.
    """
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
"""Method of DeepSpeed's optimizer: takes full gradients, returns this rank's part of their mean."""


def apply_quantized_reduction(optimizer: Any, quantizer: Quantizer, per_node: int) -> None:
    """Replace the reduction; collective.

    Args:
        optimizer: of DeepSpeed's engine, stage 3.
        per_node: ranks per node, numbered consecutively.
    """
    plain = getattr(optimizer, REDUCTION)
    setattr(optimizer, REDUCTION, QuantizedReduction(plain, quantizer, dist.get_rank(), per_node))


class QuantizedReduction:
    """The mean of gradients over all ranks; each rank gets its own shard.

    Args:
        plain: reduces gradients with too few elements for blocks.
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
        for node in range(self._nodes):  # collective: every rank creates every group
            members = range(node * per_node, (node + 1) * per_node)
            group = dist.new_group(list(members))
            self._inside = group if rank in members else self._inside
        for place in range(per_node):
            group = dist.new_group(list(range(place, self._ranks, per_node)))
            self._between = group if rank % per_node == place else self._between

    def __call__(self, parameters: Sequence[Any], communication_data_type: torch.dtype) -> list[Tensor]:
        """Return this rank's part of each gradient's mean, without the last shard's padding."""
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
            length = math.ceil(gradient.numel() / len(column))  # the rest of a row stays 0
            for row, shard in zip(column, gradient.split(length), strict=False):
                row[: shard.numel()].copy_(shard)
        # to each rank of the node its shards for all nodes
        sums = self._add_up(shards.transpose(0, 1), self._inside)
        mean = self._add_up(sums, self._between) / self._ranks
        parts = []
        for parameter, part in zip(parameters, mean.split(lengths), strict=True):
            length = math.ceil(parameter.ds_numel / self._ranks)
            parts.append(part[: min(length, max(0, parameter.ds_numel - self._rank * length))])
        return parts

    def _add_up(self, parts: Tensor, group: Any) -> Tensor:
        """Send one part to each rank of the group and return the sum of the received parts."""
        if len(parts) == 1:
            return parts[0]
        arrived = []
        for sent in quantize(self._quantizer, parts, QGZ_BITS):
            arrived.append(torch.empty_like(sent))
            dist.all_to_all_single(arrived[-1], sent, group=group)
        return dequantize(arrived[0], arrived[1], QGZ_BITS).view(parts.shape).sum(0)
