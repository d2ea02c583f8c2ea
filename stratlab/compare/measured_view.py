"""The parts of the page about measurements: speed, memory, traces, layouts; and the places of the runs' own files.

Each function builds sections from the rows of the report. `build_run_files` links to the runs' pages, traces and logs
and to MLflow, and `lead_back` links from there to the page.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stratlab.compare.attribution_view import NOTES, PHASE_COLOURS
from stratlab.compare.causes import COLLECTIVES
from stratlab.compare.fairness import say_degenerate
from stratlab.compare.placement import STATE
from stratlab.compare.run_rows import PHASES, Rows, RunRow
from stratlab.compare.winners import choose_memory
from stratlab.drawing import (
    HALF,
    Column,
    Columns,
    Section,
    badge,
    details,
    html_table,
    link,
    link_file,
    link_ranks,
    note,
    only_here,
    paragraph,
    set_way_back,
    stacked_bars,
    subtitle,
)
from stratlab.run_directory.files import MERGED, find_page, find_rank_logs, find_rank_traces, is_beside
from stratlab.run_directory.outcome import TRACED
from stratlab.run_directory.record import RunRecord
from stratlab.tracking import find_run_page
from stratlab.wording import fit_unit, format_count, format_range, name_few

HTA_BADGES = {"ok": "good", "unsupported": "plain", "failed": "bad"}
STATUS_BADGES = {
    "finished": "good",
    "failed": "bad",
    "stopped": "warn",
    "unfinished": "warn",
    TRACED: "plain",
}
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
"""Outermost first, as the ranks are laid out."""
MIB = 2**20
MOST_ROWS = 12
"""Ranks whose phases are all listed."""
HELD = {"parameters": "parameter", "gradients": "gradient", "optimizer state": "optimizer"}
FORESEEN = {"parameters": "parameters", "gradients": "gradients", "optimizer state": "optimizer"}
REST = "activations and the rest"
HELD_COLOURS = {**dict(zip(HELD, range(3), strict=True)), REST: 15}


def build_speed(rows: Rows, noise: Mapping[str, Any]) -> Section:
    """Build throughput, step times and their parts, with the band of the repeats."""
    is_text = any(row.task == "text" for row in rows)
    tokens: Columns = [
        Column("tokens_per_s", "tokens", "per s", 0),
        Column("useful_tokens_per_s", "useful tokens", "per s", 0),
        Column("useful_tokens_pct", "useful", "%", 1),
    ]
    of_text: Columns = [
        Column("mfu_useful_pct", "MFU, useful work alone", "%", 1),
        Column("mfu_literature_pct", "MFU, attention not causal", "%", 1),
    ]
    columns: list[Column | str] = [
        *("run", "strategy", "status", Column("samples_per_s", "rows" if is_text else "samples", "per s", 1)),
        *(tokens if is_text else []),
        Column("step_time_ms_p50", "step p50", "ms", 2),
        *([Column("noise_ms", "±", "ms", 2)] if noise["repeats"] else []),
        Column("step_time_ms_p95", "p95", "ms", 2),
        *(Column(f"{phase}_ms_p50", phase, "ms", 2) for phase in PHASES),
        Column("mfu_pct", "MFU", "%", 1),
        *(of_text if is_text else []),
        Column("measured_steps", "steps timed"),
    ]
    if any(row.forecast_step_ms is not None for row in rows):
        columns += [
            Column("forecast_step_ms", "step, foreseen", "ms", 2),
            Column("forecast_step_error_pct", "foreseen against measured", "%", 1),
            Column("forecast_step_deviates", "outside its band, most in"),
        ]
    html = html_table([{**vars(row), "status": _show_status(row)} for row in rows], columns)
    if noise["repeats"]:
        html += note(
            f"±: {noise['method']}; {noise['repeats']} repeats, {noise['degrees']} degrees of freedom, "
            f"{noise['relative_pct']:.2g} % of the median. Taken to be the same share for every strategy."
        )
    bars = {row.run: {phase: getattr(row, f"{phase}_ms_p50") for phase in PHASES} for row in _finished(rows)}
    html += subtitle("By phase") + stacked_bars(bars, "ms per step", PHASE_COLOURS)
    html += note("Medians of the phases; their sum need not be the median of the whole step.")
    told = format_range((row.step_time_ms_p50 for row in rows), "ms a step")
    return Section("Speed", html, folded=True, result=told)


def _show_status(row: RunRow) -> Markup:
    shown = badge(row.status, STATUS_BADGES[row.status])
    return shown + " " + badge("degenerate", "bad") if row.degenerate else shown


def _finished(rows: Rows) -> list[RunRow]:
    return [row for row in rows if row.status == "finished"]


def build_use(rows: Rows) -> list[Section]:
    """Show the time of an epoch and a target, the GPUs' energy, utilisation and temperature; empty without such
    numbers.
    """
    columns = [
        Column("train_time_s", "training", "s", 1),
        Column("epoch_time_s", "epoch", "s", 2),
        Column("time_to_target_s", "until the target", "s", 1),
        Column("train_energy_wh", "energy", "Wh", 2),
        Column("train_power_w", "power of all GPUs", "W", 0),
        Column("gpu_utilisation_pct", "GPU utilisation, mean", "%", 1),
        Column("gpu_temperature_c", "hottest GPU", "°C", 0),
    ]
    known = [column for column in columns if any(getattr(row, column.key) is not None for row in rows)]
    if not any(column.key != "train_time_s" for column in known):
        return []
    remark = note(NOTES.use)
    html, told = (
        html_table(rows, ["run", *known]) + remark,
        format_range((row.train_time_s for row in rows), "s", 1),
    )
    return [Section("Time, energy and use", html, folded=True, result=f"training {told}" if told else "")]


def build_memory_table(rows: Rows) -> Section:
    """Show a rank's counted memory, and the peaks."""
    columns: list[Column | str] = [
        "run",
        Column("parameter_memory_gib", "parameters", "GiB"),
        Column("gradient_memory_gib", "gradients", "GiB"),
        Column("optimizer_memory_gib", "optimizer state", "GiB"),
        Column("state_memory_gib", "held by the state", "GiB"),
        Column("peak_memory_gib", "peak on the device", "GiB", 3),
        Column("peak_memory_phase", "peak in"),
        Column("peak_reserved_gib", "reserved on the device", "GiB", 3),
        Column("alloc_retries", "allocator's retries"),
        Column("data_set_memory_gib", "data set", "GiB", 3),
        Column("peak_host_memory_gib", "peak on the host", "GiB", 3),
    ]
    if any(row.forecast_memory_gib is not None for row in rows):
        columns += [
            Column("forecast_memory_gib", "peak, foreseen", "GiB", 3),
            Column("forecast_memory_error_pct", "foreseen against measured", "%", 1),
            Column("forecast_memory_deviates", "outside its band, most in"),
        ]
    remark = note(NOTES.memory)
    html = html_table(rows, columns) + remark
    return Section("Memory by part", html, folded=True, result=_say_memory(rows))


