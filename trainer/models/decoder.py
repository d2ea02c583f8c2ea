"""Adapt the decoders of transformers to `Learner`: its own class, with our attention, head and experts.

`attend` restricts attention to one document and to the layer's window; transformers finds it under the name `stratlab`.
transformers does not build a mask for a name that its mask registry does not know (masking_utils.py,
_preprocess_mask_arguments, 5.23). It passes keyword arguments of the model's forward to the attention function.

A soft cap on scores (Gemma-2) or sinks (gpt-oss) have no kernel in torch: the family's own function stores all scores.
`check_head` verifies for any class that `Head` computes the same logits from its linear head.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers import AttentionInterface

from stratlab_spec.models.decoder import (
    FAMILIES,
    DecoderShape,
    count_flops_per_token,
    count_matmul_parameters,
)
from stratlab_spec.models.decoder_json import FULL, SLIDING, shape_of_json
from stratlab_spec.settings.config import ConfigError
from trainer.models.chunked_cross_entropy import Head, TokenLoss
from trainer.models.experts import Experts, Router
from trainer.models.model_with_loss import ForwardFlops, Learner
from trainer.models.packing import (
    MASK,
    Bounds,
    DocumentMask,
    Packing,
    build_packing,
    causal_attention,
)

NAME = "stratlab"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend with transformers' signature: heads before tokens in, tokens before heads out.

    It does not return the attention's weights.
    """
    assert attention_mask is None, "transformers built a mask for an unregistered name"
    window, special = sliding_window or 0, {n: others[n] for n in SCORES_KEPT if others.get(n) is not None}
    if special:
        assert isinstance(packing, DocumentMask), "scores need the mask"
        family = sys.modules[type(module).__module__].eager_attention_forward
        mask = packing.bias_of(window)
        attended, _ = family(module, query, key, value, mask, dropout=dropout, scaling=scaling, **special)
        return attended, None
    attended = causal_attention(query, key, value, packing, dropout, scaling, window)
    return attended.transpose(1, 2).contiguous(), None


SCORES_KEPT = ("softcap", "s_aux")
"""Arguments of transformers' attention functions for which torch has no kernel."""
AttentionInterface.register(NAME, attend)


