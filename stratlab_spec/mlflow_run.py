"""The names of a run's metrics in MLflow, and its description there.

MLflow groups the metrics of a run by the prefix of their names. HEADLINES have no prefix. All others have the prefix
`detail/`, so that no number is lost and the first group holds the important ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

HEADLINES = {
    "loss": "does it learn: every step",
    "validation_loss": "does it learn: on samples that it was not trained with",
    "validation_accuracy_pct": "does it learn: images",
    "validation_perplexity": "does it learn: text",
    "test_loss": "quality at the end",
    "test_accuracy_pct": "quality at the end: images",
    "test_perplexity": "quality at the end: text",
    "samples_per_s": "speed: a comparison names the fastest by it",
    "tokens_per_s": "speed: text",
    "step_time_ms": "speed: every step, where a run stalls",
    "step_time_ms_p50": "speed: the step time of the run",
    "mfu_pct": "efficiency: share of the device's peak",
    "comm_exposed_pct": "efficiency: communication that nothing hides",
    "wire_bytes_per_step": "efficiency: what the strategy sends, also known on a CPU",
    "peak_memory_gib": "memory: does it fit the device",
    "state_memory_gib": "memory: what the strategy shards, also known on a CPU",
    "peak_host_memory_gib": "memory: does it fit the host, with offloading",
    "train_time_s": "cost: seconds of training",
    "time_to_target_s": "cost: seconds to the target quality",
    "train_energy_wh": "cost: energy of all GPUs",
}
"""Metrics without a prefix, with the question that each answers."""
DETAIL = "detail/"
NOT_POINTS = ("t", "step", "attempt")
"""Numbers of a line of metrics.jsonl that are not metrics."""
OF_A_RANK = re.compile(r"rank(\d+)_(.+)")

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as the description of a run or an experiment."""
OWN = "\n\n[//]: # (written by stratlab)"
"""A comment of Markdown, which no page shows. A description without it is the user's."""
LONGEST_TAG = 5000
"""Characters that every MLflow server takes."""
SHOWN = {
    "step_time_ms_p50": "ms per step",
    "samples_per_s": "samples per s",
    "tokens_per_s": "tokens per s",
    "mfu_pct": "% MFU",
    "peak_memory_gib": "GiB peak device memory",
    "state_memory_gib": "GiB state",
    "test_accuracy_pct": "% test accuracy",
    "test_perplexity": "test perplexity",
}
LEAST_GIB = 0.1
"""Smaller sizes are shown in MiB."""


def name_metric(name: str, kind: str | None = None) -> str:
    """Return the name in MLflow and TensorBoard for a number of metrics.jsonl, or of an analysis.

    Args:
        kind: of the line; `rank3_host_memory_gib` of kind system becomes `detail/system/rank3/host_memory_gib`.
    """
    if name in HEADLINES:
        return name
    of_rank = OF_A_RANK.fullmatch(name) if kind == "system" else None
    return DETAIL + (f"system/rank{of_rank[1]}/{of_rank[2]}" if of_rank else name)


def find_stored_name(name: str, stored: Collection[str]) -> str:
    """Return `name`, or its name in older versions if a server has only that. Goes with version 0.2."""
    older = name.removeprefix(DETAIL)
    return older if name not in stored and older in stored else name


def may_describe(note: str | None) -> bool:
    """Return whether a description may be replaced: it is missing, or was not written by a user."""
    return not note or note.endswith(OWN)


def build_note(text: str) -> str:
    """Return the value of the tag; a text that is too long ends with an ellipsis."""
    most = LONGEST_TAG - len(OWN)
    return (text if len(text) <= most else f"{text[: most - 1]}…") + OWN


def describe_run(ended: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the end of a run in Markdown: why it failed, or its results.

    Args:
        ended: the last event of attempts.jsonl.
        summary: summary.json; empty if it is missing.
    """
    if (code := ended.get("exit_code")) != 0:
        why = ": ".join(str(ended[each]) for each in ("reason", "text") if ended.get(each))
        return f"**exit code {'unknown' if code is None else code}**" + (f": {why}" if why else "")
    numbers = [
        _say_number(float(summary[name]), words)
        for name, words in SHOWN.items()
        if isinstance(summary.get(name), int | float)
    ]
    where = " (on a CPU: times are no GPU performance)" if summary.get("device_type") == "cpu" else ""
    return f"**finished**: {', '.join(numbers) or 'no results'}{where}"


def _say_number(value: float, words: str) -> str:
    """Return the number with four digits: the metrics have all of them."""
    if words.startswith("GiB") and value < LEAST_GIB:
        value, words = value * 1024, f"M{words[1:]}"
    return f"{float(f'{value:.4g}'):,.10g} {words}"
