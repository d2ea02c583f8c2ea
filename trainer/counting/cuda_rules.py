"""What autocast and the attention do on CUDA and not on a CPU, said of fake CPU tensors.

Fake CUDA tensors are no way out: without a driver their backward pass fails, because autograd asks CUDA for its
contexts (`stash_current_streams`, torch 2.13). These rules are read from torch's sources; no GPU has confirmed them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.counting.replacement import replaced
from trainer.counting.storages import HALF, StorageWatch
from trainer.models import packing, token_loss

IN_FP32 = (
    *("layer_norm", "group_norm", "rms_norm", "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList"),
    *("cumsum", "exp", "log", "pow.Tensor_Scalar", "rsqrt", "reciprocal", "softplus", "logsumexp"),
)
"""Of AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE (ATen/autocast_mode.h), what models call; none of it is in the
CPU's list, so that there is nothing to come back to."""
OFFER = packing.Offer("cuda", (9, 0), varlen=True)
"""A GPU of today, with torch as it is pinned."""


@contextmanager
def as_on_cuda(watch: StorageWatch) -> Iterator[None]:
    """Under autocast: norms and sums in fp32. Always: the attention kernel that CUDA would choose, and what it keeps.

    | mask | element type | key heads     | kernel            | keeps for the backward pass           |
    |------|--------------|---------------|-------------------|---------------------------------------|
    | none | 16 bits      | any           | flash             | q, k, v, output, one number per token |
    | any  | any          | as many as q  | memory-efficient  | the same, the mask as a bias like q   |
    | any  | fp32         | fewer         | math              | all scores                            |

    Packed rows: the path that trainer/models/packing.py would choose on such a device; varlen_attn calls flash.

    Registered with the dispatcher, because a TorchFunctionMode is off while a backward pass computes blocks again.
    """
    with ExitStack() as stack:
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        for name in IN_FP32:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, partial(_in_fp32, operator), "AutocastCPU")
        attend = partial(_attend, watch, F.scaled_dot_product_attention)
        stack.enter_context(replaced(F, scaled_dot_product_attention=attend))
        stack.enter_context(replaced(packing, read_offer=lambda device: OFFER))
        stack.enter_context(replaced(token_loss, _multiply_into_fp32=_multiply_into_fp32))
        yield


def _multiply_into_fp32(a: Tensor, b: Tensor) -> Tensor:
    """One product, without its factors in fp32."""
    return a.new_empty((a.shape[0], b.shape[1]), dtype=torch.float32)


def _in_fp32(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operator(*map(_widen, args), **{name: _widen(given) for name, given in kwargs.items()})


def _widen(given: Any) -> Any:
    return given.float() if isinstance(given, Tensor) and given.dtype in HALF else given


def _attend(
    watch: StorageWatch,
    original: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (part.to(torch.get_autocast_dtype("cpu")) for part in (q, k, v))
    aten = torch.ops.aten
    if attn_mask is None and q.dtype in HALF:
        flash = aten._scaled_dot_product_flash_attention
        return flash(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    if k.shape[1] == q.shape[1]:
        bias = attn_mask if attn_mask is None else attn_mask.expand(*q.shape[:3], -1)
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            with watch.region("masks", final=True):
                zero = torch.zeros((), dtype=q.dtype)
                bias = torch.where(attn_mask, zero, float("-inf")).expand(*q.shape[:3], -1)
        efficient = aten._scaled_dot_product_efficient_attention
        keeps = torch.is_grad_enabled()
        return efficient(q, k, v, bias, keeps, dropout_p, is_causal, scale=scale)[0]
    with sdpa_kernel(SDPBackend.MATH):
        return original(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
