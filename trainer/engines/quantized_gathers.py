"""qwz of ZeRO++: what stage 3 gathers anew in a pass goes over the wire in blocks of 8 bits.

In the place of DeepSpeed's own (zero_quantized_weights), which refuses its autocast, cuts several parameters into
common groups whose scale the largest of them sets, and asks that 8 divides every shard. Here each parameter has its
own blocks, one too small for them is gathered as without qwz, and what arrives is rounded to the type in which that
parameter is gathered without qwz: fp32, or bf16 for weights of products. So every precision goes with it.

hpz's second copy inside a node holds what has arrived; it is gathered as it is, or it would be rounded twice.
What is gathered outside a pass (small parameters after the update, checkpoints, exports) keeps all its bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.engines.quantizer import Quantizer, dequantize, quantize
from trainer.settings.quantized_shares import BITS, BLOCK, count_blocks, is_quantized

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

    few: list[Any] = []
    whole: list[Any] = []
    for parameter in sorted(parameters, key=lambda each: each.ds_id):
        (few if _goes_in_blocks(parameter) else whole).append(parameter)
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
        self._sent: tuple[Tensor, ...] = quantize(
            quantizer, own, bits=QWZ_BITS
        )  # held till it has arrived everywhere
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
