"""What to change first where a run will not fit: what changes no result before what changes the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.predict.extrapolation import Peak
from stratlab.tables.strategies import STRATEGIES, find_other

KEPT = ("activations", "masks", "low-precision copies")
LOSS = ("logits and loss",)
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state", "teacher")
LESS_CHUNK = 512
"""Tokens whose logits are there at once."""


def advise(settings: Mapping[str, Any], peak: Peak, rows: int, largest: int) -> str:
    """One sentence, with the setting to give."""
    if 0 < largest < rows:
        return f"micro_batch_size={largest} fits at the same global batch"
    sizes = {
        kind: sum(peak.causes.get(cause, 0) for cause in causes)
        for kind, causes in (("kept", KEPT), ("loss", LOSS), ("state", STATE))
    }
    for kind in sorted(sizes, key=lambda name: -sizes[name]):
        if found := _REMEDIES[kind](settings):
            return found
    return "more ranks, or a smaller model"


def _keep_less(settings: Mapping[str, Any]) -> str:
    if settings["activation_checkpointing"] != "blocks":
        return "activation_checkpointing=blocks: activations are most of it, and are computed again"
    return ""


def _lose_less(settings: Mapping[str, Any]) -> str:
    if settings.get("loss_chunk_tokens", 0) > LESS_CHUNK:
        return f"loss_chunk_tokens={LESS_CHUNK}: logits are most of it"
    return ""


def _hold_less(settings: Mapping[str, Any]) -> str:
    strategy = str(settings["strategy"])
    if less := find_other(strategy, "holds_less"):
        return f"strategy={less}: weights, gradients and optimizer state are most of it, and it holds less of them"
    if not STRATEGIES.get(strategy, {}).get("holds", {}).get("divided"):
        return "a strategy that shares out weights, gradients and optimizer state over several ranks, as fsdp does"
    if not settings["lora_rank"]:
        return "more ranks, which share out the state; or lora_rank=16, which trains adapters alone"
    return ""


_REMEDIES = {"kept": _keep_less, "loss": _lose_less, "state": _hold_less}