def _say_memory(rows: Rows) -> str:
    """`fsdp 1.05, ddp 1.8 GiB`: the least and the most."""
    key = choose_memory(_finished(rows))
    known = sorted((size, row.run) for row in _finished(rows) if (size := getattr(row, key)))
    factor, unit = fit_unit(size for size, _ in known)
    ends = dict.fromkeys([known[0], known[-1]] if known else [])
    said = ", ".join(f"{run} {size * factor:.3g}" for size, run in ends)
    return f"{said} {unit}" if said else "not recorded"


def build_memory(rows: Rows, runs: Sequence[RunRecord]) -> Section:
    """Show a rank's memory, by cause: predicted above measured if the run has a prediction."""
    summaries = {run.name: run.summary for run in runs}
    bars: dict[str, dict[str, float | None]] = {}
    errors = []
    for row in _finished(rows):
        held: dict[str, float | None] = {
            name: getattr(row, f"{key}_memory_gib") for name, key in HELD.items()
        }
        state = sum(filter(None, held.values()))
        if row.peak_memory_gib and row.peak_memory_gib > state:
            held[REST] = row.peak_memory_gib - state
        off = {
            name: summaries.get(row.run, {}).get(f"forecast_{key}_error_gib")
            for name, key in {**FORESEEN, REST: "rest"}.items()
        }
        if row.peak_memory_gib and row.forecast_memory_error_pct is not None and off[REST] is not None:
            bars[f"{row.run}: predicted"] = {
                name: (gib or 0.0) + (off[name] or 0.0) for name, gib in held.items()
            }
            bars[f"{row.run}: measured"] = held
            errors.append(row.forecast_memory_error_pct)
        else:
            bars[row.run] = held
    is_peak = any(REST in held for held in bars.values())
    said = "Peak on the device." if is_peak else "Held by the state, counted: exact on any hardware."
    if errors:
        said += f" Predicted peaks are {min(errors):+.1f} to {max(errors):+.1f} % off."
    else:
        said += " No prediction is recorded."
    html = stacked_bars(bars, "GiB per rank", HELD_COLOURS, width=HALF) + note(said)
    return Section("Memory, predicted and measured" if errors else "Memory per rank", html, half=True)


