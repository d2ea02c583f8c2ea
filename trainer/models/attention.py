"""Causal attention inside documents, registered with transformers under the name `stratlab`.

transformers builds no mask for a name that its mask registry does not know (masking_utils.py,
_preprocess_mask_arguments, 5.23), and hands keyword arguments of the model's forward on to the attention function.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "stratlab"


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, dropout: float, scaling: float | None
) -> Tensor:
    """Each token looks at itself and at the earlier ones of its document.

    Args:
        q: [row, head, token, dim].
        k, v: [row, kv head, token, dim]; each kv head serves heads / kv heads neighbouring heads.
        documents: int64 [row, token], equal for the tokens of one document; None = a row is one document.
        dropout: rate on the attention's weights.
        scaling: factor on q k^T; None = dim ** -0.5.

    Returns:
        [row, head, token, dim].
    """
    if documents is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=k.shape[1] != q.shape[1]
        )
    # kv heads are repeated: with a mask and enable_gqa CUDA has but the kernel that holds all the scores
    k, v = (repeat_heads(t, q.shape[1]) for t in (k, v))
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=document_mask(documents), dropout_p=dropout, scale=scaling
    )


def repeat_heads(kv: Tensor, heads: int) -> Tensor:
    """[row, kv head, token, dim] -> [row, head, token, dim], each kv head heads / kv heads times in a row."""
    return kv if kv.shape[1] == heads else kv.repeat_interleave(heads // kv.shape[1], dim=1)


def document_mask(documents: Tensor) -> Tensor:
    """Which token (column) a token (row) may look at: bool [row, 1, token, token] from `documents` [row, token]."""
    order = torch.arange(documents.shape[1], device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    return (same & (order[:, None] >= order[None, :])).unsqueeze(1)


def _from_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    documents: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: heads before tokens in, tokens before heads out; no weights of the attention."""
    assert attention_mask is None, "a mask was built, although the name is in no mask registry"
    attended = causal_attention(query, key, value, documents, dropout, scaling)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _from_transformers)
