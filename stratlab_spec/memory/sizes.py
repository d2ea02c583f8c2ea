"""The sizes of a model and a micro-batch, by the symbols in recorded steps (recording.py).

A recorder gives every symbol another number, so that each allocation belongs to one product of symbols. A question
gives its own numbers.

    text      R rows, T tokens of a row, H hidden size, A heads, D size of a head, G key-value heads, I intermediate
              size, V vocabulary, E experts, K experts per token, X an expert's intermediate size, W longest position,
              C tokens of a chunk of the loss, Q rows of logits at once
    images    R images, e edge in pixels, c channels, p edge of a patch, P patches, H hidden size, A heads,
              I intermediate size, K classes
    both      r rank of the adapters
"""

from __future__ import annotations

from math import ceil

from stratlab_spec.models.decoder import DecoderShape
from stratlab_spec.models.model_specs import VitShape, default_image_size
from stratlab_spec.models.pictures import Pictures
from stratlab_spec.settings.config import Config

ROWS_AT_ONCE = 256
"""Rows of logits whose probabilities exist in fp32 at a time (trainer/models/chunked_cross_entropy.py)."""
MOST_CHUNKS = 3
"""Chunks of the loss that a recording has at most; further ones hold what the last whole one holds."""


def describe_tokens(
    tokens: int, chunk_tokens: int, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[dict[str, int], int]:
    """Return the sizes of the loss's chunks, and their number.

    The parts after the first ones are at most whole: `N-C` is the second chunk of N tokens, or a whole one.
    """
    chunk = min(chunk_tokens, tokens)
    rows = min(rows_at_once, chunk)
    left = {"N-C": tokens - chunk, "N-2C": tokens - 2 * chunk}
    found = {"C": chunk, "Q": rows, "N+1": tokens + 1}
    found |= {name: max(0, min(size, chunk)) for name, size in left.items()}
    pieces = {"N-Q": tokens, "C-Q": chunk, "N-C-Q": found["N-C"], "N-2C-Q": found["N-2C"]}
    found |= {name: max(0, min(size - rows, rows)) for name, size in pieces.items()}
    return found, ceil(tokens / chunk)


def decoder_sizes(
    config: Config, shape: DecoderShape, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[dict[str, int], int]:
    """Return the sizes of a language model's micro-batch, and the number of chunks of its loss."""
    tokens, chunks = describe_tokens(
        config.micro_batch_size * config.seq_len, config.loss_chunk_tokens, rows_at_once
    )
    sizes = {
        "R": config.micro_batch_size,
        "T": config.seq_len,
        "T32": -(-config.seq_len // 32) * 32,
        "H": shape.hidden,
        "A": shape.heads,
        "D": shape.head_dim,
        "G": shape.kv_heads,
        "A+G": shape.heads + shape.kv_heads,
        "A+2G": shape.heads + 2 * shape.kv_heads,
        "I": shape.intermediate,
        "V": shape.vocab,
    }
    if config.lora_rank:
        sizes["r"] = config.lora_rank
    if shape.experts:
        sizes |= {"E": shape.experts, "K": shape.experts_per_token, "X": shape.expert_intermediate}
    if shape.family == "gpt_oss":  # each head's sink is one more column of scores
        sizes["T+1"] = config.seq_len + 1
    if shape.family == "gpt2":
        sizes["W"] = shape.max_positions
    return sizes | tokens, chunks


def image_sizes(config: Config, shape: VitShape | None, pictures: Pictures) -> dict[str, int]:
    """Return the sizes of a micro-batch of images.

    Args:
        shape: of a vision transformer; None = a network of fixed layers, for images of its own size.
    """
    edge = config.image_size or default_image_size(config)
    sizes = {"R": config.micro_batch_size, "K": pictures.labels, "c": pictures.channels}
    if config.lora_rank:
        sizes["r"] = config.lora_rank
    if shape is None:
        return sizes
    patches = (edge // shape.patch) ** 2
    return sizes | {
        "e": edge,
        "p": shape.patch,
        "P": patches,
        "P+1": patches + 1,
        "P32": -(-(patches + 1) // 32) * 32,
        "H": shape.hidden,
        "A": shape.heads,
        "I": shape.mlp,
    }