class Decoder(Learner):
    """Map token ids with positions to logits of the next token; transformers' names are below `hf.`.

    Args:
        hf: a causal language model of transformers, from `build_hugging_face`.
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
        self.hf = hf
        self.layers_name, self.head_name = find_layers(hf), find_head(hf)
        self.embedding_name = next(n for n, m in hf.named_modules() if m is hf.get_input_embeddings())
        given = self.head
        head = Head(given.in_features, given.out_features, bias=False, device="meta")
        head.weight = given.weight  # may be shared with the embedding
        head.factor, cap = read_logits(hf.config)
        head.loss = TokenLoss(cap=cap)
        self.hf.set_submodule(self.head_name, head)
        family = FAMILIES.get(shape.family)
        for layer in self.blocks() if family and family.experts and not family.sinks else ():
            layer.mlp.experts, layer.mlp.gate = Experts(layer.mlp.experts), Router(layer.mlp.gate)
        if family is None:
            shape = dataclasses.replace(
                shape_of_json(
                    hf.config.to_dict(), shape.family
                ),  # complete: with the defaults that config.json omits
                counted=_count(self),
                tied=head.weight is self.embedding.weight,
                arguments=shape.arguments,
            )
        self.shape = shape
        self.scores_kept = not hf._supports_sdpa
        self.windows = tuple(sorted({window for window in shape.windows if 0 < window < seq_len}))
        self.packed = packed
        self.bounds = bounds or Bounds(documents=seq_len if packed else 1, longest=seq_len)
        self.part = (0, 1)
        """(i, n): queries are the i-th of n parts of the row (trainer/parallel/context.py)."""
        self.columns = (0, 1)
        """(i, n): the input holds the i-th of n parts of each row (trainer/parallel/context.py)."""
        forward = count_flops_per_token(shape, seq_len, causal=True) / 3
        of_weights = 2.0 * count_matmul_parameters(shape)
        self.forward_flops = ForwardFlops(of_weights * seq_len, (forward - of_weights) * seq_len)
        self.flops_per_sample = self.forward_flops.training()
        """Forward and backward of one row as one document, causal-exact; with LoRA 4 N."""
        self.flops_per_token_literature = count_flops_per_token(shape, seq_len, causal=False)
        """FLOPs per token with attention counted as if it were not causal."""

    @property
    def head(self) -> Any:
        """Return the linear layer that maps states to words; None on a stage without one."""
        return getattr(self.hf, self.head_name)

    @property
    def base(self) -> Any:
        """Return transformers' model without its head."""
        return getattr(self.hf, self.hf.base_model_prefix)

    @property
    def embedding(self) -> nn.Embedding:
        """Return the table of words."""
        found: nn.Embedding = self.hf.get_input_embeddings()
        return found

    def predict(self, inputs: Tensor) -> Tensor:
        """int64 [row, 2, token] (ids, positions in the document) -> logits [row, token, vocab]."""
        logits: Tensor = self.head(self.states(inputs))
        return logits

    def score(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (sum of the tokens' losses, measures) for inputs as in `predict`, labels int64 [row, token].

        No logits are kept.
        """
        taught = self.teacher.explain(inputs) if self.teacher and self.training else None
        loss = self.head(self.states(inputs), labels=labels, taught=taught)
        return loss, self.loss.measure(labels)

    def states(self, inputs: Tensor) -> Tensor:
        """Return the states before the head [row, token, hidden], for inputs as in `predict`."""
        packing = None
        if self.needs_packing:
            packing = self.pack(documents_of(inputs), self.embedding.weight.dtype)
        return self.run_base(inputs[:, 1], packing, input_ids=inputs[:, 0])

    def run_base(self, positions: Tensor, packing: Packing | None, **entering: Tensor) -> Tensor:
        """Return the output of the model without its head for `input_ids` or `inputs_embeds`."""
        states: Tensor = self.base(
            **entering, position_ids=positions, attention_mask=None, use_cache=False, packing=packing
        ).last_hidden_state
        return states

    @property
    def needs_packing(self) -> bool:
        """Whether the layers need to know which tokens a query may attend to."""
        return self.packed or self.part[1] > 1 or self.scores_kept or bool(self.windows)

    def pack(self, documents: Tensor, weights: torch.dtype) -> Packing:
        """Build the packing that all layers of one micro-batch share.

        Args:
            documents: of the whole rows, from `documents_of`.
            weights: their element type; products use it without `products_dtype`.
        """
        dtype, path = self.products_dtype or weights, MASK if self.scores_kept else ""
        return build_packing(documents, self.part, dtype, self.bounds, self.windows, path)

    @property
    def loss(self) -> TokenLoss:
        """The head's loss, see trainer/models/chunked_cross_entropy.py."""
        loss: TokenLoss = self.head.loss
        return loss

    def network(self) -> nn.Module:
        """Return transformers' model."""
        return self.hf

    def blocks(self) -> list[nn.Module]:
        """Return the decoder layers, in order."""
        return list(self.hf.get_submodule(self.layers_name).children())

    def tie_weights(self) -> None:
        """Share the embedding's weight with the head again if the shape is tied.

        Call it after `to("meta")` or `to_empty`, because torch then gives each module its own parameter.
        """
        if self.shape.tied:
            self.head.weight = self.embedding.weight


def _count(decoder: Decoder) -> tuple[int, int]:
    """Return the number of all parameters, and of those that multiply a token, of a family outside FAMILIES."""
    looked_up = {id(m.weight) for m in decoder.modules() if isinstance(m, nn.Embedding)}
    config = decoder.hf.config
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1
    chosen = getattr(config, "num_experts_per_tok", None) or 1
    products = decoder.head.weight.numel() if id(decoder.head.weight) in looked_up else 0
    for parameter in decoder.parameters():
        if parameter.ndim > 1 and id(parameter) not in looked_up:
            products += parameter.numel() * chosen // experts if parameter.ndim > 2 else parameter.numel()
    return sum(parameter.numel() for parameter in decoder.parameters()), products


def find_decoder(model: nn.Module) -> Decoder:
    """Return the decoder inside a strategy's wrapper."""
    return next(part for part in model.modules() if isinstance(part, Decoder))


def documents_of(inputs: Tensor) -> Tensor:
    """Return the column at which each token's document starts: int64 [row, token] from [row, 2, token]."""
    return torch.arange(inputs.shape[2], device=inputs.device) - inputs[:, 1]


def build_hugging_face(shape: DecoderShape) -> Any:
    """Build transformers' model of this shape on the current device; the caller overwrites its random weights.

    Raises:
        ConfigError: transformers has no such decoder, or it does not train as one here.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING as CLASSES

    config = describe(shape)
    if type(config) not in CLASSES:
        raise ConfigError(
            f"model_type {shape.family!r}: transformers lacks a causal model of this type [SL-decoder-class]"
        )
    try:
        hf = CLASSES[type(config)](config).train()
    except Exception as failure:  # sizes that do not fit, an attention of its own
        raise ConfigError(
            f"model_type {shape.family!r}: transformers cannot build it: {failure!r} [SL-decoder-build]"
        ) from failure
    if problems := list(find_obstacles(hf, shape)):
        raise ConfigError(problems)
    return hf


def find_obstacles(hf: Any, shape: DecoderShape) -> Iterator[str]:
    """Yield why a causal model of transformers cannot be trained as a `Decoder`."""
    named, head = f"model_type {shape.family!r}", hf.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None or "." in find_head(hf):
        yield f"{named}: its head is not a linear layer without bias [SL-decoder-head]"
    elif not find_layers(hf):
        yield f"{named}: transformers does not name its repeated layers [SL-decoder-blocks]"
    elif kinds := {*(getattr(hf.config, "layer_types", None) or ())} - {FULL, SLIDING}:
        yield f"{named}: has unsupported layers of the kind {', '.join(sorted(kinds))} [SL-decoder-layers]"
    elif not hf._supports_attention_backend or hf._is_stateful:
        yield f"{named}: its layers do not use transformers' attention interface [SL-decoder-attention]"
    elif shape.family not in FAMILIES and (problem := check_head(hf)):
        yield f"{named}: its logits differ from the outputs of its linear head: {problem} [SL-decoder-logits]"


def find_layers(hf: Any) -> str:
    """Return the name of the list of decoder layers; "" without such a list."""
    kinds = {*(hf._no_split_modules or ())}
    for name, module in hf.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and type(module[0]).__name__ in kinds:
            return name
    return ""


def find_head(hf: Any) -> str:
    """Return the name of the linear layer that maps states to words."""
    return next(name for name, module in hf.named_modules() if module is hf.get_output_embeddings())


def read_logits(config: Any) -> tuple[float, float]:
    """Return (factor, soft cap) of the logits; no cap is 0."""
    factor = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
    return float(factor), float(getattr(config, "final_logit_softcapping", None) or 0)


WORDS = 3


def check_head(hf: Any) -> str:
    """Compare the class's own logits with `Head`'s logits for a few states; "" if equal."""
    name, hidden = find_head(hf), hf.get_output_embeddings().in_features
    with unset_fake_temporarily(), torch.device("cpu"), torch.no_grad():
        draw = torch.Generator().manual_seed(0)
        states = 3 * torch.randn(1, 2, hidden, generator=draw)
        linear, ours = nn.Linear(hidden, WORDS, bias=False), Head(hidden, WORDS, bias=False)
        linear.weight.copy_(torch.randn(WORDS, hidden, generator=draw))
        ours.weight.copy_(linear.weight)
        ours.factor, cap = read_logits(hf.config)
        ours.loss = TokenLoss(cap=cap)
        shell = copy.copy(hf)
        shell._modules = dict(hf._modules)
        shell._modules[hf.base_model_prefix] = _Stub(states)
        shell._modules[name] = linear
        try:
            logits = shell(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False).logits
        except Exception as failure:  # the class needs parts that this check lacks
            return f"{type(failure).__name__}: {failure}"
        apart = (logits - ours(states)).abs().max() / logits.abs().max()
    return "" if apart < 1e-5 else f"they differ by {float(apart):.1e}"


class _Stub(nn.Module):
    """A model without head that answers with given states."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self._states = states

    def forward(self, *_: Any, **__: Any) -> Any:
        return _Answer(
            last_hidden_state=self._states,
            **dict.fromkeys(("past_key_values", "hidden_states", "attentions", "router_logits")),
        )


class _Answer(SimpleNamespace):
    def __getitem__(self, index: int) -> Any:
        assert index == 0
        return self.last_hidden_state


def describe(shape: DecoderShape) -> Any:
    """Return transformers' configuration: no dropout, no cache, no auxiliary loss."""
    from transformers import CONFIG_MAPPING

    if shape.family not in CONFIG_MAPPING:
        raise ConfigError(
            f"model_type {shape.family!r}: transformers does not support it [SL-decoder-unknown]"
        )
    left_out = ("auto_map", "quantization_config", "architectures")
    given = {name: value for name, value in shape.arguments.items() if name not in left_out}
    config = CONFIG_MAPPING[shape.family].from_dict(copy.deepcopy(given))
    for name, value in vars(config).copy().items():
        if name.endswith(DROPOUTS) and value:
            setattr(config, name, 0.0)
    config.use_cache = False
    config.pad_token_id = None  # so that every row of the embedding is trained
    if getattr(config, "output_router_logits", False):
        config.output_router_logits = False
    config._attn_implementation = NAME
    config.dtype = torch.float32
    return config


DROPOUTS = ("dropout", "pdrop")
"""Suffixes of the names of dropout rates, which are set to 0."""


def restore_buffers(module: nn.Module, device: str) -> None:
    """Recompute the buffers that the meta device lost and state dicts do not contain: frequencies, scales."""
    for owner in list(module.modules()):
        rotary = getattr(owner, "rotary_emb", None)
        if rotary is not None:
            with torch.device(device):
                owner.rotary_emb = type(rotary)(rotary.config)
        if isinstance(scale := getattr(owner, "embed_scale", None), Tensor):
            scale.fill_(owner.scalar_embed_scale)
