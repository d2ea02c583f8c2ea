"""Language models: transformers' Qwen2ForCausalLM and Qwen3MoeForCausalLM behind the contract of this registry."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainer.models import attention
from trainer.models.classifier import ForwardFlops
from trainer.models.learner import Learner
from trainer.shapes.decoder_shapes import DecoderShape, count_flops_per_token, count_matmul_parameters

FAMILY_CLASSES = {
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
}
"""transformers' classes of each family of trainer/shapes/decoder_json.py: configuration, model."""


class Decoder(Learner):
    """Token ids with positions to logits of the next token; transformers' names below `hf.`.

    Args:
        hf: a causal language model of transformers with the attention `stratlab`.
        packed: rows hold several documents, which do not see each other.
        seq_len: tokens of a row, for the costs.
    """

    core = "hf"
    heads: ClassVar[list[str]] = []
    """Nothing depends on the data set."""
    peft_task = "CAUSAL_LM"

    def __init__(self, hf: Any, shape: DecoderShape, *, packed: bool, seq_len: int) -> None:
        super().__init__()
        self.hf = hf
        self.shape = shape
        self.packed = packed
        self.forward_flops = _forward_flops(shape, seq_len)
        self.flops_per_sample = self.forward_flops.training()
        """Forward and backward of one row as one document, causal-exact; with LoRA 4 N."""
        self.flops_per_token_literature = count_flops_per_token(shape, seq_len, causal=False)
        """The same per token, the attention as if it were not causal."""

    def predict(self, inputs: Tensor) -> Tensor:
        """int64 [row, 2, token] (ids, positions in the document) -> logits [row, token, vocab]."""
        documents = documents_of(inputs) if self.packed else None
        states = self.hf.model(
            input_ids=inputs[:, 0],
            position_ids=inputs[:, 1],
            attention_mask=None,
            use_cache=False,
            documents=documents,
        ).last_hidden_state
        return self.hf.lm_head(states)

    def network(self) -> nn.Module:
        """transformers' model."""
        return self.hf

    def blocks(self) -> list[nn.Module]:
        """The decoder layers, in order."""
        return list(self.hf.model.layers)

    def tie_weights(self) -> None:
        """Makes the head the embedding again where the shape says so.

        To be called after `to("meta")` or `to_empty`: torch gives each module a parameter of its own then.
        """
        if self.shape.tied:
            self.hf.lm_head.weight = self.hf.model.embed_tokens.weight


def documents_of(inputs: Tensor) -> Tensor:
    """int64 [row, token] from [row, 2, token]: the column at which each token's document starts."""
    return torch.arange(inputs.shape[2], device=inputs.device) - inputs[:, 1]


def build_hugging_face(shape: DecoderShape) -> Any:
    """transformers' model of this shape on the current device; its random weights mean nothing."""
    import transformers

    return getattr(transformers, FAMILY_CLASSES[shape.family][1])(describe(shape)).train()


def describe(shape: DecoderShape) -> Any:
    """transformers' configuration: no dropout, no cache, no sliding window, no auxiliary loss."""
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
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "attn_implementation": attention.NAME,
        "dtype": torch.float32,
    }
    experts: dict[str, Any] = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.expert_intermediate,
        "norm_topk_prob": shape.norm_top_k,
        "output_router_logits": False,
    }
    return getattr(transformers, FAMILY_CLASSES[shape.family][0])(
        **common, **(experts if shape.experts else {})
    )


def restore_buffers(module: nn.Module, device: str) -> None:
    """Computes the rotary frequencies again, which are in no state and which the meta device has lost."""
    for owner in list(module.modules()):
        rotary = getattr(owner, "rotary_emb", None)
        if rotary is not None:
            with torch.device(device):
                owner.rotary_emb = type(rotary)(rotary.config)


def _forward_flops(shape: DecoderShape, seq_len: int) -> ForwardFlops:
    attention_flops = 2.0 * shape.layers * shape.queries * seq_len**2
    return ForwardFlops(2.0 * count_matmul_parameters(shape) * seq_len, attention_flops)