def build_traces(rows: Rows) -> list[Section]:
    """Show communication and idle time from the traces of each run, and the analyses of Holistic Trace Analysis."""
    analysed = [row for row in rows if row.status in ("finished", TRACED) and row.trace_source]
    if not analysed:
        return [Section("Recorded steps", nothing="no run has analysed traces")]
    columns: Columns = [
        *("run", Column("trace_source", "events"), Column("trace_steps", "steps")),
        *(Column("step_ms", "step", "ms", 2), Column("compute_pct", "compute", "%", 1)),
        *(Column("comm_pct", "comm.", "%", 1), Column("comm_exposed_pct", "exposed comm.", "%", 1)),
        Column("comm_overlap_pct", "hidden share of comm.", "%", 1),
        *(Column("copy_exposed_pct", "exposed copies", "%", 1), Column("idle_pct", "idle", "%", 1)),
    ]
    html = html_table(rows, columns)
    ran: dict[tuple[str, str, str], list[str]] = {}  # runs with the same outcome are one line
    for row in rows:
        for entry in row.hta:
            outcome = tuple(str(entry.get(name) or "") for name in ("analysis", "status", "reason"))
            ran.setdefault(outcome, []).append(row.run)  # type: ignore[arg-type]
    silent = bool(ran) and all(status == "unsupported" for _, status, _ in ran)
    if ran and not silent:
        shown = [
            {
                "analysis": what,
                "status": badge(status, HTA_BADGES.get(status, "warn")),
                "reason": why,
                "runs": names,
            }
            for (what, status, why), names in ((key, name_few(found)) for key, found in ran.items())
        ]
        table = html_table(shown, ["analysis", "status", "reason", "runs"])
        html += details("Holistic Trace Analysis: what ran", table)
    phases = [{"run": row.run, "rank": rank, **p} for row in rows for rank, p in row.phases_present.items()]
    if len(phases) > MOST_ROWS:
        phases = [row for row in phases if not all(row[phase] for phase in PHASES)]  # those that lack one
    if phases:
        html += details("Phases found in the traces", html_table(phases, ["run", "rank", *PHASES]))
    hta = Section("Holistic Trace Analysis", nothing="unsupported by the traces of all runs")
    told = format_range((row.comm_exposed_pct for row in analysed), "%", 0)
    told = f"exposed communication {told}" if told else ""
    return [Section("Recorded steps", html, folded=True, result=told), *([hta] if silent else [])]


def build_layouts(rows: Rows) -> list[Section]:
    """Build one section with every finished run, if a run has a layout."""
    shown = _finished(rows)
    if not any(row.layout for row in shown):
        return []
    html = _list_layouts(shown) + _compare_bubbles(shown) + _split_bytes(shown) + _list_stages(shown)
    return [
        Section("Layouts", html, folded=True, result=", ".join(row.layout for row in shown if row.layout))
    ]


def _list_layouts(rows: Rows) -> Markup:
    html, lines = Markup(""), []
    for row in rows:
        lacks = badge(", ".join(row.missing_dimensions) or "yes", "bad") if row.degenerate else None
        lines.append({**vars(row), "lacks": lacks})
        if row.degenerate:
            why = f"{row.run} is not compared: {say_degenerate(row.missing_dimensions)}."
            html += paragraph(badge("degenerate", "bad") + " " + Markup.escape(why))
    columns: list[Column | str] = [
        *("run", "strategy", "layout", "dimensions", *AXES),
        *(Column("sequence_parallel", "sequence parallel on tp"), "lacks", Column("layout_reason", "why")),
    ]
    return html + html_table(lines, columns)


def _compare_bubbles(rows: Rows) -> Markup:
    """Compare the bubble in the traces with the bubble of equal stages, only for pipelines."""
    piped = [row for row in rows if (row.pp or 1) > 1]
    if not piped:
        return Markup("")
    columns: Columns = [
        *("run", "pp", Column("pp_schedule", "schedule"), Column("grad_accum_steps", "micro-batches")),
        *(
            Column("bubble_pct", "bubble, at least", "%", 1),
            Column("bubble_ideal_pct", "of equal stages", "%", 1),
        ),
        Column("trace_source", "events"),
    ]
    bars: dict[str, dict[str, float | None]] = {}
    for row in piped:
        bars[f"{row.run}: seen"] = {"seen, at least": row.bubble_pct}
        bars[f"{row.run}: equal stages"] = {"of equal stages": row.bubble_ideal_pct}
    remark = note(NOTES.bubble)
    table = html_table(piped, columns)
    return subtitle("Pipeline bubble") + table + stacked_bars(bars, "% of the step") + remark


