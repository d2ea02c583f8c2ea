"""Sections of the page about the run itself: its layout, memory while the steps were recorded, losses, the test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.pages.time_sections import say_choice
from stratlab.analysis.reporting.run_facts import RunFacts
from stratlab.drawing import (
    Column,
    Section,
    badge,
    heat_map,
    html_table,
    line_chart,
    note,
    paragraph,
    subtitle,
)

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")  # outermost first
OF_TEST = ("split", "samples", "labels", "loss", "accuracy_pct", "top5_accuracy_pct", "perplexity")
MOST_RANKS = 8  # in one chart: the colours of the palette
GPU_CURVES = (
    ("gpu_utilisation_pct", "Utilisation", "time in which a kernel ran (%)"),
    ("gpu_power_w", "Power", "W"),
    ("gpu_temperature_c", "Temperature", "°C"),
    ("gpu_clock_mhz", "Clock", "MHz"),
)
LOSSES = {"loss": "train", "validation_loss": "validation"}


def build_layout(report: dict[str, Any]) -> Iterator[Section]:
    """The degrees of each kind of parallelism, why these, and what the run's name promises and lacks."""
    run = report["run"]
    layout = run.get("layout")
    if not layout:
        return
    html = paragraph(Markup("<strong>{}</strong>").format(layout["name"] or "unknown"))
    if layout["degenerate"]:
        lacks = ", ".join(layout["missing"] or []) or "a kind of"
        said = f"lacks {lacks} parallelism, which its {layout['dimensions']} dimensions promise: compared with no run."
        html = badge("degenerate", "bad") + " " + html + paragraph(said)
    degrees = {axis: run["axes"].get(axis) for axis in AXES}
    split = Column("sequence_parallel", "sequence parallel on tp")
    html += html_table([{**layout, **degrees}], ["dimensions", *AXES, split])
    yield Section("Layout", html + note(f"{layout['reason']}." if layout["reason"] else "Why is not known."))


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


def build_gpus(facts: RunFacts) -> Iterator[Section]:
    """Utilisation, temperature, power and clock of each rank's GPU over the whole run; nothing on a CPU."""
    html = Markup("")
    for name, title, unit in GPU_CURVES:
        pattern = re.compile(rf"rank(\d+)_{name}")
        curves: dict[int, list[tuple[int, float]]] = {}
        for row in facts.metrics:
            for key, value in row.items() if row.get("kind") == "system" else ():
                if found := pattern.fullmatch(key):
                    curves.setdefault(int(found[1]), []).append((row["step"], value))
        if curves:
            chosen = sorted(curves)[:MOST_RANKS]
            left_out = f" Ranks 0 to {MOST_RANKS - 1} of {len(curves)}." if len(curves) > MOST_RANKS else ""
            html += subtitle(title) + line_chart({f"rank {r}": curves[r] for r in chosen}, "step", unit)
            html += note(f"Means between two writes of the metrics, as NVML says.{left_out}")
    if html:
        yield Section("GPUs over the run", html)


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
        facts_row = {key: test[key] for key in OF_TEST if key in test}
        drawn = html_table([facts_row], list(facts_row))
        if names and matrix:
            drawn += heat_map(
                matrix, list(map(str, names)), list(map(str, names)), "truth", "prediction", by_row=True
            )
        yield Section("Accuracy" if "accuracy_pct" in test else "Test", drawn)
