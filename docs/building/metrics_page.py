"""The names of metrics in MLflow, TensorBoard and Prometheus, from the tables of the code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stratlab.metrics_exporter import FACTS, RANK_ROWS, ROWS
from stratlab_spec.run_directory import DETAIL, HEADLINES

OF_ANALYSIS = {
    f"{DETAIL}trace/<number>": "each number of `mean` in `report.json`, such as `detail/trace/step_ms`",
    f"{DETAIL}trace/part/<part>_ms": "parts of the mean step: compute, straggler, copy, data, host, launch, "
    "kernel_wait, other_idle, bubble",
    f"{DETAIL}trace/part/comm/<collective>_ms": "exposed transfer of each collective",
    f"{DETAIL}trace/findings": "number of findings",
    f"{DETAIL}trace/recommendations": "number of recommendations",
    "trace_source": "tag: `gpu` or `cpu`",
    "trace_main_part": "tag: the largest part",
    "trace_main_loss": "tag: the largest part except compute",
    "trace_top_recommendation": "tag: the first recommendation, or `none`",
    "layout": "tag of runs with a layout: its name",
    "degenerate": "tag of runs with a layout: the missing kinds, or `no`",
    "report.html, analysis/": "artifacts: the report, all files; a merged trace above 200 MiB stays on the volume",
}
"""Name in MLflow -> content."""


def write_metrics(repository: Path) -> str:
    """Return Markdown with the headline metrics and the gauges of Prometheus; `repository` is not read."""
    gauges = {
        "stratlab_run_info": "1, with the labels strategy and model.",
        "stratlab_run_status": "1 for the current `status`, a label.",
        **FACTS,
        **{row.name: row.help for row in (*ROWS, *RANK_ROWS)},
    }
    of_ranks = ", ".join(f"`{row.name}`" for row in RANK_ROWS)
    return "\n".join(
        [
            "# Metrics\n",
            "Names of the metrics of a run, generated from `stratlab_spec/run_directory.py` and "
            "`stratlab/metrics_exporter.py`. Units end the names. [Monitoring](../monitoring.md) shows how to follow "
            "them.\n",
            "## MLflow and TensorBoard\n",
            f"These metrics have no prefix; all others are below `{DETAIL}`.\n",
            *_write_table("metric", HEADLINES.items()),
            "\n## MLflow, added by `stratlab analyze`\n",
            *_write_table("name", OF_ANALYSIS.items()),
            "\n## Prometheus\n",
            f"Labels are `comparison` and `run`; {of_ranks} also have `rank`.\n",
            *_write_table("metric", gauges.items()),
            "",
        ]
    )


def _write_table(head: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"| {head} | meaning |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in rows)]
