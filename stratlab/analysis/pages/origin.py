"""What a report was made of and its answer in short; what is not known is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.analysis.pages.part_names import say_headline
from stratlab.number import count_processes, format_count

MOST_LEFT_OUT = 5


def build_origin(report: Mapping[str, Any]) -> str:
    """Of the page: where the numbers come from, in one line."""
    run, steps = report["run"], sorted({row["step"] for row in report["steps"]})
    recorded = (
        f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}" if steps else "no step"
    )
    of_steps = f" of {run['steps']}" if steps and run.get("steps") is not None else ""
    device = " ".join(filter(None, [report["device"], _label("({})", run.get("device_type"))]))
    parts = [
        f"Run {run['run']}",
        *_list_settings(report),
        device,
        _label("backend {}", report["backend"]),
        _label("torch {}", run.get("torch")),
        recorded + of_steps,
        count(report["mean"]["ranks"], "trace"),
    ]
    return f"{', '.join(filter(None, parts))}; recording slows the steps down."


def build_short_origin(report: Mapping[str, Any]) -> str:
    """Of summary.md."""
    parts = [
        *_list_settings(report),
        report["device"] or "",
        _label("backend {}", report["backend"]),
        f"source {report['source']}",
        count(report["mean"]["ranks"], "trace"),
        count(report["mean"].get("steps"), "recorded step"),
    ]
    said = ", ".join(filter(None, parts))
    return f"{said[0].upper()}{said[1:]}."


def build_answer(report: Mapping[str, Any]) -> list[str]:
    """Of the terminal: lines, with what of the traces is not in the numbers."""
    mean = report["mean"]
    device, backend = report["device"], _label("backend {}", report["backend"])
    origin = ", ".join(filter(None, [f"{report['source']} traces", backend, device]))
    lines = [
        f"mean of {count(mean['steps'], 'step')} on {count(mean['ranks'], 'rank')} ({origin}):",
        say_headline(report),
    ]
    skipped = [row for row in report.get("quality") or [] if row["action"] == "skipped"]
    lines += [f"  not in it: {_say_skipped(row)}" for row in skipped[:MOST_LEFT_OUT]]
    if len(skipped) > MOST_LEFT_OUT:
        lines.append(f"  and {len(skipped) - MOST_LEFT_OUT} more: the report names them")
    return lines


def count(number: Any, noun: str, plural: str = "s") -> str:
    """`1 rank`, `2 ranks`; empty where it is not known."""
    return "" if number is None else format_count(number, noun, plural)


def _list_settings(report: Mapping[str, Any]) -> list[str]:
    run = report["run"]
    processes, nodes = run.get("world_size"), run.get("nodes")
    if processes is None or nodes is None:
        place = count(processes, "process", "es") or count(nodes, "node")
    else:
        place = count_processes(processes, nodes, run.get("machines"))
    weights = _label("starts from {}", run.get("initial_weights"))
    return [_label("strategy {}", run.get("strategy")), place, weights]


def _label(text: str, value: Any) -> str:
    return "" if value is None else text.format(value)


def _say_skipped(row: Mapping[str, Any]) -> str:
    rank = _label("rank {}", row["rank"])
    return f"{', '.join(filter(None, [row['file'], rank])) or 'a trace'}: {row['reason']}"