def _split_bytes(rows: Rows) -> Markup:
    counted = [row for row in rows if row.wire_bytes_per_axis]
    if not counted:
        return Markup("")
    seen = {axis for row in counted for axis in row.wire_bytes_per_axis}
    axes = [*(axis for axis in AXES if axis in seen), *sorted(seen - set(AXES))]
    mib = {row.run: {a: size / MIB for a, size in row.wire_bytes_per_axis.items()} for row in counted}
    bars = {run: {axis: sizes.get(axis) for axis in axes} for run, sizes in mib.items()}
    lines = [
        {
            "run": run,
            **{f"bytes over {axis}": size for axis, size in sizes.items()},
            "sum": sum(sizes.values()),
        }
        for run, sizes in mib.items()
    ]
    columns = [Column(f"bytes over {axis}", axis, "MiB", 3) for axis in axes]
    table = html_table(lines, ["run", *columns, Column("sum", "sum", "MiB", 3)])
    html = subtitle("Communication per axis") + stacked_bars(bars, "MiB per step") + table
    html += note(NOTES.axes)
    calls = [
        {"run": row.run, "axis": axis, "collective": COLLECTIVES.get(kind, kind), "calls": count}
        for row in counted
        for axis, kinds in row.collectives_per_axis.items()
        for kind, count in kinds.items()
    ]
    if calls:
        most = Column("calls", "calls per step, most of a rank")
        html += details(
            "Calls per axis and collective", html_table(calls, ["run", "axis", "collective", most])
        )
    return html


def _list_stages(rows: Rows) -> Markup:
    lines = [{"run": row.run, **each, "stage": str(each["stage"])} for row in rows for each in row.stages]
    if not lines:
        return Markup("")
    columns: Columns = [
        *("run", "stage", "ranks"),
        *(Column(kind, kind, "GiB") for kind in STATE),
        Column("state", "held by the state", "GiB"),
        Column("peak_memory_gib", "peak on the device", "GiB", 3),
        Column("peak_host_memory_gib", "peak on the host", "GiB", 3),
    ]
    bars = {f"{line['run']}: stage {line['stage']}": {kind: line[kind] for kind in STATE} for line in lines}
    html = subtitle("Memory per stage") + html_table(lines, columns) + stacked_bars(bars, "GiB per rank")
    return html + note(NOTES.stages)


TITLE = "Pages, traces and logs of the runs"
COLUMNS = {"page": "page", "traces": "traces", "logs": "logs", "mlflow": "MLflow"}
PERFETTO = "A trace opens in Perfetto (ui.perfetto.dev, 'Open trace file'; it stays in your browser)."
NOTHING = "no files next to this page, and no MLflow server with them that others can reach"
HOLD = "Links to files hold while this page lies where it was written, beside its runs."


def build_run_files(runs: Sequence[RunRecord], page_folder: Path | None) -> Section:
    """Return one line per run.

    Args:
        page_folder: the page's folder; None = not on a disk, so that links to files are left out.
    """
    rows = [{"run": run.name, **_link(run, page_folder)} for run in runs]
    known = [key for key in COLUMNS if any(row[key] for row in rows)]
    if not known:
        return Section(TITLE, nothing=NOTHING)
    html = html_table(rows, ["run", *(Column(key, COLUMNS[key]) for key in known)])
    remarks = [PERFETTO] * ("traces" in known) + [HOLD] * (known != ["mlflow"])
    html += note(only_here(" ".join(remarks))) if remarks else Markup("")
    return Section(TITLE, html, folded=True, result=format_count(len(rows), "run"))


def _link(run: RunRecord, page_folder: Path | None) -> dict[str, Markup | None]:
    """Return the links by the keys of COLUMNS; None without a target."""
    address = find_run_page(run.tracking_uri, run.mlflow_experiment_id, run.mlflow_run_id)
    server = {"mlflow": link("run", address) if address else None}
    if page_folder is None or not is_beside(run.folder, page_folder):
        return dict.fromkeys(COLUMNS) | server
    page = find_page(run.folder)
    merged = page.with_name(MERGED)
    traces = [link_file("all ranks", merged, page_folder)] if merged.is_file() else []
    traces += link_ranks(find_rank_traces(run.folder), page_folder)
    return server | {
        "page": link_file("where its steps go", page, page_folder) if page.is_file() else None,
        "traces": Markup(", ").join(traces) or None,
        "logs": Markup(", ").join(link_ranks(find_rank_logs(run.folder), page_folder)) or None,
    }


def lead_back(runs: Sequence[RunRecord], page: Path) -> None:
    """Link the pages of the runs to their comparison's page. A page that cannot be written stays unchanged."""
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
            with contextlib.suppress(OSError):  # without write access there is no temporary file either
                temporary.unlink()
