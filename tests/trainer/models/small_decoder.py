"""Small decoders, rows of documents and losses: what the tests of language models share."""

from typing import Any

import torch
from torch import Tensor

from stratlab_spec.models.decoder_config import SHAPES
from stratlab_spec.settings.config import Config
from trainer.data.text.token_rows import IGNORED
from trainer.models.decoder import Decoder
from trainer.models.decoder_build import build_decoder

FAMILIES = tuple(name for name in SHAPES if name.endswith("_tiny"))
"""The smallest of each family."""
SEQ = 24


def settings(model: str = "qwen_tiny", **values: Any) -> Config:
    named = {} if "model_path" in values else {"model": model}
    return Config(**{"run": "r", "task": "text", "seq_len": SEQ} | named | values)


def build(model: str = "qwen_tiny", *, empty: bool = False, **values: Any) -> Decoder:
    return build_decoder(settings(model, **values), empty=empty)


def moved(decoder: Decoder) -> Decoder:
    """Everything that is trained is away from where it began, so that no norm is 1 and no bias 0."""
    source = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=source))
    return decoder


def document(length: int, seed: int) -> Tensor:
    return torch.randint(0, 320, (length,), generator=torch.Generator().manual_seed(seed))


def row_of(documents: list[Tensor], seq: int = SEQ, *, restart: bool = True) -> tuple[Tensor, Tensor]:
    """One row: inputs [1, 2, seq] and labels [1, seq]; what is left over is padding.

    Args:
        restart: the padding is a document of its own (packed); False = it goes on counting (padded).
    """
    ids = torch.full((seq,), 7)
    positions, labels = torch.zeros(seq, dtype=torch.int64), torch.full((seq,), IGNORED)
    column = 0
    for tokens in documents:
        end = column + len(tokens)
        ids[column:end], positions[column:end] = tokens, torch.arange(len(tokens))
        labels[column : end - 1] = tokens[1:]
        column = end
    first = 0 if restart else column
    positions[column:] = torch.arange(first, first + seq - column)
    return torch.stack([ids, positions]).unsqueeze(0), labels.unsqueeze(0)


def loss_of(decoder: Decoder, inputs: Tensor, labels: Tensor, count: int) -> Tensor:
    return decoder(inputs, labels)[0] / count


def gradients(decoder: Decoder) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}


def largest_relative(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Of all tensors the largest |a - b| / |b|, by norms."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).norm() / b[name].norm().clamp_min(1e-12)) for name in a)
