"""Tiny checkpoints of every family in Hugging Face's format, and rows of tokens, the same for reference and ranks.

Two layers unless the name says more: what lies between layers is there, and a step costs the host half as much as with
four. Weights are drawn larger than the usual initialisation and biases are not zero, so that no gradient is lost in
rounding; that every mesh starts from files also proves that each rank reads its own part of them.

Rows of random tokens are drawn so that a wrong mean, position or mask shows. Padded: one document per row, as long as
it likes, and a question of its own length that is not learnt. So every rank has another number of labels. Packed:
documents of any length one after the other; the row's rest is padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.batches import Batch


VOCAB = 128
DENSE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
EXPERTS: dict[str, Any] = DENSE | {
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
# name -> (family, shape); the teacher has its students' vocabulary and nothing else.
# The others: qwen_tiny and qwen_moe_tiny with a smaller vocabulary, and what they leave untried.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("qwen2", DENSE | {"tie_word_embeddings": True}),
    "untied": ("qwen2", DENSE | {"tie_word_embeddings": False}),
    "4 layers": ("qwen2", DENSE | {"tie_word_embeddings": True, "num_hidden_layers": 4}),
    "8 layers": ("qwen2", DENSE | {"tie_word_embeddings": True, "num_hidden_layers": 8}),
    "teacher": (
        "qwen2",
        DENSE
        | {"tie_word_embeddings": False, "hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 1},
    ),
    "moe": ("qwen3_moe", EXPERTS | {"tie_word_embeddings": False}),
    "moe tied": ("qwen3_moe", EXPERTS | {"tie_word_embeddings": True}),
    "moe 4 kv": (
        "qwen3_moe",
        EXPERTS | {"tie_word_embeddings": False, "num_attention_heads": 8, "num_key_value_heads": 4},
    ),
}
WINDOW = {"sliding_window": 6}
"""Shorter than most documents."""
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SPREAD = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
"""Stages of unequal length, several kv heads per rank, heads that do not share the hidden size."""
CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 16}
LOCAL_GLOBAL = {
    **WINDOW,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", DENSE | SPREAD | UNTIED | {"rope_parameters": LLAMA3}),
    "llama tied": ("llama", DENSE | TIED | {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", DENSE | SPREAD | UNTIED | {"sliding_window": None}),
    "mistral window": ("mistral", DENSE | TIED | WINDOW),
    "qwen2 window": (
        "qwen2",
        DENSE | SPREAD | UNTIED | WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", DENSE | SPREAD | UNTIED),
    "qwen3 tied": ("qwen3", DENSE | TIED | {"head_dim": 32}),
    "gemma2": ("gemma2", DENSE | TIED | WINDOW | CAPPED | {"head_dim": 16}),
    "gemma3": ("gemma3_text", DENSE | SPREAD | TIED | LOCAL_GLOBAL | CAPPED),
    "phi3": ("phi3", DENSE | UNTIED | {"sliding_window": 40}),  # longer than a row
    "olmo2": ("olmo2", DENSE | UNTIED),
    "gpt2": (
        "gpt2",
        {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
        | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    ),
    "mixtral": (
        "mixtral",
        DENSE | UNTIED | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    "gpt_oss": (
        "gpt_oss",
        DENSE
        | UNTIED
        | WINDOW
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 16},
    ),
}
"""Of the families that the other models here do not have, and what they leave untried."""
MODELS |= FORMS


def write_models(folder: Path, names: Collection[str] = tuple(MODELS)) -> None:
    """One checkpoint folder per name."""
    import torch
    import transformers

    for name in names:
        family, shape = MODELS[name]
        configuration = transformers.CONFIG_MAPPING[family](**shape, pad_token_id=None)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(configuration)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=draw)
                if parameter.ndim > 1:
                    parameter.copy_(0.08 * noise)
                else:  # from where the family starts: a Gemma norm from 0
                    parameter.add_(0.1 * noise)
        model.save_pretrained(folder / name)


ROWS, SEQ_LEN = 8, 32
SHORTEST = 5  # tokens of a document


def draw_rows(step: int, packed: bool) -> tuple[Tensor, Tensor]:
    """(inputs [ROWS, 2, SEQ_LEN], labels [ROWS, SEQ_LEN]) of the global batch; the same in every process."""
    import torch

    from trainer.data.text.token_rows import IGNORED

    draw = torch.Generator().manual_seed(1000 * packed + step)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    ids = torch.randint(0, VOCAB, (ROWS, SEQ_LEN), generator=draw)
    for place in range(1, SEQ_LEN):  # seven of ten tokens follow from the one before: something to learn
        follows = torch.rand(ROWS, generator=draw) < 0.7
        ids[:, place] = torch.where(follows, (ids[:, place - 1] * 3 + 1) % VOCAB, ids[:, place])
    positions = torch.arange(SEQ_LEN).repeat(ROWS, 1)
    labels = torch.full_like(ids, IGNORED)
    for row in range(ROWS):
        start = 0
        while start + SHORTEST <= SEQ_LEN:
            end = number(SEQ_LEN // 2, SEQ_LEN) if not packed else number(start + SHORTEST, SEQ_LEN)
            answer = start + number(1, (end - start) // 2)
            labels[row, answer - 1 : end - 1] = ids[row, answer:end]
            if not packed:
                break
            positions[row, start:] = torch.arange(SEQ_LEN - start)
            start = end
        if packed and start < SEQ_LEN:
            positions[row, start:] = torch.arange(SEQ_LEN - start)
    return torch.stack([ids, positions], 1), labels


def build_share(step: int, packed: bool, rank: int, ranks: int, micro_size: int) -> Batch:
    """What one of `ranks` that see different rows gets of it."""
    from trainer.data.batches import Batch
    from trainer.data.text.token_rows import IGNORED

    inputs, labels = draw_rows(step, packed)
    mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    micro = list(zip(inputs[mine].split(micro_size), labels[mine].split(micro_size), strict=True))
    count = int((labels != IGNORED).sum())
    return Batch(micro, ROWS, count, tokens=labels.numel(), useful_tokens=labels.numel())


def split_documents(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(ids, labels) with every document in a row of its own, filled up on the right: no packing any more."""
    import torch

    from trainer.data.text.token_rows import IGNORED

    ids, found = [], []
    for (row, positions), wanted in zip(inputs, labels, strict=True):
        starts = [*torch.nonzero(positions == 0).flatten().tolist(), SEQ_LEN]
        for start, end in itertools.pairwise(starts):
            rest = SEQ_LEN - (end - start)
            ids.append(torch.nn.functional.pad(row[start:end], (0, rest)))
            found.append(torch.nn.functional.pad(wanted[start:end], (0, rest), value=IGNORED))
    return torch.stack(ids), torch.stack(found)
