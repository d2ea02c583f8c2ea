"""Causal attention inside documents, registered with transformers under the name `stratlab`.

transformers builds no mask for a name that its mask registry does not know (masking_utils.py,
_preprocess_mask_arguments, 5.23), and hands keyword arguments of the model's forward on to the attention function.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from trainer.models.packing import Packing, Spans, attend_spans

NAME = "stratlab"


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing | None, dropout: float, scaling: float | None
) -> Tensor:
    """Each token looks at itself and at the earlier ones of its document.

    Args:
        q: [row, head, query, dim].
        k, v: [row, kv head, key, dim]; each kv head serves heads / kv heads neighbouring heads.
        packing: where documents are, made once for all layers; None = a row is one document, queries are all of it.
        dropout: rate on the attention's weights; only of rows that are one document.
        scaling: factor on q k^T; None = dim ** -0.5.

    Returns:
        [row, head, query, dim].
    """
    if packing is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=k.shape[1] != q.shape[1]
        )
    assert dropout == 0.0, "no dropout in packed rows"
    if isinstance(packing, Spans):
        return attend_spans(q, k, v, packing, scaling)
    # kv heads are repeated: with a mask and enable_gqa CUDA has but the kernel that holds all the scores
    k, v = (repeat_heads(t, q.shape[1]) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=packing.bias, scale=scaling)


def repeat_heads(kv: Tensor, heads: int) -> Tensor:
    """[row, kv head, token, dim] -> [row, head, token, dim], each kv head heads / kv heads times in a row."""
    return kv if kv.shape[1] == heads else kv.repeat_interleave(heads // kv.shape[1], dim=1)


def _from_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: heads before tokens in, tokens before heads out; no weights of the attention."""
    assert attention_mask is None, "a mask was built, although the name is in no mask registry"
    attended = causal_attention(query, key, value, packing, dropout, scaling)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _from_transformers)
