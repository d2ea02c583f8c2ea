"""The part of the page that leads to the runs: their pages, traces and logs beside it, and MLflow; and the way back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from stratlab.drawing import (
    Column,
    Section,
    html_table,
    link,
    link_file,
    link_ranks,
    note,
    only_here,
    set_way_back,
)
from stratlab.run_directory.places import MERGED, find_page, find_rank_logs, find_rank_traces, is_beside
from stratlab.run_directory.record import RunRecord
from stratlab.tracking.address import find_run_page

TITLE = "Pages, traces and logs of the runs"
COLUMNS = {"page": "page", "traces": "traces", "logs": "logs", "mlflow": "MLflow"}
PERFETTO = "A trace opens in Perfetto (ui.perfetto.dev, 'Open trace file'; it stays in your browser)."
HOLD = "Links to files hold while this page lies where it was written, beside its runs."


def build_run_files(runs: Sequence[RunRecord], page_folder: Path | None) -> Section:
    """One line per run.

    Args:
        page_folder: where the page will lie; None = not on a disk, so that it can link to no file.
    """
    rows = [{"run": run.name, **_link(run, page_folder)} for run in runs]
    known = [key for key in COLUMNS if any(row[key] for row in rows)]
    if not known:
        return Section(
            TITLE, nothing="none lies beside this page, and no MLflow server that others reach has them"
        )
    html = html_table(
        [{key: value or None for key, value in row.items()} for row in rows],
        ["run", *(Column(key, COLUMNS[key]) for key in known)],
    )
    said = [PERFETTO] * ("traces" in known) + [HOLD] * (known != ["mlflow"])
    return Section(TITLE, html + note(only_here(" ".join(said))) if said else html)


def _link(run: RunRecord, page_folder: Path | None) -> dict[str, Markup]:
    address = find_run_page(run.tracking_uri, run.mlflow_experiment_id, run.mlflow_run_id)
    found = dict.fromkeys(COLUMNS, Markup("")) | {"mlflow": link("run", address) if address else Markup("")}
    if page_folder is None or not is_beside(run.folder, page_folder):
        return found
    page, merged = find_page(run.folder), find_page(run.folder).with_name(MERGED)
    traces = [link_file("all ranks", merged, page_folder)] if merged.is_file() else []
    traces += link_ranks(find_rank_traces(run.folder), page_folder)
    logs = link_ranks(find_rank_logs(run.folder), page_folder)
    shown = link_file("where its steps go", page, page_folder) if page.is_file() else Markup("")
    return found | {"page": shown, "traces": Markup(", ").join(traces), "logs": Markup(", ").join(logs)}


def lead_back(runs: Sequence[RunRecord], page: Path) -> None:
    """Leads from the pages of the runs to that of their comparison. One that cannot be written stays as it is."""
    for run in runs:
        there = find_page(run.folder)
        if not there.is_file() or not is_beside(run.folder, page.parent):
            continue
        temporary = there.with_name(f".{there.name}.tmp")
        try:
            text = there.read_text(encoding="utf-8")
            changed = set_way_back(text, page, there.parent)
            if changed != text:
                temporary.write_text(changed, encoding="utf-8")
                os.replace(temporary, there)
        except (OSError, UnicodeDecodeError):
            with contextlib.suppress(OSError):  # where nothing can be written nothing is left either
                temporary.unlink()
