"""What to change first where a run will not fit: what changes no result before what changes the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.predict.device_memory import Verdict
from stratlab.predict.prediction import Prediction
from stratlab.tables.strategies import STRATEGIES, find_other

KEPT = ("activations", "masks", "low-precision copies")
LOSS = ("logits and loss",)
STATE = ("parameters", "master copies", "gradients", "gradient buckets", "optimizer state", "teacher")
LESS_CHUNK = 512
"""Tokens whose logits are there at once."""


def advise(one: Prediction, others: Mapping[str, int]) -> str:
    """One sentence, with the setting to give.

    Args:
        others: strategy -> largest micro-batch that fits, of those that are known.
    """
    question, settings = one.question, one.file.settings
    if 0 < one.largest < question.rows:
        rows = question.find_smaller(one.largest, one.file.share(question.ranks))
        return f"micro_batch_size={rows} fits at the same global batch"
    if one.device.judge(0) is not Verdict.FITS:
        return (
            f"no setting makes it fit: CUDA's context and communicators take {one.device.fixed_gib:.2f} GiB, whatever "
            "the model"
        )
    held = one.peak if one.largest else one.smallest  # fewer rows alone are not enough
    sizes = {
        kind: sum(held.causes.get(cause, 0) for cause in causes)
        for kind, causes in (("kept", KEPT), ("loss", LOSS), ("state", STATE))
    }
    if one.device.judge(sizes["state"]) is not Verdict.FITS:
        sizes = {"state": sizes["state"]}  # which no other remedy touches
    for kind in sorted(sizes, key=lambda name: -sizes[name]):
        found = _hold_less(settings, others) if kind == "state" else _REMEDIES[kind](settings)
        if found:
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


def _hold_less(settings: Mapping[str, Any], others: Mapping[str, int]) -> str:
    strategy = str(settings["strategy"])
    why = "weights, gradients and optimizer state are most of it"
    if less := _find_less(strategy, others):
        rows = f"; fits with micro_batch_size up to {others[less]}" if less in others else ""
        return f"strategy={less}: {why}, and it holds less of them{rows}"
    if not STRATEGIES.get(strategy, {}).get("holds", {}).get("divided"):
        return "a strategy that shares out weights, gradients and optimizer state over several ranks, as fsdp does"
    if not settings["lora_rank"]:
        return "more ranks, which share out the state; or lora_rank=16, which trains adapters alone"
    return ""


def _find_less(strategy: str, others: Mapping[str, int]) -> str:
    """The nearest one that holds less and is not known to be too large, rather one that is known to fit."""
    steps = [strategy]
    while (less := find_other(steps[-1], "holds_less")) and less not in steps:
        steps.append(less)
    known = [name for name in (*steps[1:], *_list_dividing(strategy)) if others.get(name)]
    return next((name for name in (*known, *steps[1:]) if others.get(name, 1)), "")


def _list_dividing(strategy: str) -> list[str]:
    """Strategies that divide more of the state than this one whatever their layout."""
    mine = set(STRATEGIES.get(strategy, {}).get("holds", {}).get("divided", ()))
    return [
        name for name, facts in STRATEGIES.items() if mine < set(facts["holds"]["divided"]) and name != "nd"
    ]


_REMEDIES = {"kept": _keep_less, "loss": _lose_less}
