"""What MLflow's own page of runs shows of a comparison: the numbers that decide, in this order, instead of all of them.

MLflow keeps a view of an experiment that is shared by a link as a tag of the experiment, in JSON; this module writes
that tag. The words are those of its page (MLflow 3.17; another one that does not know them shows its own view).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from stratlab.tracking.mlflow_run import impatient

NAME = "stratlab"
TAG = f"mlflow.sharedViewState.{NAME}"
KIND_TAG = ("mlflow.experimentKind", "custom_model_development")
"""Without it MLflow opens an experiment with its pages for language model applications."""
LONGEST_TAG = 5000
"""Characters that every MLflow server takes."""
ONLY_RUNS = "tags.strategy LIKE '%'"
"""The report itself is a run of the experiment too, without a strategy."""

SECTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Speed and memory": (
        ("samples_per_s",),
        ("tokens_per_s",),
        ("step_time_ms_p50",),
        ("mfu_pct",),
        ("peak_memory_gib",),
        ("peak_host_memory_gib",),
        ("peak_memory_gib", "samples_per_s"),
    ),
    "Learning": (("loss",), ("validation_loss",), ("validation_accuracy_pct",), ("test_accuracy_pct",)),
    "Where the step goes, in the traced steps": (
        ("trace/compute_pct",),
        ("trace/comm_exposed_pct",),
        ("trace/straggler_pct",),
        ("trace/idle_pct",),
        ("wire_bytes_per_step",),
    ),
}
"""Charts: one metric as bars, or as a line where it has steps; two as a picture of the second against the first."""
LINES = {"loss", "validation_loss", "validation_accuracy_pct"}
COLUMNS = (
    "params.`strategy`", "metrics.`samples_per_s`", "metrics.`step_time_ms_p50`", "metrics.`peak_memory_gib`",
    "metrics.`mfu_pct`", "metrics.`trace/comm_exposed_pct`", "metrics.`test_accuracy_pct`", "tags.`trace_main_loss`",
)  # fmt: skip


def build_view(metrics: Collection[str]) -> str:
    """The tag's value, for runs that have these metrics: charts without a number are left out."""
    state = {
        "searchFilter": ONLY_RUNS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": [one for one in COLUMNS if _is_there(one, metrics)],
        "compareRunSections": [
            {"uuid": title, "name": title, "display": True, "isReordered": True} for title in SECTIONS
        ],
        "compareRunCharts": [
            _build_chart(title, names)
            for title, charts in SECTIONS.items()
            for names in charts
            if set(names) <= set(metrics)
        ],
        "isAccordionReordered": True,
    }
    view = json.dumps(state, separators=(",", ":"))
    assert len(view) <= LONGEST_TAG, len(view)
    return view


def build_place(experiment_id: str) -> str:
    """Of the page with this view, behind the server's address."""
    return f"#/experiments/{experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={NAME}"


def find_places(uri: str) -> list[tuple[str, str]]:
    """(experiment, page) of those that have this view, by their names."""
    with impatient():
        from mlflow.tracking import MlflowClient  # 3 s: only who has a server pays

        found = MlflowClient(uri).search_experiments(filter_string=f"tags.`{TAG}` LIKE '%'")
    return sorted((one.name, build_place(one.experiment_id)) for one in found)


def _build_chart(section: str, names: tuple[str, ...]) -> dict[str, Any]:
    shared = {"uuid": " ".join(names), "metricSectionId": section}
    if len(names) == 2:
        axes = ({"key": name, "type": "METRIC"} for name in names)
        placed = dict(zip(("xaxis", "yaxis"), axes, strict=True))
        return shared | {"type": "SCATTER", "runsCountToCompare": 100} | placed
    if names[0] in LINES:
        return shared | {
            "type": "LINE", "runsCountToCompare": 20, "metricKey": names[0], "selectedMetricKeys": list(names),
            "xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "lineSmoothness": 0,
            "range": {}, "yAxisKey": "metric", "yAxisExpressions": [], "useGlobalXaxisKey": True,
            "useGlobalLineSmoothing": True,
        }  # fmt: skip
    return shared | {"type": "BAR", "runsCountToCompare": 20, "metricKey": names[0]}


def _is_there(column: str, metrics: Collection[str]) -> bool:
    kind, _, name = column.partition(".")
    return kind != "metrics" or name.strip("`") in metrics
