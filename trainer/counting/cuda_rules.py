"""What autocast and the attention do on CUDA and not on a CPU, said of fake CPU tensors.

Fake CUDA tensors are no way out: without a driver their backward pass fails, because autograd asks CUDA for its
contexts (`stash_current_streams`, torch 2.13). These rules are read from torch's sources; no GPU has confirmed them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from trainer.counting.storages import HALF, StorageWatch

IN_FP32 = frozenset(
    {
        *("layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax", "sum", "prod", "cumsum"),
        *("exp", "log", "pow", "rsqrt", "reciprocal", "softplus", "logsumexp"),
    }
)
"""Of AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE (ATen/autocast_mode.h), what our models call."""


class CudaRules(TorchFunctionMode):
    """Under autocast: norms and sums in fp32. Always: the attention kernel that CUDA would choose, and what it keeps.

    | mask | element type | key heads     | kernel            | keeps for the backward pass           |
    |------|--------------|---------------|-------------------|---------------------------------------|
    | none | 16 bits      | any           | flash             | q, k, v, output, one number per token |
    | any  | any          | as many as q  | memory-efficient  | the same, the mask as a bias like q   |
    | any  | fp32         | fewer         | math              | all scores                            |
    """

    def __init__(self, watch: StorageWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            with self:  # it is off in here, and what is computed again must be computed alike
                return _go_back(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if torch.is_autocast_enabled("cpu") and getattr(func, "__name__", "") in IN_FP32:
            args = [_widen(given) for given in args]
            kwargs = {name: _widen(given) for name, given in kwargs.items()}
        return func(*args, **kwargs)

    def _attend(
        self,
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
            bias = None
            if attn_mask is not None:
                with self._watch.region("masks", final=True):
                    zero = torch.zeros((), dtype=q.dtype)
                    bias = torch.where(attn_mask, zero, float("-inf")).expand(*q.shape[:3], -1)
            efficient = aten._scaled_dot_product_efficient_attention
            keeps = torch.is_grad_enabled()
            return efficient(q, k, v, bias, keeps, dropout_p, is_causal, scale=scale)[0]
        with sdpa_kernel(SDPBackend.MATH):
            attend = F.scaled_dot_product_attention
            return attend(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _widen(given: Any) -> Any:
    return given.float() if isinstance(given, Tensor) and given.dtype in HALF else given


def _go_back(
    tensor: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Tensor.backward, below the point where a function mode is asked."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)
