"""Sections of the page about the run itself: memory while the steps were recorded, losses, accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stratlab.analysis.pages.time import say_choice
from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.run_facts import RunFacts
from stratlab.drawing import Section, heat_map, html_table, line_chart, note

LOSSES = {"loss": "train", "validation_loss": "validation"}


def build_memory(
    report: dict[str, Any], ranks: Sequence[RankAnalysis], chosen: Sequence[int]
) -> Iterator[Section]:
    """The allocator's curve of the chosen ranks; nothing without recorded allocations."""
    drawn = [rank for rank in ranks if rank.rank in set(chosen)]
    devices = sorted({point.device for rank in drawn for point in rank.memory})
    shown = [device for device in devices if device != "cpu"] or devices
    if not shown:
        return
    curves = {
        f"rank {rank.rank} {device}": [(p.t_ms, p.allocated_mib) for p in rank.memory if p.device == device]
        for rank in drawn
        for device in shown
    }
    mean = report["mean"]
    numbers = ["peak_allocated_gib", "peak_reserved_gib", "allocations_per_step"]
    html = line_chart(curves, "ms since the first event", "allocated MiB") + html_table([mean], numbers)
    html += note(
        "As torch's allocator counts while the steps are recorded, on the CPU from zero; not the peak of the run. "
        + say_choice(chosen, len(ranks))
    )
    yield Section("Memory", html)


def build_training(facts: RunFacts) -> Iterator[Section]:
    """Losses and the test of the run, as far as it has got."""
    series = {
        name: [(row["step"], row.get(key)) for row in facts.metrics if key in row and "step" in row]
        for key, name in LOSSES.items()
    }
    if any(series.values()):
        yield Section("Loss", line_chart({k: v for k, v in series.items() if v}, "step", "loss"))
    test = facts.evaluation
    names, matrix = test.get("class_names"), test.get("confusion_matrix")
    if test:
        facts_row = {key: test.get(key) for key in ("split", "samples", "loss", "accuracy_pct")}
        drawn = html_table([facts_row], list(facts_row))
        if names and matrix:
            drawn += heat_map(
                matrix, list(map(str, names)), list(map(str, names)), "truth", "prediction", by_row=True
            )
        yield Section("Accuracy", drawn)
