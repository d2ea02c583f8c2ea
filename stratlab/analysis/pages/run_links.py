"""The line at the head of a run's page that leads to its comparison, its traces, its logs and MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stratlab.analysis.reporting.run_facts import RunFacts
from stratlab.drawing import link, link_file, link_ranks, way_back
from stratlab.run_directory.files import read_object
from stratlab.run_directory.places import (
    SERVER,
    find_comparison_page,
    find_page,
    find_rank_logs,
    find_rank_traces,
)
from stratlab.tracking.address import find_run_page


def build_links(report: Mapping[str, Any], facts: RunFacts) -> Markup:
    """Of what is there, or is written with the page."""
    run_dir = facts.folder
    page_folder = find_page(run_dir).parent
    merged = (report.get("merged") or {}).get("file")
    traces = [link_file("all ranks", page_folder / merged, page_folder)] if merged else []
    traces += link_ranks(find_rank_traces(run_dir), page_folder)
    found = {"Traces": traces, "Logs": link_ranks(find_rank_logs(run_dir), page_folder)}
    lines = [
        Markup("{}: {}").format(name, Markup(", ").join(links)) for name, links in found.items() if links
    ]
    server = read_object(run_dir / "mlflow.json", [], SERVER)
    if address := find_run_page(*(server.get(key) for key in ("tracking_uri", "experiment_id", "run_id"))):
        lines.append(link("This run in MLflow", address))
    line = Markup('<p class="links">{}</p>').format(Markup(" · ").join(lines)) if lines else Markup("")
    return way_back(find_comparison_page(run_dir), page_folder) + line
