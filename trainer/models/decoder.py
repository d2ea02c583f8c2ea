"""Adapt transformers' Qwen2ForCausalLM and Qwen3MoeForCausalLM to `Learner`.

`causal_attention` restricts attention to one document; transformers finds it under the name `stratlab`. transformers
does not build a mask for a name that its mask registry does not know (masking_utils.py, _preprocess_mask_arguments,
5.23). It passes keyword arguments of the model's forward to the attention function.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from stratlab_spec.models.decoder import (
    FAMILIES,
    DecoderShape,
    count_flops_per_token,
    count_matmul_parameters,
)
from trainer.models.chunked_cross_entropy import Head, TokenLoss
from trainer.models.experts import Experts, Router
from trainer.models.model_with_loss import ForwardFlops, Learner
from trainer.models.packing import Bounds, Packing, Spans, attend_spans, build_packing

NAME = "stratlab"


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing | None, dropout: float, scaling: float | None
) -> Tensor:
    """Attend from each token to itself and the earlier tokens of its document.

    Args:
        q: [row, head, query, dim].
        k, v: [row, kv head, key, dim]; each kv head serves heads / kv heads neighbouring heads.
        packing: the documents' positions, built once for all layers; None = a row is one document with all its queries.
        dropout: rate on the attention's weights; only for rows with one document.
        scaling: factor on q k^T; None = dim ** -0.5.

    Returns:
        [row, head, query, dim].
    """
    if packing is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=k.shape[1] != q.shape[1]
        )
    assert dropout == 0.0, "packed rows do not support dropout"
    if isinstance(packing, Spans):
        return attend_spans(q, k, v, packing, scaling)
    # repeat kv heads: with a mask and enable_gqa CUDA only has the kernel that stores all scores
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
    """Attend with transformers' signature: heads before tokens in, tokens before heads out.

    It does not return the attention's weights.
    """
    assert attention_mask is None, "transformers built a mask for an unregistered name"
    attended = causal_attention(query, key, value, packing, dropout, scaling)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _from_transformers)


class Decoder(Learner):
    """Map token ids with positions to logits of the next token; transformers' names are below `hf.`.

    Args:
        hf: a causal language model of transformers with the attention `stratlab`.
        packed: rows hold several documents, which do not see each other.
        seq_len: tokens of a row.
        bounds: for all rows of the run; None = use bounds that fit any row, which is slower.
    """

    core = "hf"
    heads: ClassVar[list[str]] = []
    """Empty: no module depends on the data set."""
    peft_task = "CAUSAL_LM"

    def __init__(
        self, hf: Any, shape: DecoderShape, *, packed: bool, seq_len: int, bounds: Bounds | None = None
    ) -> None:
        super().__init__()
        self.hf, given = hf, hf.lm_head
        head = self.hf.lm_head = Head(given.in_features, given.out_features, bias=False, device="meta")
        head.weight = given.weight  # may be shared with the embedding
        head.loss = TokenLoss()
        for layer in self.blocks():
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts, layer.mlp.gate = Experts(layer.mlp.experts), Router(layer.mlp.gate)
        self.shape = shape
        self.packed = packed
        self.bounds = bounds or Bounds(documents=seq_len if packed else 1, longest=seq_len)
        self.part = (0, 1)
        """(i, n): queries are the i-th of n parts of the row (trainer/parallel/context.py)."""
        self.columns = (0, 1)
        """(i, n): the input holds the i-th of n parts of each row (trainer/parallel/context.py)."""
        attention_flops = 2.0 * shape.layers * shape.queries * seq_len**2
        self.forward_flops = ForwardFlops(2.0 * count_matmul_parameters(shape) * seq_len, attention_flops)
        self.flops_per_sample = self.forward_flops.training()
        """Forward and backward of one row as one document, causal-exact; with LoRA 4 N."""
        self.flops_per_token_literature = count_flops_per_token(shape, seq_len, causal=False)
        """FLOPs per token with attention counted as if it were not causal."""

    def predict(self, inputs: Tensor) -> Tensor:
        """int64 [row, 2, token] (ids, positions in the document) -> logits [row, token, vocab]."""
        return self.hf.lm_head(self.states(inputs))

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (sum of the tokens' losses, measures) for inputs as in `predict`, labels int64 [row, token].

        No logits are kept.
        """
        taught = self.teacher.explain(inputs) if self.teacher and self.training else None
        loss = self.hf.lm_head(self.states(inputs), labels=labels, taught=taught)
        return loss, self.loss.measure(labels)

    def states(self, inputs: Tensor) -> Tensor:
        """Return the states before the head [row, token, hidden], for inputs as in `predict`."""
        packing = None
        if self.needs_packing:
            packing = self.pack(documents_of(inputs), self.hf.model.embed_tokens.weight.dtype)
        return self.hf.model(
            input_ids=inputs[:, 0],
            position_ids=inputs[:, 1],
            attention_mask=None,
            use_cache=False,
            packing=packing,
        ).last_hidden_state

    @property
    def needs_packing(self) -> bool:
        """Whether the layers need to know which tokens a query may attend to."""
        return self.packed or self.part[1] > 1

    def pack(self, documents: Tensor, weights: torch.dtype) -> Packing:
        """Build the packing that all layers of one micro-batch share.

        Args:
            documents: of the whole rows, from `documents_of`.
            weights: their element type; products use it without `products_dtype`.
        """
        return build_packing(documents, self.part, self.products_dtype or weights, self.bounds)

    @property
    def loss(self) -> TokenLoss:
        """The head's loss, see trainer/models/chunked_cross_entropy.py."""
        return self.hf.lm_head.loss

    def network(self) -> nn.Module:
        """Return transformers' model."""
        return self.hf

    def blocks(self) -> list[nn.Module]:
        """Return the decoder layers, in order."""
        return list(self.hf.model.layers)

    def tie_weights(self) -> None:
        """Share the embedding's weight with the head again if the shape is tied.

        Call it after `to("meta")` or `to_empty`, because torch then gives each module its own parameter.
        """
        if self.shape.tied:
            self.hf.lm_head.weight = self.hf.model.embed_tokens.weight


def documents_of(inputs: Tensor) -> Tensor:
    """Return the column at which each token's document starts: int64 [row, token] from [row, 2, token]."""
    return torch.arange(inputs.shape[2], device=inputs.device) - inputs[:, 1]


def build_hugging_face(shape: DecoderShape) -> Any:
    """Build transformers' model of this shape on the current device; the caller overwrites its random weights."""
    import transformers

    return getattr(transformers, FAMILIES[shape.family].model)(describe(shape)).train()


def describe(shape: DecoderShape) -> Any:
    """Return transformers' configuration: no dropout, no cache, no sliding window, no auxiliary loss."""
    import transformers

    common: dict[str, Any] = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.norm_eps,
        "max_position_embeddings": shape.max_positions,
        "use_cache": False,
        "pad_token_id": None,  # so that every row of the embedding is trained
        "attention_dropout": 0.0,
        "attn_implementation": NAME,
        "dtype": torch.float32,
    }
    experts: dict[str, Any] = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.expert_intermediate,
        "norm_topk_prob": shape.norm_top_k,
    }
    family = FAMILIES[shape.family]
    return getattr(transformers, family.configuration)(
        **common, **family.off, **(experts if shape.experts else {})
    )


def restore_buffers(module: nn.Module, device: str) -> None:
    """Recompute the rotary frequencies, which the meta device lost and state dicts do not contain."""
    for owner in list(module.modules()):
        rotary = getattr(owner, "rotary_emb", None)
        if rotary is not None:
            with torch.device(device):
                owner.rotary_emb = type(rotary)(rotary.config)
